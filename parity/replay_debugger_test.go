package parity

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

// walk replays zimage-ordinary with faults under a debugging session that stops where tensors
// differ, and goes on with a command at each stop. It returns the stops and the rep.
func walk(t *testing.T, command string, faults ...func(*replay, hooks.Tap) *mlx.Array) (stops []*protocol.Stop, rep *report.Report) {
	t.Helper()
	tree, err := runs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	output, err := debugger.NewOutput(tree)
	if err != nil {
		t.Fatal(err)
	}
	output.Close()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	s, err := debugger.New(debugger.Options{
		Name: "1", Output: output.Name(), Tree: tree, Replay: true, Context: ctx, Terminate: cancel,
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := s.Begin(ctx)
		if err == nil {
			rep, err = Replay(ctx, ordinary, Options{Dtype: exact, bug: either(faults...), Debugger: s.Judged,
				Loaded: func(p *models.Pipeline) { s.Loaded(p.Modules()) }})
		}
		s.End(err, 0)
	}()
	do := func(command string, arguments any) (status protocol.Status) {
		text, err := json.Marshal(arguments)
		if err != nil {
			t.Fatal(err)
		}
		a := s.Handle(ctx, protocol.Request{Command: command, Arguments: text})
		if !a.OK {
			t.Fatalf("%s: %s", command, a.Error)
		}
		if err := json.Unmarshal(a.Result, &status); err != nil {
			t.Fatal(err)
		}
		return status
	}
	do(protocol.Break, protocol.BreakArguments{Differs: true})
	wait := protocol.ResumeArguments{MaxWait: 300}
	const most = 40
	for status := do(protocol.Continue, wait); status.State == protocol.Stopped && len(stops) < most; status = do(command, wait) {
		stops = append(stops, status.Stop)
	}
	if len(stops) == most {
		cancel(nil)
	} else if status := s.Status(); status.State != protocol.Finished {
		t.Fatalf("%s: %s", status.State, status.Error)
	}
	<-done
	s.Close()
	return stops, rep
}

// TestWalk accepts the reference's tensor at each stop, so that faults of three components are seen
// in one walk, each at the module that has it.
func TestWalk(t *testing.T) {
	stops, rep := walk(t, protocol.Accept,
		on("text_encoder.layers.0.mlp.act_fn", func(_ *replay, tap hooks.Tap) *mlx.Array { return gelu(tap.Inputs[0].Array) }),
		onto("transformer.layers.0.attention.to_k@0", func(x *mlx.Array) *mlx.Array { return x.Times(1.1) }),
		onto("vae.decode.in", func(x *mlx.Array) *mlx.Array { return x.Times(2) }))
	want := []string{"text_encoder.layers.0.mlp.act_fn", "transformer.layers.0.attention.to_k@0", "vae.decode.in"}
	var names []string
	for _, s := range stops {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, want) {
		t.Fatalf("stops at %q, expected %q", names, want)
	}
	if !strings.Contains(stops[0].Differs, "is wrong") || !strings.Contains(stops[2].Differs, "2 times the reference") {
		t.Errorf("%q, %q", stops[0].Differs, stops[2].Differs)
	}
	if rep.Verdict.OK || rep.Verdict.Module != want[0] || !slices.Equal(rep.Verdict.Others, want[1:]) {
		t.Errorf("verdict %+v", rep.Verdict)
	}
}

// TestWalkWithOwnTensors goes on with the wrong tensor, which makes later ones wrong too.
func TestWalkWithOwnTensors(t *testing.T) {
	stops, _ := walk(t, protocol.Continue,
		onto("transformer.layers.0.attention.to_k@0", func(x *mlx.Array) *mlx.Array { return x.Times(1.1) }))
	if len(stops) < 2 || stops[0].Name != "transformer.layers.0.attention.to_k@0" {
		t.Errorf("%d stops", len(stops))
	}
}

// TestWalkUnchanged has no stops in a replay without faults.
func TestWalkUnchanged(t *testing.T) {
	stops, rep := walk(t, protocol.Continue)
	if len(stops) > 0 || !rep.Verdict.OK {
		t.Errorf("%d stops, verdict %+v", len(stops), rep.Verdict)
	}
}
