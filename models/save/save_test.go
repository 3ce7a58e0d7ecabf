package models

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// latentsWith are what a model makes of noise.
func latentsWith(t *testing.T, dir string, o LoadOptions) []float32 {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(fsys, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := Request{Prompt: "a red hat", Height: 64, Width: 32, Steps: 2, MaxSequenceLength: 48, Seed: 1}
	if e, ok := p.family.(editor); ok && e.checkReferences(0) != nil {
		r.References = []image.Image{picture.Opaque(image.NewRGBA(image.Rect(0, 0, 32, 32)))}
	}
	var last Latents
	r.OnStep = func(s Step) error { last = s.Latents; return nil }
	res, err := p.Generate(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range res.Image.Pix { // the autoencoder's part of it
		last.Data = append(last.Data, float32(v))
	}
	return last.Data
}

// save saves the model in a folder to a new one.
func save(t *testing.T, dir string, o SaveOptions) (string, *SaveReport) {
	t.Helper()
	src, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "saved")
	report, err := Save(src, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return to, report
}

// stored are the tensors of a component's files by name.
func stored(t *testing.T, dir, component string) map[string]*checkpoint.Array {
	t.Helper()
	return modeltest.Read(t, filepath.Join(dir, component))
}

// TestSave saves models of every family, and opens what was saved: it makes what
// the model makes that is quantized while it is loaded, bit by bit.
func TestSave(t *testing.T) {
	for _, wide := range wideModels {
		t.Run(wide.folder, func(t *testing.T) {
			dir := wideModel(t, wide.folder)
			mlxtest.Do(t, func() {
				cases := []struct{ layout, quantization string }{{LayoutDiffusers, ""}, {LayoutMFlux, ""}, {"", "4"}}
				if wide.folder == wideModels[0].folder {
					cases = cases[:2]
					for _, name := range Quantizations {
						cases = append(cases, struct{ layout, quantization string }{"", name})
					}
				}
				plain := latentsWith(t, dir, LoadOptions{})
				for _, c := range cases {
					o := SaveOptions{Layout: c.layout}
					if c.quantization != "" {
						q, err := ParseQuantization(c.quantization, 0)
						if err != nil {
							t.Fatal(err)
						}
						o.Quantize = q
					}
					saved, report := save(t, dir, o)
					if want := max(c.layout, map[bool]string{true: LayoutMFlux}[c.layout == ""]); report.Layout != want || report.Quantization != c.quantization {
						t.Errorf("%v: saved as %s with %q", c, report.Layout, report.Quantization)
					}
					want := plain
					if o.Quantize != nil {
						want = latentsWith(t, dir, LoadOptions{Quantize: o.Quantize})
					}
					if got := latentsWith(t, saved, LoadOptions{}); !slices.Equal(got, want) {
						t.Errorf("%v: what was saved makes something else", c)
					}
					worst := map[int]float64{}
					for _, l := range report.Layers {
						worst[l.Bits] = max(worst[l.Bits], l.Error)
						if l.Mode == "affine" && l.Bits == 8 && !(l.Error > 0 && l.Error <= 0.01) {
							t.Errorf("%s: %s at 8 bits has an error of %g", l.Component, l.Name, l.Error)
						}
						if !(l.Error > 0 && l.Error < 0.3) || l.Kept {
							t.Errorf("%v", l)
						}
					}
					if c.quantization != "" {
						t.Logf("%-6s %3d layers, worst error of one %.4f, at 8 bits %.4f", c.quantization, len(report.Layers), worst[o.Quantize.Bits], worst[8])
						if len(report.Layers) < 10 {
							t.Errorf("%d layers", len(report.Layers))
						}
					} else if len(report.Layers) > 0 {
						t.Errorf("layers %v without a quantization", report.Layers)
					}
				}
			})
		})
	}
}

// TestSaveAll makes sure that nothing is lost on the way through mflux's layout
// and back, of layers that no picture needs either.
func TestSaveAll(t *testing.T) {
	for folder, left := range map[string][]string{
		"zimage-ordinary":        nil,
		"flux1-dev-small":        nil,
		"flux1-schnell-ordinary": nil,
		"flux2-klein":            {"vae/bn.num_batches_tracked"},
		"qwen-image-ordinary":    {"text_encoder/lm_head.weight"},
		"qwen-edit-plus":         {"text_encoder/lm_head.weight"},
	} {
		dir := testModel(folder)
		mlxtest.Do(t, func() {
			there, report := save(t, dir, SaveOptions{Layout: LayoutMFlux})
			if !slices.Equal(report.Left, left) {
				t.Errorf("%s: left out %q, expected %q", folder, report.Left, left)
			}
			back, _ := save(t, there, SaveOptions{Layout: LayoutDiffusers})
			fsys, err := checkpoint.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			x, err := readIndex(fsys)
			if err != nil {
				t.Fatal(err)
			}
			for name, class := range x.components {
				if configOf(class) != modelConfig {
					continue
				}
				want, got := stored(t, dir, name), stored(t, back, name)
				plain := func(name string) string {
					for _, prefix := range []string{"model.language_model.", "model.", "text_model."} {
						name = strings.TrimPrefix(name, prefix)
					}
					return name
				}
				found := map[string]*checkpoint.Array{}
				for key, x := range got {
					found[plain(key)] = x
				}
				for key, x := range want {
					other := found[plain(key)]
					if slices.Contains(left, name+"/"+key) || key == "encoder.embed_tokens.weight" {
						continue
					}
					if other == nil || !slices.Equal(other.Shape, x.Shape) || other.Dtype != x.Dtype || !bytes.Equal(other.Data, x.Data) {
						t.Errorf("%s: %s: %s is not what it was", folder, name, key)
					}
					delete(found, plain(key))
				}
				if len(found) > 0 {
					t.Errorf("%s: %s: has %q too", folder, name, slices.Collect(maps.Keys(found)))
				}
			}
		})
	}
}

// TestSaveUnusedLayers quantizes a layer of a text encoder that no picture needs,
// as mflux does, which has all of them.
func TestSaveUnusedLayers(t *testing.T) {
	dir := wideModel(t, "zimage-small")
	all := stored(t, dir, "text_encoder")
	last := 0
	for ; all[fmt.Sprintf("layers.%d.self_attn.q_proj.weight", last)] != nil; last++ {
	}
	for name, x := range maps.Clone(all) {
		if rest, ok := strings.CutPrefix(name, "layers.0."); ok {
			other := *x
			other.Name = fmt.Sprintf("layers.%d.%s", last, rest)
			all[other.Name] = &other
		}
	}
	if err := checkpoint.WriteFile(filepath.Join(dir, "text_encoder", "model.safetensors"), slices.Collect(maps.Values(all)), nil); err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		saved, report := save(t, dir, SaveOptions{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}})
		name := fmt.Sprintf("layers.%d.self_attn.q_proj", last)
		if !slices.ContainsFunc(report.Layers, func(l SavedLayer) bool { return l.Name == name && l.Bits == 4 && l.Error > 0 }) {
			t.Errorf("%s is not quantized", name)
		}
		found := stored(t, saved, "text_encoder")
		for _, suffix := range []string{".weight", ".scales", ".biases"} { // as of the layer that it is a copy of
			x, like := found[name+suffix], found["layers.0.self_attn.q_proj"+suffix]
			if x == nil || x.Dtype != like.Dtype || !bytes.Equal(x.Data, like.Data) {
				t.Errorf("%s%s: found %v", name, suffix, x)
			}
		}
		back, _ := save(t, saved, SaveOptions{Layout: LayoutDiffusers})
		found = stored(t, back, "text_encoder")
		if x := found["model."+name+".weight"]; x == nil || !bytes.Equal(x.Data, found["model.layers.0.self_attn.q_proj.weight"].Data) {
			t.Errorf("%s did not come back: there are %q", name, slices.Sorted(maps.Keys(found)))
		}
	})
}

