package parity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
)

// record writes what a whole dump has under the names that match a glob, as the
// reference would if it were asked for these. It returns how many there are.
func record(from, to string, globs []string) (int, error) {
	var settings map[string]any
	data, err := os.ReadFile(filepath.Join(from, "settings.json"))
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(data, &settings); err != nil {
		return 0, err
	}
	var kept []*checkpoint.Array
	keep := func(f *checkpoint.ArrayFile, name, stored string) error {
		if !slices.ContainsFunc(globs, func(glob string) bool { ok, _ := path.Match(glob, name); return ok }) {
			return nil
		}
		x, err := f.Read(stored)
		if err == nil {
			x.Name = name
			kept = append(kept, x)
		}
		return err
	}
	aliases, _ := settings["aliases"].(map[string]any)
	for _, name := range settings["files"].([]any) {
		f, err := checkpoint.OpenArrays(filepath.Join(from, name.(string)))
		if err != nil {
			return 0, err
		}
		defer f.Close()
		for _, info := range f.Tensors() {
			if err := keep(f, info.Name, info.Name); err != nil {
				return 0, err
			}
			for alias, stored := range aliases {
				if stored == info.Name {
					if err := keep(f, alias, info.Name); err != nil {
						return 0, err
					}
				}
			}
		}
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return 0, err
	}
	pictures, err := filepath.Glob(filepath.Join(from, "*.png"))
	if err != nil {
		return 0, err
	}
	for _, name := range pictures {
		data, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(name)), data, 0o666)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := checkpoint.WriteFile(filepath.Join(to, "tensors.safetensors"), kept, nil); err != nil {
		return 0, err
	}
	settings["files"], settings["aliases"] = []string{"tensors.safetensors"}, nil
	if data, err = json.Marshal(settings); err != nil {
		return 0, err
	}
	return len(kept), os.WriteFile(filepath.Join(to, "settings.json"), data, 0o666)
}

// pipelineValues are the globs of the pipeline's values, which every dump has.
var pipelineValues = []string{"prompt.*", "negative.*", "latents*", "noise_pred@*", "sigmas", "timesteps", "vae.decode.in",
	"vae.decode.out", "image"}

