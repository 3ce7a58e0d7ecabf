package parity

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// passNames maps the tensors of this program's passes for prompt and negative prompt to the
// reference's. Here, and in some references, the passes are two calls; in other references they
// are two rows of one batch.
type passNames struct {
	ref     *Run
	batched bool
}

var secondCall = regexp.MustCompile(`^transformer[^:]*@\d+#1`)

// batched reports whether a run's passes are rows of one batch.
func (r *Run) batched() bool {
	if r.live != nil {
		return r.Guidance > 0 && r.Passes != "calls"
	}
	return r.Guidance > 0 && r.Passes != "calls" && r.has("transformer") &&
		!slices.ContainsFunc(r.recorded(), secondCall.MatchString)
}

func nameOf(tap hooks.Tap) hooks.Name {
	return hooks.Name{Module: tap.Name, Step: tap.Step, Call: tap.Call, Point: tap.Point}
}

// inBatch reports whether the reference computes both passes of a module in one batch.
func (p *passNames) inBatch(module string) bool {
	return p.batched && (module == "transformer" || strings.HasPrefix(module, "transformer."))
}

// name returns the reference's name of a tensor, given the number of finished calls of its module
// for the prompt. In a batch there are half as many calls, and the transformer's own inputs and
// outputs are lists.
func (p *passNames) name(n hooks.Name, negative bool, positive int) string {
	if !negative || !p.inBatch(n.Module) {
		return n.String()
	}
	n.Call -= positive
	if n.Module == "transformer" {
		if n.Point == (hooks.Point{}) {
			n.Point.Key = "0.0"
		}
		if list, ok := strings.CutSuffix(n.Point.Key, ".0"); ok {
			n.Point.Key = list + ".1"
		}
	}
	return n.String()
}

// onePass cuts a tensor that the reference computes for prompt and negative prompt at once to the
// part of one pass, of shape got: its row of the batch, without the pads that make both rows
// equally long.
func (p *passNames) onePass(want *mlx.Array, n hooks.Name, negative bool, got []int) *mlx.Array {
	shape := want.Shape()
	if slices.Equal(got, shape) || len(got) != len(shape) || len(got) == 0 {
		return want
	}
	ids := strings.HasSuffix(n.Module, ".input_ids")
	if ids || n.Module == "text_encoder.embed_tokens" && n.Point.Kind == hooks.Input {
		if len(got) == 2 && got[1] < shape[1] && (!ids || p.padded(n.Module, got[1])) {
			return want.Slice(1, 0, got[1]) // the reference pads
		}
		return want
	}
	if !p.inBatch(n.Module) || shape[0] < got[0] {
		return want
	}
	start := 0
	if negative {
		start = shape[0] - got[0]
	}
	want = want.Slice(0, start, start+got[0])
	tokens := []int{1} // their axes
	if n.Point.OnRequest() {
		tokens = []int{2, 3}
	}
	for _, axis := range tokens {
		if len(got) > 2 && axis < len(got) && want.Dim(axis) > got[axis] {
			want = want.Slice(axis, 0, got[axis])
		}
	}
	return want
}

// padded reports whether the reference's prompt has a number of tokens before its pads.
func (p *passNames) padded(name string, tokens int) bool {
	mask := p.ref.Array(strings.TrimSuffix(name, "input_ids") + "attention_mask")
	if mask == nil {
		return true
	}
	valid := 0
	for _, v := range mask.Int32s() {
		valid += int(v)
	}
	return valid == tokens
}
