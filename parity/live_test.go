package parity

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
)

// liveFaults are those that TestLive plants.
var liveFaults = []string{
	"GELU for SiLU", "q and k swapped", "norm_eps of a config", "residual missing", "RMSNorm in bfloat16", "bias dropped",
	"velocity with the wrong sign", "schedule not shifted", "prompt without its template", "RoPE theta of the text encoder",
	"flux1: norm eps of the transformer", "flux1: stream of the image in half precision", "flux1: CLIP's eps",
	"flux1: another guidance", "flux2: GELU for SiLU", "flux2: bn's mean missing", "kontext: mu of all tokens",
	"kontext: the reference is not shifted", "qwen: merger's norm missing", "qwen: norm of the text missing",
	"qwen: image_std of a config", "qwen: attention of the autoencoder missing", "qwen: zero_cond_t off",
	"inpaint: the mask is inverted", "inpaint: the mask is one latent off", "port: a sigma of 1.4e-45",
}

// TestLive replays runs while their tensors come, in the reference's order, with less memory than
// the dump takes. The verdicts are those of a replay of the dump.
func TestLive(t *testing.T) {
	all := slices.Concat(faults, fluxFaults, kontextFaults, kreaFaults, fillFaults, inpaintFaults, qwenFaults, seedFaults)
	for _, name := range randtest.Some(2, liveFaults) {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
			if i < 0 {
				t.Fatal("no such fault")
			}
			f := all[i]
			model, run := f.plant(t)
			o := Options{Dtype: exact, Model: model, Readings: []string{report.Isolated}, bug: f.bug, fault: f.fault}
			want, err := Replay(t.Context(), run, o)
			if err != nil {
				t.Fatal(err)
			}
			stream := newGoldenStream(t, cmp.Or(f.dump, "zimage-ordinary"), run)
			limit := stream.bytes / 2
			got, err := Live(t.Context(), run, stream.start(t), limit, o)
			if err != nil {
				t.Fatal(err)
			}
			g, w := got.Verdict, want.Verdict
			t.Logf("%s (%d tensors, of %d bytes in %d)", g.Text, len(stream.names), stream.bytes, limit)
			if g.OK || g.Stage != w.Stage || g.Module != w.Module || g.Tensor != w.Tensor || !slices.Equal(g.Others, w.Others) {
				t.Errorf("found %s, %s, %s, also %q\nexpected %s, %s, %s, also %q", g.Stage, g.Module, g.Tensor, g.Others,
					w.Stage, w.Module, w.Tensor, w.Others)
			}
			if g.Module != f.module || len(got.Tensors) != len(want.Tensors) || !slices.Equal(got.Missing, want.Missing) {
				t.Errorf("%s of %d tensors, without %q, expected %s of %d, without %q", g.Module, len(got.Tensors), got.Missing,
					f.module, len(want.Tensors), want.Missing)
			}
		})
	}
}

// TestLiveGoldens replays the runs of all families without a fault, with a part of the memory that
// their dumps take.
func TestLiveGoldens(t *testing.T) {
	for dump, part := range map[string]int64{"zimage-ordinary": 16, "zimage-small": 2,
		"zimage-image": 4, "flux1-inner": 16, "flux1-dev-image": 3,
		"flux1-kontext": 2, "flux1-fill": 2,
		"flux2-inner": 4, "flux2-klein-base": 2, "flux2-klein-kv": 4, "flux2-klein-edit2": 3, "qwen-inner": 8,
		"qwen-edit-plus": 3, "qwen-image-ordinary": 8, "krea-2": 8,
		"zimage-inpaint-crop": 3, "flux1-inpaint": 3, "flux2-inpaint": 3, "qwen-inpaint-crop": 3} {
		t.Run(dump, func(t *testing.T) {
			run := filepath.Join(testdata, dump, "dump")
			stream := newGoldenStream(t, dump, run)
			r, err := Live(t.Context(), run, stream.start(t), stream.bytes/part, Options{Dtype: exact})
			if err != nil {
				t.Fatal(err)
			}
			want, err := Replay(t.Context(), run, Options{Dtype: exact, Readings: []string{report.Isolated}, quick: true})
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.OK || len(r.Missing) > 0 || len(r.Tensors) != len(want.Tensors) || r.Width == 0 {
				t.Errorf("%d tensors of %d, %s, missing %q", len(r.Tensors), len(want.Tensors), r.Verdict.Text, r.Missing)
			}
		})
	}
}

