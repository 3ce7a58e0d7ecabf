package debugger

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/runs"
)

// A run is one of a small network under a session: two steps, in each of which a block of two
// layers computes, and the sum of all latents.
type run struct {
	t *testing.T
	*Session
	result chan float32
	err    chan error
	gate   chan struct{} // if set, the network computes when it is closed
}

const steps = 2

func start(t *testing.T, replay bool) *run {
	t.Helper()
	tree, err := runs.Open(filepath.Join(t.TempDir(), "logs"))
	if err != nil {
		t.Fatal(err)
	}
	output, err := NewOutput(tree)
	if err != nil {
		t.Fatal(err)
	}
	output.WriteString("first\nsecond\n")
	output.Close()
	ctx, cancel := context.WithCancelCause(context.Background())
	s, err := New(Options{
		Name: "1", Command: []string{"generate"}, Output: output.Name(), Tree: tree, Context: ctx, Terminate: cancel, Replay: replay,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, Session: s, result: make(chan float32, 1), err: make(chan error, 1)}
	go r.network(ctx)
	t.Cleanup(func() {
		cancel(errors.New("the test has ended"))
		<-r.err
		s.Close()
	})
	return r
}

// network is the run.
func (r *run) network(ctx context.Context) {
	err := r.Begin(ctx)
	if r.gate != nil {
		<-r.gate
	}
	if err == nil {
		r.Loading("loading the transformer (50 %)")
		r.Loaded([]hooks.Module{{Name: "transformer", Class: "t.Model"}, {Name: "transformer.block", Class: "t.Block"},
			{Name: "transformer.block.layer", Class: "t.Layer"}})
		err = mlx.Do(ctx, func() error {
			r.result <- r.compute()
			return nil
		})
	}
	r.End(err, 0)
	r.err <- err
	close(r.err)
}

func (r *run) compute() float32 {
	judged := func(t hooks.Tap) (*mlx.Array, error) {
		var j *Judgement
		if r.Replay && t.Point == (hooks.Point{}) {
			j = &Judgement{OK: !strings.HasSuffix(t.Name, ".layer"), Text: "it is wrong", Want: t.Output.Plus(1)}
		}
		x, next, err := r.Judged(t, j)
		if x == nil && next == Accept {
			x = j.Want
		}
		return x, err
	}
	weight := func(string) []hooks.Parameter {
		return []hooks.Parameter{{Path: "w", Shape: []int{2}, Dtype: mlx.Float32, Array: func() *mlx.Array {
			return mlx.FromFloat32([]float32{3, 5}, 2)
		}}}
	}
	p := &hooks.Points{Func: judged, Step: -1, Parameters: weight}
	p.Value("prompt.embeds", mlx.FromFloat32([]float32{1}, 1))
	p.Value("sigmas", mlx.FromFloat32([]float32{1, 0.5, 0}, 3))
	p.Value("timesteps", mlx.FromFloat32([]float32{1000, 500}, 2))
	x := mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
	for step := range steps {
		p.Step = step
		in := []hooks.Arg{{Key: "0", Array: x}}
		mlx.WithScope(func() { p.Inner(hooks.Module{Name: "transformer.block.layer", Class: "t.Layer"}, "q", x.Plus(10)) })
		p.Further(hooks.Module{Name: "transformer.block.layer", Class: "t.Layer"}, "1", x.Plus(20))
		y := p.Pass(hooks.Module{Name: "transformer.block.layer", Class: "t.Layer"}, x.Times(2), in)
		y = p.Pass(hooks.Module{Name: "transformer.block", Class: "t.Block"}, y.Plus(1), in)
		p.Negative = true
		y = p.Pass(hooks.Module{Name: "transformer.block", Class: "t.Block"}, y.Plus(1), in)
		p.Negative = false
		x = p.Value("latents", y)
	}
	variables := map[string]any{"x": x, "count": 3}
	runs.Checkpoint("skipped", variables, nil, runs.Skip)
	runs.Checkpoint("end", variables, nil)
	return x.Sum(1).Sum(0).Item()
}

// do executes a command and returns the answer's result, or the error.
func do[R any](r *run, command string, arguments any) (result R, failed string) {
	r.t.Helper()
	text, err := json.Marshal(arguments)
	if err != nil {
		r.t.Fatal(err)
	}
	if arguments == nil {
		text = nil
	}
	a := r.Handle(context.Background(), protocol.Request{Command: command, Arguments: text})
	if !a.OK {
		return result, a.Error
	}
	if err := json.Unmarshal(a.Result, &result); err != nil {
		r.t.Fatal(err)
	}
	return result, ""
}

// must is do for a command that succeeds.
func must[R any](r *run, command string, arguments any) R {
	r.t.Helper()
	result, failed := do[R](r, command, arguments)
	if failed != "" {
		r.t.Fatalf("%s %+v: %s", command, arguments, failed)
	}
	return result
}

var wait = protocol.ResumeArguments{MaxWait: 60}

// goOn lets the run go on, and expects a stop at a tensor or, with "", the end.
func (r *run) goOn(command, name string) *protocol.Stop {
	r.t.Helper()
	s := must[protocol.Status](r, command, wait)
	switch {
	case name == "" && s.State != protocol.Finished:
		r.t.Fatalf("%s: state %s at %+v, expected finished", command, s.State, s.Stop)
	case name == "":
	case s.Stop == nil:
		r.t.Fatalf("%s: state %s %s, expected a stop at %s", command, s.State, s.Error, name)
	case s.Stop.Name != name:
		r.t.Fatalf("%s: stopped at %s, expected %s", command, s.Stop.Name, name)
	}
	return s.Stop
}

func pointer[T any](v T) *T { return &v }

func TestStops(t *testing.T) {
	r := start(t, false)
	if s := r.Status(); s.State != protocol.Starting {
		t.Errorf("state %s, expected starting", s.State)
	}
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.block", Step: pointer(1)})
	stop := r.goOn(protocol.Continue, "transformer.block@1")
	if stop.Reason != "breakpoint 1" || stop.Hit != 1 || *stop.Sigma != 0.5 || *stop.Timestep != 500 || stop.Class != "Block" {
		t.Errorf("stop %+v", stop)
	}
	p := must[protocol.Place](r, protocol.Location, nil)
	if len(p.Around) != 1 || p.Around[0].Name != "transformer" || p.Before[len(p.Before)-1] != "transformer.block.layer@1" {
		t.Errorf("around %v, before %v", p.Around, p.Before)
	}
	if p.Location == nil || !strings.HasSuffix(p.Location.File, "session_test.go") {
		t.Errorf("location %+v", p.Location)
	}
	r.goOn(protocol.Next, "transformer.block@1#1")
	r.goOn(protocol.Next, "latents@1")
	r.goOn(protocol.Continue, "")
	if got := <-r.result; got != 10*4+2*8+8 {
		t.Errorf("the run without replacements returned %v", got)
	}
}

func TestNextOutStep(t *testing.T) {
	r := start(t, false)
	r.goOn(protocol.Next, "prompt.embeds")
	if _, err := do[protocol.Status](r, protocol.Out, wait); !strings.Contains(err, "not inside another module") {
		t.Errorf("out of prompt.embeds: %q", err)
	}
	for argument, want := range map[string]string{"numbers": "unknown field", "number": "cannot unmarshal string"} {
		if _, err := do[any](r, protocol.Remove, map[string]string{argument: "3"}); !strings.Contains(err, want) {
			t.Errorf("%s: %q, expected %s", argument, err, want)
		}
	}
	r.goOn(protocol.Step, "transformer.block.layer@0")
	r.goOn(protocol.Out, "transformer.block@0")
	r.goOn(protocol.Step, "transformer.block.layer@1")
	if _, err := do[protocol.Status](r, protocol.Continue, protocol.ResumeArguments{Until: "latents*", MaxWait: 60}); err != "" {
		t.Fatal(err)
	}
	if s := r.Status(); s.Stop == nil || s.Stop.Name != "latents@1" || s.Stop.Reason != "until" {
		t.Errorf("stop %+v", s.Stop)
	}
	if _, err := do[protocol.Status](r, protocol.Out, wait); !strings.Contains(err, "not inside another module") {
		t.Errorf("out of latents: %q", err)
	}
	r.goOn(protocol.Continue, "")
}

func TestVariablesAndSet(t *testing.T) {
	r := start(t, false)
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.block.layer", Once: true})
	r.goOn(protocol.Continue, "transformer.block.layer@0")
	if all := must[protocol.Breakpoints](r, protocol.Breaks, nil); len(all.Breakpoints) != 0 {
		t.Errorf("breakpoints %+v, expected that the one for one stop is gone", all)
	}
	v := must[protocol.Variables](r, protocol.Vars, protocol.VarsArguments{Weights: true})
	want := map[string]float64{"out": 5, `outs["1"]`: 22.5, `inp["0"]`: 2.5, `inner["q"]`: 12.5}
	for _, one := range v.Variables {
		if mean, ok := want[one.Name]; !ok || float64(one.Stats.Mean) != mean {
			t.Errorf("%s: mean %v, expected %v", one.Name, one.Stats.Mean, mean)
		}
		delete(want, one.Name)
	}
	if len(want) > 0 || len(v.Parameters) != 1 || v.Parameters[0].Stats == nil || v.Parameters[0].Stats.Mean != 4 {
		t.Errorf("without %v; parameters %+v", want, v.Parameters)
	}
	const program = "d = out - inp['0']\n(d.sum(), inner['q'].max(), w['w'].min())"
	e := must[protocol.Evaluated](r, protocol.Eval, protocol.EvalArguments{Source: program})
	if e.Text != "(10.0, 14.0, 3.0)" {
		t.Errorf("eval: %s", e.Text)
	}
	if e := must[protocol.Evaluated](r, protocol.Eval, protocol.EvalArguments{Source: "keep('before', out)\nd.shape"}); e.Text != "(2, 2)" {
		t.Errorf("what an expression defined is %s at the next one", e.Text)
	}
	saved := must[protocol.Saved](r, protocol.Save, protocol.SaveArguments{Name: "mine"})
	if _, err := os.Stat(saved.File); err != nil {
		t.Error(err)
	}
	if _, err := do[protocol.Replaced](r, protocol.Set, protocol.SetArguments{Source: "mine@float16"}); !strings.Contains(err, "float16") {
		t.Errorf("set with another dtype: %q", err)
	}
	r.goOn(protocol.Continue+"", "")
	<-r.result
}

func TestSetChangesTheResult(t *testing.T) {
	r := start(t, false)
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "latents", Step: pointer(0)})
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.block.layer", Step: pointer(0)})
	r.goOn(protocol.Continue, "transformer.block.layer@0")
	must[protocol.Saved](r, protocol.Save, nil)
	r.goOn(protocol.Continue, "latents@0")
	from := must[protocol.Replaced](r, protocol.Set, protocol.SetArguments{Source: "transformer.block.layer@0"})
	if from.Name != "latents@0" || !strings.Contains(from.Source, "transformer.block.layer@0.safetensors") {
		t.Errorf("%+v", from)
	}
	r.goOn(protocol.Continue, "")
	if got := <-r.result; got != 10*2*2+2*4 { // the second step on twice the first latents
		t.Errorf("result %v", got)
	}
}

