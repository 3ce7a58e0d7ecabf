package runs_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/runs"
)

// The package's session is what a pipeline takes.
var _ models.Overrides = (*runs.Session)(nil)

const model = "../../models/testdata/zimage-ordinary/model"

var request = models.Request{Prompt: "a red circle", Height: 16, Width: 24, Steps: 2, Guidance: 2, Seed: 5, MaxSequenceLength: 64}

// run makes a picture in a session. The model's folder is dir.
func run(t *testing.T, tree *runs.Tree, dir string, o runs.Options) (*runs.Session, *models.Result, error) {
	t.Helper()
	s, err := runs.NewSession(tree, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res, err := generateFrom(s, dir)
	return s, res, err
}

// generateFrom makes an image in a session with the model in a folder.
func generateFrom(s *runs.Session, dir string) (res *models.Result, err error) {
	r := request
	r.Hook, r.Overrides = s.Hook, s
	err = mlx.Do(context.Background(), func() error {
		requests := func(*models.Pipeline) []models.Request { return []models.Request{r} }
		p, err := models.Load(os.DirFS(dir), models.LoadOptions{Dtype: new(mlx.Float32), Requests: requests, Overrides: s})
		if err != nil {
			return err
		}
		defer p.Close()
		res, err = p.Generate(r)
		return err
	})
	return res, err
}

func replacement(t *testing.T, s string) runs.Replacement {
	t.Helper()
	r, err := runs.ParseReplacement(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSession(t *testing.T) {
	tree, _ := open(t)
	s, want, err := run(t, tree, model, runs.Options{Save: []string{
		"latents", "*.embeds", "vae.decode.*", "transformer.layers.0.attention*", "!*to_?*", "transformer@1:in.*", "nothing*",
	}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := tree.List()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name)
		if e.Record == nil || !strings.HasSuffix(e.Record.Location.File, ".go") || e.Record.Location.Line == 0 {
			t.Errorf("%s: %+v", e.Name, e.Record)
		}
	}
	for _, name := range []string{
		"latents@0", "latents@1", "prompt.embeds", "negative.embeds", "vae.decode.in", "vae.decode.out",
		"transformer.layers.0.attention@0", "transformer.layers.0.attention@1#1", "transformer.layers.0.attention@0:q",
		"transformer.layers.0.attention.norm_q@0",
		"transformer.layers.0.attention@0:in.0",
	} {
		if !slices.Contains(names, name) {
			t.Errorf("%s was not saved", name)
		}
	}
	for _, name := range names {
		if strings.Contains(name, ".to_q") || strings.Contains(name, "weights") || strings.HasPrefix(name, "text_encoder") ||
			strings.HasPrefix(name, "transformer@0") {
			t.Errorf("%s was saved", name)
		}
	}
	if e, _ := tree.Find("transformer.layers.0.attention@0"); e.Record == nil || !strings.Contains(e.Record.Location.Function, "Forward") {
		t.Errorf("made at %+v", e.Record)
	}
	if got := s.UnmatchedGlobs(); !slices.Equal(got, []runs.Glob{{Option: "save", Pattern: "nothing*"}}) {
		t.Errorf("unmatched globs %q", got)
	}
	if err := s.Unmatched(); err != nil {
		t.Error(err)
	}
	trace, err := os.ReadFile(filepath.Join(tree.Latest(runs.Gomflux), "traces", "taps.jsonl"))
	if err != nil || strings.Count(string(trace), "\n") < len(s.Seen()) ||
		!strings.Contains(string(trace), `{"name":"vae.decode.in","point":"output","shape":[1,4,4,6],"dtype":"float32"}`) {
		t.Errorf("trace of %d lines, %v", strings.Count(string(trace), "\n"), err)
	}
	mlxtest.Do(t, func() { // the harness reads the run
		ref, err := parity.OpenRun(os.DirFS(tree.Latest(runs.Gomflux)))
		if err != nil {
			t.Fatal(err)
		}
		if x := ref.Array("latents@1"); x == nil || !slices.Equal(x.Shape(), []int{1, 4, 4, 6}) {
			t.Errorf("found %v", x)
		}
	})

	// the vae alone makes the same picture of what was saved
	files := filepath.Join(t.TempDir(), "kept")
	if err := os.Rename(tree.Latest(runs.Gomflux), files); err != nil {
		t.Fatal(err)
	}
	latents := filepath.Join(files, "tensors", "latents@1.safetensors")
	alone := t.TempDir()
	index, err := os.ReadFile(filepath.Join(model, "model_index.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(alone, "model_index.json"), index, 0o666)
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(alone, "vae"), os.DirFS(filepath.Join(model, "vae")))
	}
	if err != nil {
		t.Fatal(err)
	}
	load := []runs.Replacement{replacement(t, "latents@1="+latents)}
	s, got, err := run(t, tree, alone, runs.Options{Load: load})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tree.Latest(runs.Gomflux)); err == nil || s.Run() != nil {
		t.Error("a run was recorded though nothing was to be saved")
	}
	if !slices.Equal(got.Image.Pix, want.Image.Pix) {
		t.Error("another picture")
	}
	if err := s.Unmatched(); err != nil {
		t.Error(err)
	}
	if _, _, err := run(t, tree, alone, runs.Options{Load: load, Save: []string{"vae.decode.in"}}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(tree.Latest(runs.Gomflux), "settings.json")); err != nil ||
		!strings.Contains(string(text), latents) {
		t.Errorf("what was replaced is not recorded: %s, %v", text, err)
	}

	// a module's output, in every step
	x, err := checkpoint.FromFloat32("zero", []int{1, 1}, []float32{0})
	if err != nil {
		t.Fatal(err)
	}
	zero := filepath.Join(t.TempDir(), "zero.npy")
	if err := checkpoint.WriteFile(zero, []*checkpoint.Array{x}, nil); err != nil {
		t.Fatal(err)
	}
	for load, want := range map[string]string{
		"transformer.layers.0=" + zero: "transformer.layers.0@0: the replacement does not fit: " + zero +
			" has the shape [1 1], expected",
		"transformer@0=" + latents + "@bf16": "transformer@0: the replacement does not fit: " + latents + "@bfloat16 has the ",
		"transformer.layers.0@0=" + filepath.Join(files, "tensors", "transformer.layers.0.attention@0.safetensors") +
			"@f16": "has the dtype float16, expected float32 (append @float32 to cast it)",
		"prompt.embeds=" + zero + "@f16": "prompt.embeds has dtype float16, expected float32",
	} {
		if _, _, err := run(t, tree, model, runs.Options{Load: []runs.Replacement{replacement(t, load)}}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: found %v, expected %q", load, err, want)
		}
	}
	s, got, err = run(t, tree, model, runs.Options{Load: []runs.Replacement{
		replacement(t, "transformer.layers.0.attention="+filepath.Join(files, "tensors", "transformer.layers.0.attention@0.safetensors")),
		replacement(t, "transformer.layer.0="+zero),
	}})
	if err != nil || slices.Equal(got.Image.Pix, want.Image.Pix) {
		t.Errorf("replacing what a layer makes changed nothing: %v", err)
	}
	if err := s.Unmatched(); err == nil || !strings.Contains(err.Error(),
		"the run had no tensor transformer.layer.0 to be replaced by "+zero+" (similar: transformer.layers.0") {
		t.Errorf("found %v", err)
	}
}

func TestExit(t *testing.T) {
	tree, _ := open(t)
	s, _, err := run(t, tree, model, runs.Options{Save: []string{"transformer.layers.0"}, ExitAfter: "transformer.layers.0"})
	if !errors.Is(err, runs.ErrExit) || s.Last() != "transformer.layers.0@0" || s.Run().Saved() != 1 {
		t.Errorf("found %v after %s, %d saved", err, s.Last(), s.Run().Saved())
	}
	s, _, err = run(t, tree, model, runs.Options{ExitAfter: "transformer.layers.99"})
	if err != nil || s.Run() != nil {
		t.Fatal(err)
	}
	if err := s.Unmatched(); err == nil || !strings.Contains(err.Error(),
		"the run had no tensor transformer.layers.99 to end after (similar: transformer.layers.") {
		t.Errorf("found %v", err)
	}
}

// TestNames finds a tensor by its name, on the side that has it.
func TestNames(t *testing.T) {
	tree, _ := open(t)
	if _, err := runs.NewSession(tree, runs.Options{Load: []runs.Replacement{replacement(t, "latents@1")}}); !errors.Is(err,
		runs.ErrNotFound) {
		t.Errorf("found %v", err)
	}
	_, want, err := run(t, tree, model, runs.Options{Save: []string{"latents"}})
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := run(t, tree, model, runs.Options{Load: []runs.Replacement{replacement(t, "latents@1")}})
	if err != nil || !slices.Equal(got.Image.Pix, want.Image.Pix) {
		t.Errorf("another picture, %v", err)
	}
}

// TestSavedNames puts tensors of other names, and other dtypes, in the place of
// a run's, from the reference's side and from this one.
func TestSavedNames(t *testing.T) {
	tree, warnings := open(t)
	_, want, err := run(t, tree, model, runs.Options{Save: []string{"latents"}})
	if err != nil {
		t.Fatal(err)
	}
	saved, err := tree.Load("latents@1")
	if err != nil {
		t.Fatal(err)
	}
	saved.Name = "theirs:z"
	ref := filepath.Join(tree.Latest(runs.Reference), "tensors")
	if err := os.MkdirAll(ref, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.WriteFile(filepath.Join(ref, "x.safetensors"), []*checkpoint.Array{saved}, nil); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"latents@1=theirs:z", "latents@1=theirs:z@float32", "latents@1@float32"} {
		_, got, err := run(t, tree, model, runs.Options{Save: []string{"latents"}, Load: []runs.Replacement{replacement(t, from)}})
		if err != nil || !slices.Equal(got.Image.Pix, want.Image.Pix) {
			t.Errorf("%s: another picture, %v", from, err)
		}
	}
	settings, err := os.ReadFile(filepath.Join(tree.Latest(runs.Gomflux), "settings.json"))
	if err != nil || !strings.Contains(string(settings), "latents@1.safetensors:latents@1@float32") {
		t.Errorf("the cast is not recorded: %s, %v", settings, err)
	}
	if _, _, err := run(t, tree, model, runs.Options{Load: []runs.Replacement{replacement(t, "latents@1=theirs:z@f16")}}); err == nil ||
		!strings.Contains(err.Error(), "has dtype float16, expected float32") {
		t.Errorf("found %v", err)
	}
	_, err = runs.NewSession(tree, runs.Options{Load: []runs.Replacement{replacement(t, "latents@1=theirs:y")}})
	if !errors.Is(err, runs.ErrNotFound) || !strings.Contains(err.Error(), "similar: theirs:z), and no file has that name") {
		t.Errorf("found %v", err)
	}
	if len(*warnings) > 0 {
		t.Errorf("warnings %q", *warnings)
	}
	saved.Name = "latents@1" // which is on both sides now
	if err := checkpoint.WriteFile(filepath.Join(ref, "y.safetensors"), []*checkpoint.Array{saved}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err = runs.NewSession(tree, runs.Options{Load: []runs.Replacement{replacement(t, "latents@1")}}); err != nil ||
		len(*warnings) != 1 || !strings.Contains((*warnings)[0], "is saved on both sides") {
		t.Errorf("warnings %q, %v", *warnings, err)
	}
}

// TestSavedByCode has what a model's code saves in the tree of a session that
// saves nothing itself.
func TestSavedByCode(t *testing.T) {
	t.Setenv("GOMFLUX_LOG_DIR", filepath.Join(t.TempDir(), "elsewhere"))
	tree, _ := open(t)
	file := filepath.Join(t.TempDir(), "x.npy")
	if err := checkpoint.WriteFile(file, []*checkpoint.Array{tensor(t, "x", 1, 2)}, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := runs.NewSession(tree, runs.Options{Load: []runs.Replacement{replacement(t, "x="+file)}})
		if err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			x, err := s.Array("x", -1)
			if err != nil {
				t.Fatal(err)
			}
			runs.Save("q", x)
		})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if tree.Busy(runs.Gomflux) {
		t.Error("the run has not ended")
	}
	if archived, err := tree.Archived(); err != nil || len(archived) != 1 {
		t.Errorf("archived %+v, %v, expected one of two runs", archived, err)
	}
	text, err := os.ReadFile(filepath.Join(tree.Latest(runs.Gomflux), "settings.json"))
	if err != nil || !strings.Contains(string(text), file) {
		t.Errorf("what was replaced is not recorded: %s, %v", text, err)
	}
	if e, err := tree.Find("q"); err != nil || e.Name != "q" {
		t.Errorf("found %+v, %v", e, err)
	}
}

// TestEntropy saves what is only computed on request.
func TestEntropy(t *testing.T) {
	tree, _ := open(t)
	s, _, err := run(t, tree, model, runs.Options{Save: []string{"transformer.layers.0*:weights",
		"transformer.layers.0.attention@0:entropy", "!*#1*"}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Run().Saved() != 3 || len(s.UnmatchedGlobs()) > 0 {
		t.Errorf("%d saved, not %q", s.Run().Saved(), s.UnmatchedGlobs())
	}
	entropy, err := tree.Load("transformer.layers.0.attention@0:entropy")
	if err != nil {
		t.Fatal(err)
	}
	weights, err := tree.Load("transformer.layers.0.attention@0:weights")
	if err != nil {
		t.Fatal(err)
	}
	n := weights.Shape[3]
	if !slices.Equal(entropy.Shape, weights.Shape[:3]) {
		t.Fatalf("shape %v of %v", entropy.Shape, weights.Shape)
	}
	w, rows := weights.First(weights.Len()), entropy.First(entropy.Len())
	for i, found := range rows {
		want := 0.0
		for _, p := range w[i*n : (i+1)*n] {
			if p > 0 {
				want -= p * math.Log(p)
			}
		}
		if math.Abs(found-want) > 1e-5 || want == 0 {
			t.Fatalf("row %d: %v, expected %v", i, found, want)
		}
	}
	if s, _, err = run(t, tree, model, runs.Options{Save: []string{"transformer.layers.0*"}}); err != nil ||
		slices.ContainsFunc(s.Seen(), func(name string) bool { return strings.HasSuffix(name, "entropy") }) {
		t.Errorf("the entropy was computed without being asked for: %v", err)
	}
}

func TestFinite(t *testing.T) {
	points := func(s *runs.Session) *hooks.Points { return &hooks.Points{Func: s.Hook, Step: -1} }
	nan := func() *mlx.Array {
		return mlx.FromFloat32([]float32{1, float32(math.NaN()), float32(math.Inf(1)), 2}, 2, 2)
	}
	for name, c := range map[string]struct {
		out func() *mlx.Array
		in  []func() *mlx.Array
		err string
	}{
		"finite": {func() *mlx.Array { return mlx.Zeros(mlx.Float16, 2) }, nil, ""},
		"whole":  {func() *mlx.Array { return mlx.Zeros(mlx.Int32, 2) }, nil, ""},
		"alone":  {nan, nil, "m: 2 of 4 values are not finite (F32 [2 2], 1 to 2, 1 NaN, 1 infinite)"},
		"made here": {nan, []func() *mlx.Array{func() *mlx.Array { return mlx.Full(3, mlx.Float32, 5) }},
			"; its inputs are finite, so this module produced them: in.0 F32 [5] from 3 to 3"},
		"made before": {nan, []func() *mlx.Array{nan},
			"; in.0 already has them, so they come from an earlier module: in.0 F32 [2 2] from 1 to 2, 1 NaN, 1 infinite"},
	} {
		tree, _ := open(t)
		s, err := runs.NewSession(tree, runs.Options{CheckFinite: true})
		if err != nil {
			t.Fatal(err)
		}
		err = mlxtest.Try(func() {
			var in []hooks.Arg
			for i, f := range c.in {
				in = append(in, hooks.Arg{Key: []string{"0", "1"}[i], Array: f()})
			}
			points(s).Pass(hooks.Module{Name: "m"}, c.out(), in)
		})
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: found %v, expected %q", name, err, c.err)
		}
		if _, err := os.Stat(tree.Root); err == nil {
			t.Errorf("%s: a folder of runs was made", name)
		}
	}
}

// TestBounds gives a run a token that the text encoder does not have.
func TestBounds(t *testing.T) {
	tree, _ := open(t)
	x := &checkpoint.Array{Name: "prompt.input_ids", Dtype: checkpoint.I32, Shape: []int{1, 2},
		Data: []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f}}
	file := filepath.Join(t.TempDir(), "ids.safetensors")
	if err := checkpoint.WriteFile(file, []*checkpoint.Array{x}, nil); err != nil {
		t.Fatal(err)
	}
	s, _, err := run(t, tree, model, runs.Options{BoundsCheck: true, Load: []runs.Replacement{replacement(t, "prompt.input_ids="+file)}})
	if err == nil {
		t.Fatal("a token that is not there was looked up")
	}
	if err = s.Explain(err); !strings.Contains(err.Error(), "row 2147483647 (number 1 asked for)") ||
		!strings.Contains(err.Error(), "(the last tensor before it was prompt.input_ids)") {
		t.Errorf("found %v", err)
	}
}

func TestCheck(t *testing.T) {
	for _, s := range []string{"", "=x.npy", "a=", "a:in.0=x.npy", "a@x=y.npy", "a:weights=x.npy", "a:entropy", "a@b"} {
		if r, err := runs.ParseReplacement(s); err == nil {
			t.Errorf("%q is %+v", s, r)
		}
	}
	for want, o := range map[string]runs.Options{
		"is not a pattern of names":       {Save: []string{"a["}},
		`"!" is not a pattern`:            {Save: []string{"!"}},
		"a run cannot end at an input":    {ExitAfter: "a:in.0"},
		"a run cannot end at the entropy": {ExitAfter: "a:entropy"},
		`tensor name "a@"`:                {ExitAfter: "a@"},
		"nowhere.npy: no such file":       {Load: []runs.Replacement{replacement(t, "a=nowhere.npy")}},
		"latents@1 is replaced twice":     {Load: []runs.Replacement{replacement(t, "latents@1"), replacement(t, "latents@1")}},
		"has no tensor nothing": {Load: []runs.Replacement{replacement(t,
			"a=../../internal/checkpoint/testdata/arrays/all.safetensors:nothing")}},
		"has 15 tensors, but no a": {Load: []runs.Replacement{replacement(t,
			"a=../../internal/checkpoint/testdata/arrays/all.safetensors")}},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("found %v, expected %q", err, want)
		}
	}
}

// TestProcess uses the functions that people put into a model.
func TestProcess(t *testing.T) {
	t.Setenv("GOMFLUX_LOG_DIR", filepath.Join(t.TempDir(), "logs"))
	err := mlxtest.Try(func() {
		x := mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2).AsType(mlx.BFloat16)
		runs.Save("q", x.T())
		y := runs.Load("q")
		if y.Dtype() != mlx.BFloat16 || !slices.Equal(y.Floats(), []float32{1, 3, 2, 4}) {
			t.Errorf("found %v %v", y, y.Floats())
		}
		runs.Checkpoint("here", map[string]any{"x": x, "layer": 3}, nil)
		runs.Save("last", x, runs.Exit)
		t.Error("the job went on")
	})
	if !errors.Is(err, runs.ErrExit) || !strings.Contains(err.Error(), "after last was saved") {
		t.Errorf("found %v", err)
	}
	tree, err := runs.Open("")
	if err != nil {
		t.Fatal(err)
	}
	e, err := tree.Find("q")
	if err != nil || e.Record.Location.Function != "TestProcess.func1" || filepath.Base(e.Record.Location.File) != "session_test.go" ||
		e.Dtype != checkpoint.BF16 {
		t.Errorf("found %+v, %v", e.Record, err)
	}
	if err := mlxtest.Try(func() { runs.Load("qq") }); !errors.Is(err, runs.ErrNotFound) || !strings.Contains(err.Error(), "similar: q") {
		t.Errorf("found %v", err)
	}
	if all, err := tree.List(); err != nil || len(all) != 2 {
		t.Errorf("%d tensors, %v", len(all), err)
	}
	text, err := os.ReadFile(filepath.Join(os.Getenv("GOMFLUX_LOG_DIR"), "runs/latest/gomflux/checkpoints/checkpoint_here_hit001.json"))
	if err != nil || !strings.Contains(string(text), `runs.Checkpoint(\"here\"`) ||
		!strings.Contains(string(text), `"mlx.core.bfloat16"`) {
		t.Errorf("%s, %v", text, err)
	}
}