// TestSaveAgain saves a model that is quantized already: its weights stay.
func TestSaveAgain(t *testing.T) {
	dir := wideModel(t, "flux1-dev-small")
	mlxtest.Do(t, func() {
		once, first := save(t, dir, SaveOptions{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}})
		twice, report := save(t, once, SaveOptions{Quantize: &mlx.Quantization{Mode: "affine", Bits: 8, Group: 64}})
		if len(report.Layers) != len(first.Layers) {
			t.Errorf("%d layers, then %d", len(first.Layers), len(report.Layers))
		}
		for _, l := range report.Layers {
			if !l.Kept {
				t.Errorf("%s: %s was quantized again", l.Component, l.Name)
			}
		}
		for _, component := range []string{"transformer", "text_encoder", "text_encoder_2", "vae"} {
			a, b := stored(t, once, component), stored(t, twice, component)
			if !slices.Equal(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))) {
				t.Errorf("%s: other tensors", component)
			}
			for name, x := range a {
				if !bytes.Equal(x.Data, b[name].Data) {
					t.Errorf("%s: %s is another", component, name)
				}
			}
		}
		third, report := save(t, once, SaveOptions{})
		if report.Layout != LayoutMFlux || report.Quantization != "4" {
			t.Errorf("saved as %s with %q", report.Layout, report.Quantization)
		}
		plain, _ := save(t, third, SaveOptions{Layout: LayoutDiffusers, Dtype: new(mlx.Float32)})
		if got, want := latentsWith(t, plain, LoadOptions{}), latentsWith(t, once, LoadOptions{}); !slices.Equal(got, want) {
			t.Error("unpacked weights make another picture than packed ones")
		}
	})
}