func TestConditions(t *testing.T) {
	r := start(t, false)
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.*", If: "out.max() > 9 and timestep < 900"})
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.block", Negative: true, Step: pointer(0)})
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.block.layer:q", Watch: true})
	never := must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "transformer.blocks"})
	s := must[protocol.Status](r, protocol.Continue, wait) // the model is loaded
	if s.State != protocol.Starting || len(s.NeverHit) != 1 || s.NeverHit[0].Number != never.Number || len(s.NeverHit[0].Near) == 0 {
		t.Errorf("%s, never hit %+v", s.State, s.NeverHit)
	}
	r.goOn(protocol.Continue, "transformer.block@0#1")
	s = must[protocol.Status](r, protocol.Continue, wait)
	if s.Stop == nil || s.Stop.Name != "transformer.block.layer@1" || len(s.Watched) != 1 || s.Watched[0].Number != 3 {
		t.Fatalf("%+v, watched %+v", s.Stop, s.Watched)
	}
	must[protocol.Removed](r, protocol.Remove, protocol.RemoveArguments{Number: 1})
	s = must[protocol.Status](r, protocol.Continue, wait)
	if s.State != protocol.Finished || len(s.NeverHit) != 1 || s.NeverHit[0].Number != never.Number || len(s.NeverHit[0].Near) == 0 {
		t.Errorf("%s, never hit %+v", s.State, s.NeverHit)
	}
}