// TestLiveMemory: in one batch the reference is a pass ahead, which takes more than a quarter of
// the dump.
func TestLiveMemory(t *testing.T) {
	const dump = "zimage-inner"
	run := filepath.Join(testdata, dump, "dump")
	stream := newGoldenStream(t, dump, run)
	_, err := Live(t.Context(), run, stream.start(t), stream.bytes/4, Options{Dtype: exact})
	e, ok := errors.AsType[*MemoryError](err)
	if !ok || e.Limit != stream.bytes/4 || e.Bytes > e.Limit || e.Held < 10 || !strings.HasPrefix(e.Oldest, "transformer") {
		t.Fatalf("%v: %+v", err, e)
	}
	mlxtest.Contains(t, err.Error(), " does not fit into 224 kB: ", " are not compared yet, from transformer")
}

// TestLiveDamaged reads streams that end early or have something wrong.
func TestLiveDamaged(t *testing.T) {
	const dump = "flux1-schnell-ordinary"
	run := filepath.Join(testdata, dump, "dump")
	stream := newGoldenStream(t, dump, run)
	var whole, twice bytes.Buffer
	if err := stream.write(&whole); err != nil {
		t.Fatal(err)
	}
	first := whole.Bytes()[:8+binary.LittleEndian.Uint64(whole.Bytes())]
	twice.Write(first)
	x := *stream.tensors["latents.init"]
	x.Name = "prompt.input_ids"
	for range 2 {
		if err := writePart(&twice, nil, &x); err != nil {
			t.Fatal(err)
		}
	}
	modules := writeSettings(t, map[string]any{"modules": []string{"vae"}, "prompt": "x"})
	for name, c := range map[string]struct {
		stream []byte
		want   string
	}{
		"nothing":     {nil, "the reference's stream ends before the run does: unexpected EOF"},
		"truncated":   {whole.Bytes()[:whole.Len()*2/3], "the reference's stream ends before the run does: unexpected EOF"},
		"no end":      {whole.Bytes()[:whole.Len()-30], "the reference's stream ends before the run does: unexpected EOF"},
		"text":        {[]byte("installing torch\n"), "the reference's stream: header length is "},
		"no settings": {whole.Bytes()[len(first):], "the reference's stream does not begin with its settings"},
		"no modules":  {writeSettings(t, map[string]any{"prompt": "x"}), "the reference's stream: settings: no modules"},
		"no size":     {modules, "its settings.json has no height, width, steps"},
		"twice":       {twice.Bytes(), "the reference's stream: tensor \"prompt.input_ids\" comes twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Live(t.Context(), run, bytes.NewReader(c.stream), stream.bytes, Options{Dtype: exact})
			if !errors.Is(err, ErrStream) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, expected %q", err, c.want)
			}
		})
	}
	if _, err := Live(t.Context(), run, &whole, stream.bytes, Options{Dtype: exact}); err != nil {
		t.Error(err)
	}
}

