package debug

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

func pointerTo[T any](v T) *T { return &v }

// TestDebugText compares texts that the reference's sessions print in the same way.
func TestDebugText(t *testing.T) {
	stats := checkpoint.Stats{Min: -1.5, Max: 2, Mean: 0.1, Std: 0.9}
	bad := checkpoint.Stats{Min: checkpoint.Float(math.NaN()), Max: 2, Mean: 0.123456789, Std: 1e-9, NaN: 1, Inf: 2}
	tensor := func(name string, s checkpoint.Stats) protocol.Variable {
		return protocol.Variable{Name: name, Shape: []int{1, 4}, Dtype: "float32", Stats: s}
	}
	stop := protocol.Stop{Name: "transformer.layers.0.attention@3", Reason: "next", Class: "Block", Step: 3,
		Sigma: pointerTo(0.75), Timestep: pointerTo(750.0), Shape: []int{1, 64, 64}, Dtype: "float32"}
	with := func(change func(*protocol.Stop)) protocol.Stop {
		s := stop
		change(&s)
		return s
	}
	code := &runs.CodeContext{StartLine: 98, EndLine: 100, Lines: map[string]string{"98": "\tx := 1", "99": "\ty := f(x)", "100": ""}}
	for _, c := range []struct {
		name string
		r    ui.Result
		want string
	}{
		{"start", startedSession{protocol.Status{Session: "1"}},
			"session 1: stopped before the model is loaded (gomflux debug continue begins)\n"},
		{"next", progressed{protocol.Status{State: protocol.Stopped, Stop: &stop}},
			"stopped after transformer.layers.0.attention@3 (next): float32 [1, 64, 64]\n"},
		{"watched", progressed{protocol.Status{State: protocol.Stopped, Stop: &stop, Watched: []protocol.Watched{
			{Number: 2, Variable: tensor("latents@0", stats)}, {Number: 2, Variable: tensor("latents@1", bad)}}}},
			"watch 2: latents@0 float32 [1, 4]  min -1.5  max 2  mean 0.1  std 0.9\n" +
				"watch 2: latents@1 float32 [1, 4]  min NaN  max 2  mean 0.123457  std 1e-09  nan 1  inf 2\n" +
				"stopped after transformer.layers.0.attention@3 (next): float32 [1, 64, 64]\n"},
		{"problem", progressed{protocol.Status{Stop: pointerTo(with(func(s *protocol.Stop) {
			s.Reason, s.Breakpoint, s.Hit, s.Problem = "breakpoint 1", 1, 2, "x is not\ndefined"
		}))}}, "stopped after transformer.layers.0.attention@3 (breakpoint 1, hit 2): float32 [1, 64, 64]\n" +
			"the condition of breakpoint 1: x is not defined\n"},
		{"differs", progressed{protocol.Status{Stop: pointerTo(with(func(s *protocol.Stop) {
			s.Reason, s.Differs = "differs", "largest difference 0.1\nexpected 2e-05\n"
		}))}}, "stopped after transformer.layers.0.attention@3 (differs): float32 [1, 64, 64]\nlargest difference 0.1\nexpected 2e-05\n"},
		{"checkpoint", progressed{protocol.Status{Stop: &protocol.Stop{Name: "after", Reason: "checkpoint after"}}},
			"stopped after after (checkpoint after)\n"},
		{"killed", progressed{protocol.Status{Session: "1", State: protocol.Killed}}, "session 1: its process was killed\n"},
		{"never hit", progressed{protocol.Status{State: protocol.Failed, Error: "no space", NeverHit: []protocol.Breakpoint{
			{Number: 1, BreakArguments: protocol.BreakArguments{Glob: "a", Step: pointerTo(0)}}}}},
			"the run has failed: no space\nbreakpoint 1: a, step 0 was never hit\n"},
		{"still running", progressed{protocol.Status{State: protocol.Running, TimedOut: true, Last: []string{"a", "b"}}},
			"still running (last tensor: b)\n"},
		{"a line of Python", progressed{protocol.Status{State: protocol.Stopped,
			Stop: &protocol.Stop{Name: "s.py:3", Reason: "breakpoint 1", Breakpoint: 1, Hit: 2}}},
			"stopped before s.py:3 (breakpoint 1, hit 2): the line is not executed yet\n"},
		{"still loading", progressed{protocol.Status{State: protocol.Loading, TimedOut: true}}, "still loading\n"},
		{"location", stopPlace{protocol.Place{Stop: stop,
			Location: &runs.Location{File: "transformer/m.go", Line: 99, Function: "Forward"},
			Context:  code, Around: []protocol.AroundItem{{Name: "transformer", Class: "Model"}, {Name: "transformer.layers.0"}},
			Before: []string{"a@3", "b@3"}}},
			"transformer.layers.0.attention@3 (Block)\nstep 3, call 0, prompt, sigma 0.75, timestep 750\n" +
				"inside transformer (Model), transformer.layers.0\ntransformer/m.go:99, Forward\n" +
				"      98      x := 1\n   >  99      y := f(x)\n     100\nbefore: a@3, b@3\n"},
		{"location of a value", stopPlace{protocol.Place{Stop: protocol.Stop{Name: "prompt.embeds", Step: -1, Call: 1}}},
			"prompt.embeds\noutside the denoising loop, call 1\n"},
		{"negative", stopPlace{protocol.Place{Stop: protocol.Stop{Name: "x@0", Negative: true}}},
			"x@0\nstep 0, call 0, negative prompt\n"},
		{"negative outside", stopPlace{protocol.Place{Stop: protocol.Stop{Name: "x", Step: -1, Negative: true}}},
			"x\noutside the denoising loop, call 0, negative prompt\n"},
		{"vars", stopVariables{protocol.Variables{Variables: []protocol.Variable{
			tensor("out", stats), tensor(`inp["0"]`, bad),
			{Name: `inner["weights"]`, Dtype: "float32", Shape: []int{2}, Value: "is computed when an expression uses it"},
			{Name: "note", Value: "'a\x1b'"}},
			Parameters: []protocol.Parameter{{Path: "to_q.weight", Dtype: "uint32", Shape: []int{8, 2}, Quantized: "4 bits, groups of 64"},
				{Path: "to_q.bias", Dtype: "float32", Shape: []int{8}}}}},
			"NAME      DTYPE    SHAPE   min   max  mean      std    nan  inf  first values\n" +
				"out       float32  [1, 4]  -1.5  2    0.1       0.9    0    0\n" +
				"inp[\"0\"]  float32  [1, 4]  NaN   2    0.123457  1e-09  1    2\n" +
				"inner[\"weights\"] float32 [2]: is computed when an expression uses it\n" +
				"note = 'a\\x1b'\n" +
				"parameters\n" +
				"to_q.weight  uint32   [8, 2]  (quantized: 4 bits, groups of 64)\n" +
				"to_q.bias    float32  [8]\n"},
		{"weights", stopVariables{protocol.Variables{Parameters: []protocol.Parameter{
			{Path: "w", Dtype: "float32", Shape: []int{8}, Stats: &stats}}}},
			"parameters\nw  float32  [8]  -1.5  2  0.1  0.9  0  0\n"},
		{"eval", evaluated{protocol.Evaluated{Text: "[[1, 2],\n [3, 4]]", Output: []string{"a", ""}}}, "a\n\n[[1, 2],\n [3, 4]]\n"},
		{"status", sessionState{protocol.Status{Session: "1", Side: "reference", State: protocol.Starting}},
			"session 1 (reference): stopped before the model is loaded\n"},
		{"loading", sessionState{protocol.Status{Session: "1", Side: "gomflux", State: protocol.Loading,
			Progress: "loading the transformer (41 %)",
			Command:  []string{"generate", "--prompt", "it's"}, Output: "o", Trace: "t", Run: "r"}},
			"session 1 (gomflux): loading the transformer (41 %)\n" +
				"command: generate --prompt 'it'\\''s'\noutput: o\ntrace: t\nrun: r\n"},
		{"running", sessionState{protocol.Status{Session: "1", Side: "gomflux", State: protocol.Running, Last: []string{"a", "b"}}},
			"session 1 (gomflux): running\nlast tensor: b\n"},
	} {
		var p ui.Page
		c.r.Text(&p)
		if p.String() != c.want {
			t.Errorf("%s:\n%sexpected\n%s", c.name, p.String(), c.want)
		}
		if _, err := json.Marshal(c.r); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