func TestConditionWithoutTruth(t *testing.T) {
	r := start(t, false)
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "latents", If: "out.mean()"})
	stop := r.goOn(protocol.Continue, "latents@0")
	if !strings.Contains(stop.Problem, "expected True or False") {
		t.Errorf("problem %q", stop.Problem)
	}
}

func TestDiffers(t *testing.T) {
	r := start(t, true)
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Differs: true})
	stop := r.goOn(protocol.Continue, "transformer.block.layer@0")
	if stop.Differs != "it is wrong" {
		t.Errorf("%+v", stop)
	}
	if e := must[protocol.Evaluated](r, protocol.Eval, protocol.EvalArguments{Source: "(want - out).max()"}); e.Text != "1.0" {
		t.Errorf("want - out: %s", e.Text)
	}
	r.goOn(protocol.Accept, "transformer.block.layer@1")
	r.goOn(protocol.Continue, "")
	if got := <-r.result; got != 10*4+4*(1+2)*2+2*4 {
		t.Errorf("result %v", got)
	}
}

func TestRefused(t *testing.T) {
	r := start(t, false)
	for _, c := range []struct {
		command   string
		arguments any
		expected  string
	}{
		{"dance", nil, `unknown command "dance"`},
		{protocol.Location, nil, "the run has not begun"},
		{protocol.Out, wait, "the run has not begun"},
		{protocol.Break, protocol.BreakArguments{}, "is missing"},
		{protocol.Break, protocol.BreakArguments{Glob: "["}, "not a pattern"},
		{protocol.Break, protocol.BreakArguments{Glob: "!x"}, "does not leave them out"},
		{protocol.Break, protocol.BreakArguments{Glob: "x", If: "out +"}, "if: line 1"},
		{protocol.Break, protocol.BreakArguments{Glob: "x", If: "otu > 1"}, "otu"},
		{protocol.Break, protocol.BreakArguments{Differs: true}, "only a replay"},
		{protocol.Break, protocol.BreakArguments{File: "x.py", Line: 3}, "only the reference"},
		{protocol.Break, map[string]any{"glob": "x", "color": 1}, "color"},
		{protocol.Break, protocol.BreakArguments{Glob: "x", Step: pointer(-2)}, "step -2"},
		{protocol.Remove, protocol.RemoveArguments{Number: 7}, "no breakpoint 7"},
		{protocol.Continue, protocol.ResumeArguments{MaxWait: -1}, "max_wait"},
		{protocol.Next, protocol.ResumeArguments{Until: "x"}, "until"},
	} {
		if _, err := do[any](r, c.command, c.arguments); !strings.Contains(err, c.expected) {
			t.Errorf("%s %+v: %q, expected %q", c.command, c.arguments, err, c.expected)
		}
	}
	r.goOn(protocol.Next, "prompt.embeds")
	r.goOn(protocol.Next, "sigmas")
	r.goOn(protocol.Next, "timesteps")
	for _, c := range []struct {
		command   string
		arguments any
		expected  string
	}{
		{protocol.Break, protocol.BreakArguments{Glob: "transformer.blokc"}, "similar: transformer.block"},
		{protocol.Break, protocol.BreakArguments{Glob: "latents", Step: pointer(2)}, "2 evaluations"},
		{protocol.Eval, protocol.EvalArguments{Source: "out."}, "line 1"},
		{protocol.Eval, protocol.EvalArguments{Source: "want"}, "want"},
		{protocol.Eval, protocol.EvalArguments{Source: "while True: pass"}, "steps"},
		{protocol.Set, protocol.SetArguments{Source: "nowhere.safetensors"}, "nowhere.safetensors"},
		{protocol.Set, protocol.SetArguments{Source: "transformer.block:in.0=x"}, "is an input"},
		{protocol.Accept, wait, "no tensor of a reference"},
	} {
		if _, err := do[any](r, c.command, c.arguments); !strings.Contains(err, c.expected) {
			t.Errorf("%s %+v: %q, expected %q", c.command, c.arguments, err, c.expected)
		}
	}
	r.goOn(protocol.Continue, "")
	if _, err := do[any](r, protocol.Vars, nil); !strings.Contains(err, "has finished") {
		t.Errorf("vars after the end: %q", err)
	}
}