// TestSaveShards writes several files, tensors in parts, and mflux's names and
// metadata.
func TestSaveShards(t *testing.T) {
	defer func(shard int64, rows int) { maxShard, rowsBytes = shard, rows }(maxShard, rowsBytes)
	maxShard, rowsBytes = 100_000, 12_000
	dir := wideModel(t, "zimage-small")
	mlxtest.Do(t, func() {
		want := latentsWith(t, dir, LoadOptions{})
		for layout, names := range map[string][2]string{
			LayoutMFlux:     {"%d.safetensors", "model.safetensors.index.json"},
			LayoutDiffusers: {"diffusion_pytorch_model-%05d-of-%05d.safetensors", "diffusion_pytorch_model.safetensors.index.json"},
		} {
			saved, report := save(t, dir, SaveOptions{Layout: layout})
			if got := latentsWith(t, saved, LoadOptions{}); !slices.Equal(got, want) {
				t.Errorf("%s: what was saved makes something else", layout)
			}
			files, _ := filepath.Glob(filepath.Join(saved, "transformer", "*.safetensors"))
			if len(files) < 3 || report.Files < len(files) {
				t.Fatalf("%s: %d files, %d in all", layout, len(files), report.Files)
			}
			for i := range files {
				name := fmt.Sprintf(names[0], i+1, len(files))
				if layout == LayoutMFlux {
					name = fmt.Sprintf(names[0], i)
				}
				f, err := checkpoint.Open(os.DirFS(filepath.Join(saved, "transformer")), name)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for _, tensor := range f.Header.Tensors {
					if size := int64(tensor.Dtype.Bits() / 8); (f.Header.DataOffset+tensor.Begin)%size != 0 {
						t.Errorf("%s: %s begins at byte %d", name, tensor.Name, tensor.Begin)
					}
				}
				want := map[string]string{"format": "pt"}
				if layout == LayoutMFlux {
					want = map[string]string{"quantization_level": "None", "mflux_version": "0.24.0"}
				}
				if !maps.Equal(f.Header.Metadata, want) {
					t.Errorf("%s: metadata %v", name, f.Header.Metadata)
				}
			}
			if layout == LayoutMFlux {
				q := &mlx.Quantization{Mode: "affine", Bits: 5, Group: 32}
				packed, _ := save(t, dir, SaveOptions{Quantize: q})
				if got, want := latentsWith(t, packed, LoadOptions{}), latentsWith(t, dir, LoadOptions{Quantize: q}); !slices.Equal(got, want) {
					t.Error("what was quantized in parts makes something else")
				}
			}
			var index struct {
				Map map[string]string `json:"weight_map"`
			}
			if err := json.Unmarshal(read(t, filepath.Join(saved, "transformer", names[1])), &index); err != nil || len(index.Map) == 0 {
				t.Errorf("%s: %v", names[1], err)
			}
		}
	})
}