func writeSettings(t *testing.T, settings map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writePart(&b, map[string]string{streamSettings: string(text)}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzStream reads streams to their end: they are within memory, or an error.
func FuzzStream(f *testing.F) {
	var b bytes.Buffer
	for _, metadata := range []map[string]string{{streamSettings: `{"modules": ["vae"], "prompt": ""}`}, {streamFinished: "vae@0#1"},
		{streamEnd: ""}} {
		if err := writePart(&b, metadata); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	b.Reset()
	x, err := checkpoint.FromFloat32("latents@0", []int{1, 2}, []float32{1, 2})
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(writePart(&b, map[string]string{streamSettings: `{"modules": ["vae"]}`}), writePart(&b, nil, x)); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 12
		if err := mlx.Do(t.Context(), func() error {
			run, err := openStream(bytes.NewReader(data), limit, func() error { return nil })
			if err != nil {
				return nil
			}
			defer run.live.free()
			for !run.live.ended {
				if run.live.next("vae") != nil {
					break
				}
			}
			var size int64
			for _, x := range run.arrays {
				size += int64(len(x.Bytes()))
			}
			if size != run.live.size || size > limit {
				t.Errorf("%d bytes are held, said to be %d", size, run.live.size)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// A goldenStream has the tensors of a golden in an order in which the reference computes them.
type goldenStream struct {
	settings map[string]any
	names    []string
	tensors  map[string]*checkpoint.Array
	bytes    int64
}

func newGoldenStream(t *testing.T, golden, run string) *goldenStream {
	t.Helper()
	s := &goldenStream{tensors: map[string]*checkpoint.Array{}}
	data, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s.settings); err != nil {
		t.Fatal(err)
	}
	for _, name := range s.settings["files"].([]any) {
		f, err := checkpoint.OpenArrays(filepath.Join(run, name.(string)))
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range f.Tensors() {
			if s.tensors[info.Name], err = f.Read(info.Name); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
	}
	aliases, _ := s.settings["aliases"].(map[string]any)
	for name, stored := range aliases {
		s.tensors[name] = s.tensors[stored.(string)]
	}
	for _, x := range s.tensors {
		s.bytes += int64(len(x.Data))
	}
	s.order(t, filepath.Join(testdata, golden, "dump"))
	modules := map[string]bool{}
	for name := range s.tensors {
		if n, err := hooks.ParseName(name); err == nil && report.IsModule(n.Module) {
			modules[n.Module] = true
		}
	}
	var list []string
	for m := range modules {
		list = append(list, m)
	}
	s.settings["modules"], s.settings["pasted"] = list, s.tensors[report.PastedValue] != nil
	return s
}

// order sorts the tensors as a run of the golden computes them: a module's inputs are before what
// is inside it.
func (s *goldenStream) order(t *testing.T, golden string) {
	t.Helper()
	placed := map[string]bool{}
	put := func(at int, name string) {
		if !placed[name] && s.tensors[name] != nil {
			placed[name] = true
			s.names = slices.Insert(s.names, at, name)
		}
	}
	watch := func(r *replay, tap hooks.Tap) *mlx.Array {
		for one := range tap.All() {
			n := nameOf(one)
			name := r.name(n, one.Negative, 0)
			if one.Negative && r.inBatch(n.Module) {
				continue // it was computed in one batch with the prompt's
			}
			at := len(s.names)
			if one.Point.Kind != hooks.Output {
				for at > 0 && isInside(s.names[at-1], n) {
					at--
				}
			}
			put(at, name)
		}
		return nil
	}
	o := Options{Dtype: exact, Readings: []string{report.Isolated}, quick: true, fault: watch}
	if _, err := Replay(t.Context(), golden, o); err != nil {
		t.Fatal(err)
	}
	if i := slices.Index(s.names, "latents.init"); i > 0 { // they are drawn first
		s.names = slices.Insert(slices.Delete(s.names, i, i+1), 0, "latents.init")
	}
	// The others are those that this program does not compute, and rows of a batch.
	for _, name := range slices.Sorted(maps.Keys(s.tensors)) {
		at, n := len(s.names), hooks.Name{}
		if n, _ = hooks.ParseName(name); n.Module != "" {
			for n.Point = (hooks.Point{}); n.Module != ""; n.Module = hooks.Parent(n.Module) {
				if i := slices.IndexFunc(s.names, func(other string) bool {
					o, err := hooks.ParseName(other)
					return err == nil && o.Module == n.Module && o.Step == n.Step && o.Call == n.Call
				}); i >= 0 {
					at = i
					break
				}
			}
		}
		if at == len(s.names) { // at the end of its phase
			at = 0
			for i, other := range s.names {
				if phaseOf(other) <= phaseOf(name) {
					at = i + 1
				}
			}
		}
		put(at, name)
	}
}

// isInside reports whether a tensor is of a module inside another, at its step.
func isInside(name string, around hooks.Name) bool {
	n, err := hooks.ParseName(name)
	return err == nil && n.Step == around.Step && n.Call == around.Call && strings.HasPrefix(n.Module, around.Module+".")
}

// start returns a pipe that the stream is written to.
func (s *goldenStream) start(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	go func() { w.CloseWithError(s.write(w)) }()
	return r
}

func (s *goldenStream) write(w io.Writer) error {
	text, err := json.Marshal(s.settings)
	if err != nil {
		return err
	}
	if err := writePart(w, map[string]string{streamSettings: string(text)}); err != nil {
		return err
	}
	last := map[string]string{} // output of each module's call that comes last
	for _, name := range s.names {
		last[report.ModuleOf(name)] = name
	}
	for _, name := range s.names {
		x := *s.tensors[name]
		x.Name = name
		if err := writePart(w, nil, &x); err != nil {
			return err
		}
		if call := report.ModuleOf(name); last[call] == name && report.IsModule(call) {
			if err := writePart(w, map[string]string{streamFinished: call}); err != nil {
				return err
			}
		}
	}
	return writePart(w, map[string]string{streamEnd: ""})
}

// writePart writes one file of a stream.
func writePart(w io.Writer, metadata map[string]string, tensors ...*checkpoint.Array) error {
	header := map[string]any{}
	if metadata != nil {
		header["__metadata__"] = metadata
	}
	var data []byte
	for _, x := range tensors {
		header[x.Name] = map[string]any{"dtype": x.Dtype, "shape": append([]int{}, x.Shape...),
			"data_offsets": []int{len(data), len(data) + len(x.Data)}}
		data = append(data, x.Data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
	b.Write(text)
	b.Write(data)
	_, err = w.Write(b.Bytes())
	return err
}