func TestTerminate(t *testing.T) {
	r := start(t, false)
	r.goOn(protocol.Next, "prompt.embeds")
	s := must[protocol.Status](r, protocol.Terminate, nil)
	if s.State != protocol.Terminated || s.Error != "" {
		t.Errorf("%+v", s)
	}
}

func TestTimeOut(t *testing.T) {
	r := start(t, false)
	r.gate = make(chan struct{})
	must[protocol.Breakpoint](r, protocol.Break, protocol.BreakArguments{Glob: "latents"})
	s := must[protocol.Status](r, protocol.Continue, protocol.ResumeArguments{})
	if !s.TimedOut || s.State == protocol.Stopped {
		t.Errorf("%+v", s)
	}
	time.AfterFunc(200*time.Millisecond, func() { close(r.gate) }) // when the next command waits
	r.goOn(protocol.Continue, "latents@0")
}

func TestCheckpoint(t *testing.T) {
	r := start(t, false)
	runs.StopAtCheckpoints(r.Checkpoint)
	defer runs.StopAtCheckpoints(nil)
	stop := r.goOn(protocol.Continue, "end")
	if stop.Reason != "checkpoint end" {
		t.Errorf("%+v", stop)
	}
	v := must[protocol.Variables](r, protocol.Vars, nil)
	if len(v.Variables) != 2 || v.Variables[0].Name != `inner["x"]` || v.Variables[1].Value != "3" {
		t.Errorf("%+v", v)
	}
	if p := must[protocol.Place](r, protocol.Location, nil); p.Location == nil || !strings.HasSuffix(p.Location.File, "session_test.go") {
		t.Errorf("%+v", p.Location)
	}
	if e := must[protocol.Evaluated](r, protocol.Eval, protocol.EvalArguments{Source: "inner['x'].shape"}); e.Text != "(2, 2)" {
		t.Errorf("%+v", e)
	}
	if _, err := do[any](r, protocol.Set, protocol.SetArguments{Source: "x"}); !strings.Contains(err, "no output to set") {
		t.Errorf("set: %q", err)
	}
	r.goOn(protocol.Continue, "")
	files, err := filepath.Glob(filepath.Join(r.Tree.Root, "runs/latest/gomflux/checkpoints/*.json"))
	if err != nil || len(files) != 2 {
		t.Errorf("files %v", files)
	}
}

