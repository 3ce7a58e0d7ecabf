package models

import (
	"errors"
	"image"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/errs"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
)

// TestBadReferences checks that a reference image that the model cannot take is an error that names
// the image and the reason, while EditSize and SizeFor have no error.
func TestBadReferences(t *testing.T) {
	good := image.NewRGBA(image.Rect(0, 0, 80, 70))
	gray := func(w, h int) image.Image { return image.NewGray(image.Rect(7, 9, 7+w, 9+h)) }
	tests := []struct {
		folder string
		bad    image.Image
		want   string
	}{
		{"flux2-klein", nil, "is nil"},
		{"flux2-klein", gray(0, 80), "is empty"},
		{"flux2-klein", gray(63, 80), "has 63x80 pixels, expected at least 64 on each side"},
		{"flux2-klein", gray(1<<17, 64), "may be at most 8 times as long"},
		{"qwen-edit-plus", nil, "is nil"},
		{"qwen-edit-plus", gray(80, 0), "is empty"},
		{"qwen-edit-plus", gray(0, 0), "is empty"},
		{"qwen-edit-plus", gray(1<<17, 1), "the long side is 131072 times the short side"},
	}
	for _, test := range tests {
		mlxtest.Do(t, func() {
			p, err := Load(os.DirFS("testdata/"+test.folder+"/model"), LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r := Request{Prompt: "x", Steps: 1, Guidance: 1, MaxSequenceLength: 64, References: []image.Image{test.bad, good}}
			r.Height, r.Width = p.SizeFor(p.EditSize(r.References), 0, 0)
			if n := p.BatchSize(r); n < 1 {
				t.Errorf("%s: batches of %d", test.want, n)
			}
			err = p.Check(r)
			which, ok := errors.AsType[*ReferenceError](err)
			if !errors.Is(err, errs.ErrRequest) || !ok || which.Index != 0 || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: error %v, expected %q", test.folder, err, test.want)
			}
		})
	}
}

// TestEmptySize checks that the size for an empty image is valid, so that Check gets to the image.
// An infinite float converts to the largest int on arm64, and to the smallest on amd64.
func TestEmptySize(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		for _, size := range []image.Point{{}, {0, 100}, {100, 0}} {
			for _, given := range []image.Point{{}, {0, 64}, {64, 0}} {
				if h, w := p.SizeFor(size, given.Y, given.X); h < 8 || w < 8 || h > 6400 || w > 6400 {
					t.Errorf("%v, %v given: %dx%d", size, given, w, h)
				}
			}
		}
	})
}

// TestCounts checks that numbers that do not fit into memory are refused before anything is
// allocated.
func TestCounts(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		for _, n := range []int{picture.MaxCount + 1, math.MaxInt32, math.MaxInt} {
			r := Request{Prompt: "x", Height: 8, Width: 8, Steps: n, MaxSequenceLength: 512}
			if err := p.Check(r); !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), ": must be at most 1048576") {
				t.Errorf("%d steps: error %v", n, err)
			}
			r.Steps, r.MaxSequenceLength = 1, n
			if err := p.Check(r); !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), "at most 1048576") {
				t.Errorf("%d tokens: error %v", n, err)
			}
		}
	})
}

// TestOverriddenIDs checks that CLIP truncates a prompt, but not overridden ids.
func TestOverriddenIDs(t *testing.T) {
	mlxtest.Do(t, func() {
		p, err := Load(os.DirFS("testdata/flux1-dev-small/model"), LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		r := Request{Prompt: strings.Repeat("a red hat ", 30), Height: 32, Width: 32, Steps: 1, MaxSequenceLength: 512}
		prompt, cut := prepared(t, p, r, 1).Tokens()
		if cut == 0 {
			t.Errorf("%d tokens, %d cut", prompt, cut)
		}
		given := func(name string, n int) Overrides {
			return hostValues{name: func() *mlx.Array { return mlx.Zeros(mlx.Int32, 1, n) }}
		}
		r.Overrides = given("prompt.input_ids", p.family.PromptEncodings(nil)[0].Limit+1)
		if _, err := p.Generate(r); !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(),
			"and the limit of text_encoder is ") {
			t.Errorf("too many ids for CLIP: error %v", err)
		}
		r.Overrides = given("prompt.input_ids_2", 5)
		if n, cutAgain := prepared(t, p, r, 1).Tokens(); n != 0 || cutAgain != cut {
			t.Errorf("ids for T5 are given: %d tokens, %d cut", n, cutAgain)
		}
	})
}

// TestCutPrompts truncates a prompt that is too long as each family's pipeline in diffusers does,
// and checks the part that is reported as lost.
func TestCutPrompts(t *testing.T) {
	text := strings.TrimSpace(strings.Repeat("a red hat on a blue cat, ", 12))
	const limit = 24
	for _, test := range []struct {
		folder string
		ids    int    // that the last text encoder gets
		rows   int    // that the transformer sees
		lost   string // text encoders that do not see all
	}{
		{"zimage-small", limit, limit, "text_encoder"},
		{"flux1-dev-small", limit, limit, "text_encoder text_encoder_2"},
		{"flux2-klein", limit, limit, "text_encoder"},
		{"qwen-image-small", 0, limit, "text_encoder"}, // cuts what the encoder makes
		{"qwen-edit", 0, 0, ""},                        // cuts nothing
	} {
		mlxtest.Do(t, func() {
			p, err := Load(os.DirFS("testdata/"+test.folder+"/model"), LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r := Request{Prompt: text, Height: 32, Width: 32, Steps: 1, Guidance: 1, MaxSequenceLength: limit}
			if p.checkReferences(nil, 0) != nil {
				r.References = []image.Image{coloured(64, 64)}
			}
			run := prepared(t, p, r, 1)
			tokens := run.prompts[0].tokens[len(run.prompts[0].tokens)-1]
			if test.ids > 0 && len(tokens.IDs) != test.ids {
				t.Errorf("%s: %d ids, expected %d", test.folder, len(tokens.IDs), test.ids)
			}
			var lost []string
			for _, cut := range run.Cuts() {
				lost = append(lost, cut.Encoder)
				if !strings.HasSuffix(text, cut.Text) || cut.Text == "" || cut.Text == text || cut.Tokens < 1 || cut.Prompt != "prompt" {
					t.Errorf("%s: cut %+v", test.folder, cut)
				}
			}
			if strings.Join(lost, " ") != test.lost {
				t.Errorf("%s: cut for %q, expected %q", test.folder, lost, test.lost)
			}
			results, err := run.Generate([]uint64{1})
			if err != nil {
				t.Fatal(err)
			}
			if n := results[0].PromptTokens; test.rows > 0 && n != test.rows || test.rows == 0 && n <= limit {
				t.Errorf("%s: the transformer sees %d tokens, expected %d", test.folder, n, test.rows)
			}
			r.RefuseLongPrompts = true
			if _, err := p.Prepare(r, 1); !isRequest(err) || !strings.Contains(err.Error(), "and the limit is 24") {
				t.Errorf("%s: refused: error %v", test.folder, err)
			}
		})
	}
}