// TestSaveDtypes saves float32 weights in several dtypes.
func TestSaveDtypes(t *testing.T) {
	dir := wideModel(t, "zimage-small")
	file := filepath.Join(dir, "text_encoder", "model.safetensors")
	var list []*checkpoint.Array
	for _, x := range stored(t, dir, "text_encoder") {
		wide := &checkpoint.Array{Name: x.Name, Dtype: checkpoint.F32, Shape: x.Shape}
		for i := 0; i < len(x.Data); i += 2 {
			wide.Data = append(wide.Data, 1, 0, x.Data[i], x.Data[i+1]) // which bfloat16 does not hold
		}
		list = append(list, wide)
	}
	if err := checkpoint.WriteFile(file, list, nil); err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		for want, o := range map[checkpoint.Dtype]SaveOptions{checkpoint.BF16: {}, checkpoint.F16: {Dtype: new(mlx.Float16)}, checkpoint.F32: {KeepDtypes: true}} {
			saved, _ := save(t, dir, o)
			for _, x := range list {
				if got := stored(t, saved, "text_encoder")[x.Name]; got.Dtype != want {
					t.Errorf("%s is %s, expected %s", x.Name, got.Dtype, want)
				}
			}
			if x := stored(t, saved, "vae")["decoder.conv_in.bias"]; o.KeepDtypes && x.Dtype != checkpoint.BF16 {
				t.Errorf("%s is %s", x.Name, x.Dtype)
			}
		}
		// what is kept is the same to the last bit, when it is quantized too
		q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
		for _, o := range []SaveOptions{{KeepDtypes: true}, {KeepDtypes: true, Quantize: q}} {
			saved, _ := save(t, dir, o)
			if got, want := latentsWith(t, saved, LoadOptions{}), latentsWith(t, dir, LoadOptions{Quantize: o.Quantize}); !slices.Equal(got, want) {
				t.Errorf("%v: what was saved makes something else", o.Quantize)
			}
		}
	})
}

// TestSaveLoRA bakes a LoRA before weights are quantized, and into weights that
// are quantized already with eight bits.
func TestSaveLoRA(t *testing.T) {
	dir := wideModel(t, "zimage-small")
	const layer = "layers.0.attention.to_q"
	file := filepath.Join(t.TempDir(), "lora.safetensors")
	var list []*checkpoint.Array
	for name, shape := range map[string][]int{"lora_A": {4, 128}, "lora_B": {128, 4}} {
		x := &checkpoint.Array{Name: "transformer." + layer + "." + name + ".weight", Dtype: checkpoint.F32, Shape: shape}
		for _, v := range mlxtest.Random(uint64(len(name)+shape[0]), 4*128) {
			x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v/4))
		}
		list = append(list, x)
	}
	if err := checkpoint.WriteFile(file, list, nil); err != nil {
		t.Fatal(err)
	}
	loras := []lora.Spec{{Path: file, Scale: 0.75}}
	q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
	mlxtest.Do(t, func() {
		plain := latentsWith(t, dir, LoadOptions{})
		for _, o := range []SaveOptions{{LoRAs: loras}, {LoRAs: loras, Quantize: q}} {
			saved, report := save(t, dir, o)
			got := latentsWith(t, saved, LoadOptions{})
			if want := latentsWith(t, dir, LoadOptions{LoRAs: loras, Quantize: o.Quantize}); !slices.Equal(got, want) || slices.Equal(got, plain) {
				t.Errorf("%v: what was saved makes something else", o.Quantize)
			}
			if len(report.LoRAs) != 1 || report.LoRAs[0].Modules["transformer"] != 1 {
				t.Errorf("%+v", report.LoRAs)
			}
		}
		packed, _ := save(t, dir, SaveOptions{Quantize: q})
		saved, report := save(t, packed, SaveOptions{LoRAs: loras})
		for _, l := range report.Layers {
			if changed := l.Name == layer; changed == l.Kept || changed && (l.Bits != 8 || !(l.Error > 0 && l.Error < 0.01)) {
				t.Errorf("%+v", l)
			}
		}
		// beside packed weights, where a LoRA runs if they are not changed, it makes nearly the same
		got, want := latentsWith(t, saved, LoadOptions{}), latentsWith(t, packed, LoadOptions{LoRAs: loras})
		if off := relative(mlx.FromFloat32(got), mlx.FromFloat32(want)); !(off < 0.02) {
			t.Errorf("off by %g from the LoRA beside the weights", off)
		}
		var about struct {
			LoRAs []struct {
				Source string
				Scale  float64
				SHA256 string
			}
		}
		if err := json.Unmarshal(read(t, filepath.Join(saved, "mflux_model.json")), &about); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(read(t, file))
		if len(about.LoRAs) != 1 || about.LoRAs[0].Source != "lora.safetensors" || about.LoRAs[0].Scale != 0.75 || about.LoRAs[0].SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%+v", about.LoRAs)
		}
	})
}