// TestTrace checks that each line is whole, and that stops have their variables.
func TestTrace(t *testing.T) {
	r := start(t, false)
	r.goOn(protocol.Next, "prompt.embeds")
	must[protocol.Evaluated](r, protocol.Eval, protocol.EvalArguments{Source: "out.shape"})
	do[any](r, protocol.Eval, protocol.EvalArguments{Source: "out."})
	r.goOn(protocol.Continue, "")
	<-r.err
	text, err := os.ReadFile(r.Status().Trace)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for l := range strings.Lines(string(text)) {
		var one struct {
			Event, Error string
			Result       struct{ Variables *protocol.Variables }
		}
		if err := json.Unmarshal([]byte(l), &one); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		if one.Event == "stop" && (one.Result.Variables == nil || one.Result.Variables.Variables[0].Name != "out") {
			t.Errorf("stop without variables: %s", l)
		}
		if one.Error != "" {
			one.Event += " failed"
		}
		events = append(events, one.Event)
	}
	if got := strings.Join(events, " "); got != "start stop next eval eval failed end continue" &&
		got != "start stop next eval eval failed continue end" {
		t.Errorf("events %s", got)
	}
}

func TestLog(t *testing.T) {
	r := start(t, false)
	if l, err := ReadLines(r.Session.Output, 1); err != nil || len(l) != 1 || l[0] != "second" {
		t.Errorf("%q, %v", l, err)
	}
}

// TestTwoClients sends commands from several goroutines while the run is stopped.
func TestTwoClients(t *testing.T) {
	r := start(t, false)
	r.goOn(protocol.Next, "prompt.embeds")
	done := make(chan string)
	for range 4 {
		go func() {
			_, err := do[protocol.Evaluated](r, protocol.Eval, protocol.EvalArguments{Source: "out.sum()"})
			done <- err
		}()
	}
	for range 4 {
		select {
		case err := <-done:
			if err != "" {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("no answer")
		}
	}
}