// TestBisect plants faults where a run has little, and answers for the
// reference out of one that has all.
func TestBisect(t *testing.T) {
	type search struct {
		fault string
		taps  []string
	}
	for _, c := range randtest.Some(3, []search{
		{"gate and up of the weights swapped", pipelineValues},
		{"GELU in the text encoder's MLP", pipelineValues},
		{"RMSNorm in bfloat16", []string{"latents.init", "image"}},
		{"attention scale missing", append([]string{"transformer.*layers.?@*"}, pipelineValues...)},
		{"bias dropped", []string{"image"}},
		{"velocity with the wrong sign", []string{"latents@*"}},
		{"RoPE theta where q and k are in the dump", pipelineValues},
		{"flux1: T5's table of biases empty", []string{"image"}},
		{"flux1: T5's GELU exact", []string{"image"}},
		{"flux1: CLIP's eps", pipelineValues},
		{"flux1: attention scale missing", pipelineValues},
		{"flux1: q/k norm of the text missing", []string{"latents.init", "image"}},
		{"flux1: stream of the image in half precision", pipelineValues},
		{"flux2: gate and up swapped", []string{"latents.init", "image"}},
		{"flux2: attention of a single block not scaled", pipelineValues},
		{"flux2: bn's mean missing", []string{"image"}},
		{"flux2: latents move the wrong way", []string{"image"}},
		{"qwen: norm of the vision tower takes the mean off", []string{"image"}},
		{"qwen: eps of the text encoder", []string{"image"}},
		{"qwen: stream of the image in half precision", pipelineValues},
		{"qwen: first slice of a causal kernel", []string{"latents.init", "image"}},
		{"qwen: norm of the autoencoder not times the root of its channels", []string{"image"}},
	}) {
		t.Run(c.fault, func(t *testing.T) {
			all := slices.Concat(faults, fluxFaults, qwenFaults)
			f := all[slices.IndexFunc(all, func(f fault) bool { return f.name == c.fault })]
			whole := ordinary
			if f.dump != "" {
				whole = filepath.Join("../models/testdata", f.dump, "dump")
			}
			dir := t.TempDir()
			model, run := filepath.Join(dir, "model"), filepath.Join(dir, "dump")
			if err := os.CopyFS(model, os.DirFS(filepath.Join("../models/testdata", modelOf(t, whole)))); err != nil {
				t.Fatal(err)
			}
			if f.edit != nil {
				f.edit(t, model, run)
			}
			if _, err := record(whole, run, c.taps); err != nil {
				t.Fatal(err)
			}
			asked := map[string]bool{}
			again := func(_ context.Context, of, out string, names []string) error {
				if of != run {
					t.Errorf("asked for more of %s, expected %s", of, run)
				}
				for _, name := range names {
					if asked[name] {
						t.Errorf("asked for %s twice", name)
					}
					asked[name] = true
				}
				n, err := record(whole, out, names)
				t.Logf("asked for %d, such as %s, got %d", len(names), names[0], n)
				return err
			}
			rounds := 0
			var seen []seenTensor
			r, err := Bisect(t.Context(), run, Options{Dtype: exact, Model: model, bug: f.bug, fault: f.fault, seen: &seen}, Bisection{
				Again: again, Folder: filepath.Join(dir, "more"), Round: func(r report.Round) {
					rounds++
					t.Logf("%d tensors: %s", r.Tensors, r.Verdict.Text)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if v := r.Verdict; v.OK || v.Stage != f.stage || v.Module != f.module {
				t.Errorf("found %s in stage %s, expected %s in stage %s", v.Module, v.Stage, f.module, f.stage)
			}
			if rounds < 2 || rounds != len(r.Rounds) || rounds == mostRounds {
				t.Errorf("%d rounds, %d reported", rounds, len(r.Rounds))
			}
			known := r.Verdict.Explained() || idle(r.Rounds[:len(r.Rounds)-1], r.Rounds[len(r.Rounds)-1].Verdict)
			if left := nextToRecord(r.Verdict, seen, asked); r.Verdict.Unseen && len(left) > 0 && !known {
				t.Errorf("ended with questions: %q", left)
			}
		})
	}
}

func TestBisectEnds(t *testing.T) {
	dir := t.TempDir()
	if _, err := record(ordinary, dir, pipelineValues); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(ordinary, "..", "model")
	never := func(context.Context, string, string, []string) error {
		t.Error("asked for more")
		return nil
	}
	r, err := Bisect(t.Context(), dir, Options{Dtype: exact, Model: model}, Bisection{Again: never})
	if err != nil || !r.Verdict.OK || len(r.Rounds) != 1 {
		t.Errorf("of a run that holds: %+v, %v", r, err)
	}
	idleRound := report.Round{Asked: []string{"x"}, Verdict: r.Verdict}
	if other := (report.Verdict{Tensor: "y"}); !idle([]report.Round{idleRound}, r.Verdict) || idle(nil, r.Verdict) ||
		idle([]report.Round{idleRound}, other) {
		t.Error("a round that brings nothing is one that leaves the verdict as it is")
	}
	bug := onto("transformer.layers.0.attention.to_v@0", func(x *mlx.Array) *mlx.Array { return x.Square() })
	broken := errors.New("no such pipeline")
	_, err = Bisect(t.Context(), dir, Options{Dtype: exact, Model: model, bug: bug},
		Bisection{Again: func(context.Context, string, string, []string) error { return broken }})
	if !errors.Is(err, broken) {
		t.Errorf("%v, expected the reference's error", err)
	}
	// a reference that gives nothing new is not asked for ever
	asked := 0
	r, err = Bisect(t.Context(), dir, Options{Dtype: exact, Model: model, bug: bug},
		Bisection{Again: func(_ context.Context, _, out string, _ []string) error {
			asked++
			_, err := record(ordinary, out, []string{"image"})
			return err
		}})
	if err != nil || r.Verdict.OK || asked == 0 || asked >= mostRounds || !strings.Contains(r.Verdict.Text, "noise_pred@0") {
		t.Errorf("asked %d times: %v", asked, err)
	}
	_, err = Bisect(t.Context(), dir, Options{Dtype: exact, Model: model, bug: bug},
		Bisection{Again: func(_ context.Context, _, out string, _ []string) error {
			_, err := record("../models/testdata/zimage-small/dump", out, []string{"latents.init"})
			return err
		}})
	if err == nil || !strings.Contains(err.Error(), "the same run") {
		t.Errorf("%v, expected that it is not the same run", err)
	}
}

// Modules inside the one that differs must be found behind a correct tensor: its own second
// output, or the output of a module of its other stream.
func TestNextInsideModule(t *testing.T) {
	output := func(name string, depth int, recorded bool) seenTensor {
		return seenTensor{ours: name, name: name, kind: hooks.Output, depth: depth, recorded: recorded, recordable: true}
	}
	for _, c := range []struct {
		name, wrong string
		seen        []seenTensor
		want        []string
	}{
		{"second output", "blocks.0.attn@0", []seenTensor{
			output("blocks.0.norm1@0", 3, true), output("blocks.0.attn.to_q@0", 4, false),
			output("blocks.0.attn@0:out.1", 3, true), output("blocks.0.attn@0", 3, true),
		}, []string{"blocks.0.attn.to_q@0"}},
		{"other stream", "blocks.1@0:out.1", []seenTensor{
			output("blocks.0.ff@0", 3, false), output("blocks.0@0", 2, true), output("blocks.1.ff.net.2@0", 4, false),
			output("blocks.1.ff@0", 3, false), output("blocks.1.ff_context@0", 3, true), output("blocks.1@0:out.1", 2, true),
			output("blocks.1@0", 2, true),
		}, []string{"blocks.1.ff@0", "blocks.1.ff.net.2@0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := report.Verdict{Tensor: c.wrong, Module: report.ModuleOf(c.wrong)}
			if got := nextToRecord(v, c.seen, map[string]bool{}); !slices.Equal(got, c.want) {
				t.Errorf("next are %q, expected %q", got, c.want)
			}
		})
	}
}

func TestSpread(t *testing.T) {
	seen := []seenTensor{{name: "x", recordable: true, kind: hooks.Input}}
	for i := range 1000 {
		seen = append(seen, seenTensor{name: fmt.Sprint(i), recordable: true, depth: 3})
	}
	names := choose(seen, nil)
	if len(names) != mostAsked || names[mostAsked-1] != "999" || names[0] != "14" {
		t.Errorf("chose %q", names)
	}
	names = choose(append(seen, seenTensor{name: "outer", recordable: true, depth: 1}), map[string]bool{"x": true})
	if len(names) != mostAsked || names[0] != "outer" || names[mostAsked-1] != "999" {
		t.Errorf("chose %q", names)
	}
	for i := range mostAsked {
		seen = append(seen, seenTensor{name: fmt.Sprint("outer ", i), recordable: true, depth: 1})
	}
	if names = choose(seen, nil); len(names) != mostAsked || !strings.HasPrefix(names[mostAsked-1], "outer") {
		t.Errorf("chose %q", names)
	}
}