// TestSaveRefused has what cannot be saved: the reason is named, and nothing is
// left in the folder where it should have been.
func TestSaveRefused(t *testing.T) {
	plain := wideModel(t, "zimage-small")
	src := func(dir string) *Source {
		s, err := Find(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	change := func(component string, change func(map[string]*checkpoint.Array)) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(plain)); err != nil {
			t.Fatal(err)
		}
		all := stored(t, dir, component)
		change(all)
		if err := checkpoint.WriteFile(filepath.Join(dir, component, "model.safetensors"), slices.Collect(maps.Values(all)), nil); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "note.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	room := freeBytes
	defer func() { freeBytes = room }()
	for _, c := range []struct {
		name string
		src  *Source
		dir  string // "" for one that is not there
		o    SaveOptions
		free int64
		want []string
	}{
		{"not empty", src(plain), full, SaveOptions{}, 0, []string{full, "not empty"}},
		{"a file", src(plain), filepath.Join(full, "note.txt"), SaveOptions{}, 0, []string{"note.txt", "expected a folder to be made"}},
		{"unknown layout", src(plain), "", SaveOptions{Layout: "gguf"}, 0, []string{`layout "gguf"`, "diffusers or mflux"}},
		{"quantized for diffusers", src(plain), "", SaveOptions{Layout: LayoutDiffusers, Quantize: q}, 0, []string{"diffusers' layout has no quantized weights"}},
		{"no room", src(plain), "", SaveOptions{}, 1000, []string{"GB", "free"}},
		{"NaN", src(change("transformer", func(all map[string]*checkpoint.Array) {
			copy(all["layers.1.attention.to_v.weight"].Data, []byte{0xff, 0xff})
		})), "", SaveOptions{Quantize: q}, 0, []string{"model.safetensors", "tensor layers.1.attention.to_v.weight", "NaN"}},
		{"too large for float16", src(change("transformer", func(all map[string]*checkpoint.Array) {
			copy(all["layers.1.attention_norm1.weight"].Data, []byte{0x80, 0x47}) // 65536
		})), "", SaveOptions{Dtype: new(mlx.Float16)}, 0, []string{"tensor layers.1.attention_norm1.weight", "float16 ends at 65504"}},
		{"missing", src(change("transformer", func(all map[string]*checkpoint.Array) { delete(all, "cap_pad_token") })), "", SaveOptions{}, 0, []string{"missing: cap_pad_token"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			freeBytes = room
			if c.free > 0 {
				freeBytes = func(string) int64 { return c.free }
			}
			parent := t.TempDir()
			dir := c.dir
			if dir == "" {
				dir = filepath.Join(parent, "new", "saved")
			}
			err := mlxtest.Try(func() {
				if _, err := Save(c.src, dir, c.o); err != nil {
					mlx.Throw(err)
				}
			})
			if err == nil {
				t.Fatal("was saved")
			}
			mlxtest.Contains(t, err.Error(), c.want...)
			leftovers(t, parent)
		})
	}
}

// leftovers looks for files.
func leftovers(t *testing.T, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.Contains(path, "incomplete")) {
			t.Errorf("%s is left", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSaveStopped stops it at many points: nothing is left.
func TestSaveStopped(t *testing.T) {
	src, err := Find(wideModel(t, "flux2-klein-base"))
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("enough")
	for _, share := range []float64{0, 0.1, 0.5, 0.9, 0.99} {
		ctx, cancel := context.WithCancelCause(t.Context())
		parent := t.TempDir()
		err := mlx.Do(ctx, func() error {
			_, err := Save(src, filepath.Join(parent, "saved"), SaveOptions{
				Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64},
				Progress: func(p Progress) {
					if p.Phase != PhaseSave || p.TotalBytes == 0 || p.Bytes > p.TotalBytes {
						t.Errorf("%+v", p)
					}
					if float64(p.Bytes) > share*float64(p.TotalBytes) {
						cancel(stop)
					}
				},
			})
			return err
		})
		cancel(nil)
		if !errors.Is(err, stop) {
			t.Errorf("stopped at %g of it: %v", share, err)
		}
		leftovers(t, parent)
	}
}

// TestSaveDefaults saves what is meant to be run with settings of its own: they
// are those of what was saved, and of what is saved of that.
func TestSaveDefaults(t *testing.T) {
	parent := t.TempDir()
	turbo := filepath.Join(parent, "Z-Image-Turbo") // a folder of a preset's name
	if err := os.CopyFS(turbo, os.DirFS(testModel("zimage-ordinary"))); err != nil {
		t.Fatal(err)
	}
	preset, _ := FindPreset("z-image-turbo")
	plain, err := Find(testModel("zimage-ordinary"))
	if err != nil || plain.Defaults != nil {
		t.Fatalf("%+v, %v", plain, err)
	}
	for _, layout := range []string{LayoutDiffusers, LayoutMFlux} {
		from := turbo
		for _, name := range []string{"once", "twice"} {
			src, err := Find(from)
			if err != nil {
				t.Fatal(err)
			}
			from = filepath.Join(parent, layout+"-"+name)
			mlxtest.Do(t, func() {
				if _, err := Save(src, from, SaveOptions{Layout: layout}); err != nil {
					mlx.Throw(err)
				}
			})
			saved, err := Find(from)
			if err != nil {
				t.Fatal(err)
			}
			if saved.Defaults == nil || *saved.Defaults != *preset.Defaults {
				t.Errorf("%s %s: found %+v, expected %+v", layout, name, saved.Defaults, preset.Defaults)
			}
		}
	}
	// a folder as mflux itself saves it says so elsewhere
	theirs := filepath.Join(parent, "theirs")
	if err := os.CopyFS(theirs, os.DirFS(testModel("zimage-ordinary"))); err == nil {
		err = os.WriteFile(filepath.Join(theirs, "mflux_model.json"), []byte(`{"model_name": "z-image-turbo", "base_model": null, "upstream": null}`), 0o644)
		if err != nil {
			t.Fatal(err)
		}
	}
	if saved, err := Find(theirs); err != nil || saved.Defaults == nil || *saved.Defaults != *preset.Defaults {
		t.Errorf("%+v, %v", saved, err)
	}
}

// TestSaveAfterKill removes what one who was killed has left, and not what one has
// who is still at it.
func TestSaveAfterKill(t *testing.T) {
	parent := t.TempDir()
	for _, name := range []string{".a.gomflux-1.incomplete", ".b.gomflux-2.incomplete", ".c.gomflux-3", "d.gomflux-4.incomplete"} {
		if err := os.MkdirAll(filepath.Join(parent, name, "vae"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	release, err := filelock.TryFolder(filepath.Join(parent, ".b.gomflux-2.incomplete"))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	src, err := Find(testModel("zimage-ordinary"))
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		if _, err := Save(src, filepath.Join(parent, "saved"), SaveOptions{}); err != nil {
			mlx.Throw(err)
		}
	})
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if want := []string{".b.gomflux-2.incomplete", ".c.gomflux-3", "d.gomflux-4.incomplete", "saved"}; !slices.Equal(names, want) {
		t.Errorf("found %q, expected %q", names, want)
	}
}

// TestOpenDamagedQuantization opens folders whose quantized weights lack
// something.
func TestOpenDamagedQuantization(t *testing.T) {
	dir := wideModel(t, "zimage-small")
	var saved string
	mlxtest.Do(t, func() {
		saved, _ = save(t, dir, SaveOptions{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}})
	})
	file := filepath.Join(saved, "transformer", "0.safetensors")
	index := filepath.Join(saved, "transformer", "model.safetensors.index.json")
	whole := stored(t, saved, "transformer")
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	const layer = "layers.1.attention.to_q"
	for _, c := range []struct {
		name   string
		change func(map[string]*checkpoint.Array)
		want   []string
	}{
		{"no scales", func(all map[string]*checkpoint.Array) { delete(all, layer+".scales") }, []string{"missing: " + layer + ".scales", "cannot be unpacked"}},
		{"no biases", func(all map[string]*checkpoint.Array) { delete(all, layer+".biases") }, []string{"missing: " + layer + ".biases", "cannot be unpacked"}},
		{"groups of 16", func(all map[string]*checkpoint.Array) { columns(all[layer+".scales"], 8) }, []string{"wrong shape: " + layer + ".scales", "32, 64 or 128"}},
		{"biases of other groups", func(all map[string]*checkpoint.Array) { columns(all[layer+".biases"], 1) }, []string{"wrong shape: " + layer + ".biases", "as of " + layer + ".scales"}},
		{"too few bits", func(all map[string]*checkpoint.Array) { columns(all[layer+".weight"], 11) }, []string{"wrong shape: " + layer + ".weight"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := map[string]*checkpoint.Array{}
			for name, x := range whole {
				other := *x
				other.Shape, other.Data = slices.Clone(x.Shape), slices.Clone(x.Data)
				all[name] = &other
			}
			c.change(all)
			if err := checkpoint.WriteFile(file, slices.Collect(maps.Values(all)), map[string]string{"mflux_version": "0.24.0"}); err != nil {
				t.Fatal(err)
			}
			fsys, err := checkpoint.OpenFolder(saved)
			if err != nil {
				t.Fatal(err)
			}
			mlxtest.Do(t, func() {
				_, err = Load(fsys, LoadOptions{})
			})
			if err == nil {
				t.Fatal("was opened")
			}
			mlxtest.Contains(t, err.Error(), append(c.want, "0.safetensors")...)
		})
	}
}

// columns gives a matrix a number of columns, over and over its own.
func columns(x *checkpoint.Array, n int) {
	size := len(x.Data) / (x.Shape[0] * x.Shape[1])
	var data []byte
	for row := range x.Shape[0] {
		for column := range n {
			at := (row*x.Shape[1] + column%x.Shape[1]) * size
			data = append(data, x.Data[at:at+size]...)
		}
	}
	x.Shape, x.Data = []int{x.Shape[0], n}, data
}

// TestReadMFlux reads parts of models that mflux saved: a transformer with layers
// of 4 and of 8 bits, and a T5 with 3, whose embeddings and table of positions are
// quantized too. They were made by
//
//	scripts/reference/run.sh mflux-golden internal/checkpoint/layout/testdata/mflux
func TestReadMFlux(t *testing.T) {
	fsys, err := checkpoint.OpenFolder("../internal/checkpoint/layout/testdata/mflux")
	if err != nil {
		t.Fatal(err)
	}
	config := transformer.DefaultQwenImageConfig()
	t5 := textenc.DefaultT5Config()
	for name, c := range map[string]any{"transformer": &config, "text_encoder_2": &t5} {
		if err := checkpoint.ReadJSON(fsys, name+"/config.json", c); err != nil {
			t.Fatal(err)
		}
	}
	encoder := textenc.NewT5Encoder(t5, mlx.Float32)
	for _, c := range []struct {
		component
		bits map[int]int // how many layers have so many
	}{
		{component{name: "transformer", dir: "transformer", class: "QwenImageTransformer2DModel", model: transformer.NewQwenImage(config)}, map[int]int{4: 19, 8: 1}},
		{component{name: "text_encoder_2", dir: "text_encoder_2", class: "T5EncoderModel", model: encoder, ignore: encoder.Unused()}, map[int]int{3: 16}},
	} {
		ck, err := c.open(fsys)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		var expected map[string]string // SHA-256 of the values in float32
		if err := json.Unmarshal(read(t, "../internal/checkpoint/layout/testdata/mflux/"+c.dir+"/expected.json"), &expected); err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			if err := nn.Load(c.model, ck, nn.LoadOptions{Name: c.name, Dtype: mlx.Float32, Ignore: c.ignore}); err != nil {
				mlx.Throw(err)
			}
			bits := map[int]int{}
			for _, p := range nn.Parameters(c.model) {
				name := strings.Replace(p.Name, "encoder.embed_tokens.", "shared.", 1)
				sum := sha256.Sum256(p.As(mlx.Float32).Bytes())
				if got := hex.EncodeToString(sum[:]); got != expected[name] {
					t.Errorf("%s: %s is not what mflux has", c.dir, name)
				}
				delete(expected, name)
				if q := p.Quantization(); q != nil {
					bits[q.Bits]++
				}
			}
			if len(expected) > 0 || !maps.Equal(bits, c.bits) {
				t.Errorf("%s: layers by bits %v, expected %v; not there: %q", c.dir, bits, c.bits, slices.Collect(maps.Keys(expected)))
			}
		})
	}
}

// TestSaveSingleFile makes whole folders of a file in the layout of the models'
// makers: as diffusers has it, with the names and shapes that it knows, and
// quantized.
func TestSaveSingleFile(t *testing.T) {
	for _, folder := range []string{"flux1-schnell-ordinary", "flux2-klein", "zimage-ordinary", "qwen-image-ordinary"} {
		t.Run(folder, func(t *testing.T) {
			base := testModel(folder)
			file := filepath.Join(t.TempDir(), "transformer.safetensors")
			var list []*checkpoint.Array
			for name, x := range original(t, filepath.Join(base, "transformer")) {
				list = append(list, &checkpoint.Array{Name: "model.diffusion_model." + name, Dtype: x.Dtype, Shape: x.Shape, Data: x.Data})
			}
			if err := checkpoint.WriteFile(file, list, nil); err != nil {
				t.Fatal(err)
			}
			src, err := FindWith(file, base)
			if err != nil {
				t.Fatal(err)
			}
			want := stored(t, base, "transformer")
			mlxtest.Do(t, func() {
				dir := t.TempDir()
				if _, err := Save(src, dir, SaveOptions{}); err != nil {
					mlx.Throw(err)
				}
				got := stored(t, dir, "transformer")
				if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
					t.Errorf("found %q, expected %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
				}
				for name, x := range want {
					if y := got[name]; y != nil && (!slices.Equal(x.Shape, y.Shape) || !bytes.Equal(x.Data, y.Data)) {
						t.Errorf("%s is not what it was", name)
					}
				}
				q := &mlx.Quantization{Mode: "affine", Bits: 8, Group: 32}
				packed, fromFolder := t.TempDir(), ""
				if _, err := Save(src, packed, SaveOptions{Quantize: q}); err != nil {
					mlx.Throw(err)
				}
				fromFolder, _ = save(t, base, SaveOptions{Quantize: q})
				a, b := stored(t, packed, "transformer"), stored(t, fromFolder, "transformer")
				for name, x := range b {
					if y := a[name]; len(a) != len(b) || y == nil || !bytes.Equal(x.Data, y.Data) {
						t.Errorf("%s is not what is quantized of the folder", name)
					}
				}
			})
		})
	}
}
