package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
)

// testModel is the folder of a tiny model.
func testModel(name string) string { return filepath.Join("testdata", name, "model") }

// original are a component's tensors as the model's makers have them.
func original(t *testing.T, folder string) map[string]*checkpoint.Array {
	t.Helper()
	var config struct {
		Class         string   `json:"_class_name"`
		Architectures []string `json:"architectures"`
		Widths        []int    `json:"block_out_channels"`
	}
	data, err := os.ReadFile(filepath.Join(folder, "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	class := config.Class
	if class == "" {
		class = config.Architectures[0]
	}
	from := modeltest.Read(t, folder)
	for _, table := range layout.Tables(class) {
		if table.Name != "original" || len(table.Rules) == 0 {
			continue
		}
		made := modeltest.Stored(t, table, from)
		if !slices.ContainsFunc(table.Signature, func(name string) bool { return made[name] == nil }) {
			return made
		}
	}
	return from
}

// pictureOf is what a model makes.
func pictureOf(t *testing.T, fsys fs.FS) []byte {
	t.Helper()
	var pixels []byte
	mlxtest.Do(t, func() {
		p, err := Load(fsys, LoadOptions{})
		if err == nil {
			defer p.Close()
			size := 2 * p.Multiple()
			var r *Result
			if r, err = p.Generate(Request{Prompt: "a red square", Steps: 2, Seed: 7, Height: size, Width: size, MaxSequenceLength: 40, Guidance: p.Defaults.Guidance}); err == nil {
				pixels = r.Image.Pix
			}
		}
		if err != nil {
			mlx.Throw(err)
		}
	})
	return pixels
}

// TestSingleFile opens files in the layout of the models' makers, alone and with
// all components in one: they make the same pictures as diffusers' folders, bit
// by bit.
func TestSingleFile(t *testing.T) {
	for model, encoders := range map[string]map[string]string{
		"flux1-schnell-ordinary": {"text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
		"flux1-dev-small":        {"text_encoder": "clip_l", "text_encoder_2": "t5xxl"},
		"flux2-klein":            {"text_encoder": "qwen3_4b"},
		"zimage-ordinary":        {"text_encoder": "qwen3_4b"},
		"qwen-image-ordinary":    {"text_encoder": "qwen25_7b"},
	} {
		t.Run(model, func(t *testing.T) {
			base, dir := testModel(model), t.TempDir()
			want := pictureOf(t, os.DirFS(base))
			transformer := original(t, base+"/transformer")
			files := map[string]map[string]map[string]*checkpoint.Array{
				"bare.safetensors":  {"": transformer},
				"comfy.safetensors": {"model.diffusion_model.": transformer},
				"all.safetensors":   {"model.diffusion_model.": transformer, "vae.": original(t, base+"/vae")},
			}
			for folder, name := range encoders {
				files["all.safetensors"]["text_encoders."+name+".transformer."] = modeltest.Read(t, filepath.Join(base, folder))
			}
			for name, parts := range files {
				path := filepath.Join(dir, name)
				modeltest.Write(t, path, nil, parts)
				s, err := FindWith(path, base)
				if err != nil {
					t.Fatal(err)
				}
				if s.Name != path || s.Folder != path || s.Base != base {
					t.Errorf("%s: found %+v", name, s)
				}
				info := Inspect(s.FS)
				if info.Incomplete != nil || info.Unsupported != nil || info.Class == "" {
					t.Errorf("%s: %+v", name, info)
				}
				if file, err := os.Stat(path); err != nil || name == "all.safetensors" && info.Size > 2*file.Size()+1<<20 {
					t.Errorf("%s: %d bytes, of a file of %d (%v)", name, info.Size, file.Size(), err)
				}
				if got := pictureOf(t, s.FS); !bytes.Equal(got, want) {
					t.Errorf("%s: makes another picture than %s", name, base)
				}
				w, err := OpenWeights(s.FS)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range w.Components {
					if c.Err != nil || c.Unchecked != nil || c.mismatch != nil {
						t.Errorf("%s: %s: %v, %v, %v", name, c.Name, c.Err, c.Unchecked, c.mismatch)
					}
				}
				w.Close()
			}
		})
	}
}

// TestEightBits opens a file of 8-bit floats with and without scales: it makes the
// picture of one with the numbers that they stand for.
func TestEightBits(t *testing.T) {
	base, dir := testModel("flux1-dev-small"), t.TempDir()
	values := checkpoint.EightBits(checkpoint.F8E4M3)
	nearest := func(v float32) (at byte) {
		for i, candidate := range values {
			if d := math.Abs(float64(candidate - v)); d < math.Abs(float64(values[at]-v)) { // false for NaN
				at = byte(i)
			}
		}
		return at
	}
	for _, scaled := range []bool{false, true} {
		packed := map[string]*checkpoint.Array{"scaled_fp8": {Dtype: checkpoint.BF16, Shape: []int{0}}}
		plain := map[string]*checkpoint.Array{}
		for name, tensor := range original(t, base+"/transformer") {
			module, ok := strings.CutSuffix(name, ".weight")
			if !ok || len(tensor.Shape) != 2 {
				packed[name], plain[name] = tensor, tensor
				continue
			}
			const scale = 0.0375 // no power of 2
			by := float32(1)
			if scaled {
				by = scale
				one, err := checkpoint.FromFloat32("", []int{}, []float32{scale})
				if err != nil {
					t.Fatal(err)
				}
				packed[module+".scale_weight"] = one
			}
			data, numbers := []byte{}, []float32{}
			for _, v := range tensor.Float32s() {
				b := nearest(v / by)
				data, numbers = append(data, b), append(numbers, values[b]*by)
			}
			whole, err := checkpoint.FromFloat32("", tensor.Shape, numbers)
			if err == nil {
				whole, err = whole.Cast(checkpoint.BF16)
			}
			if err != nil {
				t.Fatal(err)
			}
			packed[name], plain[name] = &checkpoint.Array{Dtype: checkpoint.U8, Shape: tensor.Shape, Data: data}, whole
		}
		a, b := filepath.Join(dir, "packed.safetensors"), filepath.Join(dir, "plain.safetensors")
		modeltest.Write(t, a, nil, map[string]map[string]*checkpoint.Array{"model.diffusion_model.": packed})
		modeltest.Write(t, b, nil, map[string]map[string]*checkpoint.Array{"": plain})
		modeltest.Retype(t, a, "U8", "F8_E4M3")
		var pictures [][]byte
		for _, path := range []string{a, b} {
			s, err := FindWith(path, base)
			if err != nil {
				t.Fatal(err)
			}
			pictures = append(pictures, pictureOf(t, s.FS))
		}
		if !bytes.Equal(pictures[0], pictures[1]) {
			t.Errorf("scaled %v: two pictures", scaled)
		}
	}
}

// TestTransformerFolder opens a transformer's own folder, with and without a
// config, alone and in another.
func TestTransformerFolder(t *testing.T) {
	base := testModel("flux1-dev-small")
	want := pictureOf(t, os.DirFS(base))
	for _, test := range []struct {
		name   string
		config bool
	}{{".", true}, {".", false}, {"transformer", true}, {"transformer", false}} {
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, test.name), os.DirFS(base+"/transformer")); err != nil {
			t.Fatal(err)
		}
		if !test.config {
			if err := os.Remove(filepath.Join(dir, test.name, "config.json")); err != nil {
				t.Fatal(err)
			}
		}
		s, err := FindWith(dir, base)
		if err != nil {
			t.Fatal(err)
		}
		if got := pictureOf(t, s.FS); !bytes.Equal(got, want) {
			t.Errorf("%+v: makes another picture than %s", test, base)
		}
	}
}

// TestMFluxFolder opens folders as mflux saves them, with neither model_index.json
// nor configs nor a scheduler.
func TestMFluxFolder(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	metadata := map[string]string{"mflux_version": "0.24.0", "quantization_level": "None"}
	for model, test := range map[string]struct{ name, class string }{
		"flux1-dev-small": {"dev", "FluxPipeline"},
		"flux2-klein":     {"flux2-klein-4b", "Flux2KleinPipeline"},
		"zimage-ordinary": {"z-image-turbo", "ZImagePipeline"},
	} {
		t.Run(model, func(t *testing.T) {
			base, dir := testModel(model), t.TempDir()
			index, err := readIndex(os.DirFS(base))
			if err != nil {
				t.Fatal(err)
			}
			for name, class := range index.components {
				if configOf(class) == "" {
					if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(base, name))); err != nil {
						t.Fatal(err)
					}
				} else if configOf(class) == modelConfig {
					os.Mkdir(filepath.Join(dir, name), 0o777)
					saved := modeltest.Stored(t, layout.MFlux(layout.Class(class), index.class), modeltest.Read(t, filepath.Join(base, name)))
					modeltest.Write(t, filepath.Join(dir, name, "0.safetensors"), metadata, map[string]map[string]*checkpoint.Array{"": saved})
				}
			}
			s, err := FindWith(dir, base)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := pictureOf(t, s.FS), pictureOf(t, os.DirFS(base)); !bytes.Equal(got, want) {
				t.Error("makes another picture")
			}
			mlxtest.Do(t, func() {
				if _, err := LoadAutoencoder(s.FS, LoadOptions{}); err != nil {
					t.Error(err)
				}
			})

			// what mflux says of it is enough for a published model: what is wrong with this one is its size
			saved := `{"model_name": "` + test.name + `", "base_model": null, "upstream": null}`
			if err := os.WriteFile(filepath.Join(dir, "mflux_model.json"), []byte(saved), 0o666); err != nil {
				t.Fatal(err)
			}
			if s, err = Find(dir); err != nil {
				t.Fatal(err)
			}
			preset, _ := FindPreset(test.name)
			if s.Base != preset.Name || s.Defaults != preset.Defaults {
				t.Errorf("found %+v, expected %s", s, preset.Name)
			}
			info := Inspect(s.FS)
			if info.Class != test.class || info.Incomplete != nil || !errors.Is(info.Unsupported, ErrUnsupported) {
				t.Fatalf("%+v", info)
			}
			mlxtest.Contains(t, info.Unsupported.Error(), dir, "/config.json, of the shapes of its tensors and what is published of "+preset.Name)
		})
	}
}

// TestBase finds the model that a file is completed by.
func TestBase(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	place := func(repo, model string) {
		t.Helper()
		dir := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"), "snapshots", "c0")
		if err := os.CopyFS(dir, os.DirFS(testModel(model))); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	write := func(name, model string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		modeltest.Write(t, path, nil, map[string]map[string]*checkpoint.Array{"": original(t, testModel(model)+"/transformer")})
		return path
	}
	file := write("tuned.safetensors", "flux1-dev-small")
	fail := func(path, base string, is error, texts ...string) {
		t.Helper()
		_, err := FindWith(path, base)
		if err == nil || is != nil && !errors.Is(err, is) {
			t.Errorf("%s: %v", path, err)
			return
		}
		mlxtest.Contains(t, err.Error(), texts...)
	}
	find := func(path, base string) {
		t.Helper()
		s, err := Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if s.Base != base {
			t.Errorf("%s: base %s, expected %s", path, s.Base, base)
		}
		if preset, _ := FindPreset(base); s.Defaults != preset.Defaults {
			t.Errorf("%s: defaults %+v, expected those of %s", path, s.Defaults, base)
		}
	}

	fail(file, "", ErrNotFound, file, "FluxTransformer2DModel", "gomflux pull flux1-dev", "--base-model")
	place("black-forest-labs/FLUX.1-schnell", "flux1-schnell-ordinary")
	fail(file, "", ErrNotFound, "gomflux pull flux1-dev")
	place("black-forest-labs/FLUX.1-Krea-dev", "flux1-dev-small")
	find(file, "black-forest-labs/FLUX.1-Krea-dev") // the only one with guidance
	find(write("tuned-s.safetensors", "flux1-schnell-ordinary"), "black-forest-labs/FLUX.1-schnell")
	place("black-forest-labs/FLUX.1-dev", "flux1-dev-small")
	find(file, "black-forest-labs/FLUX.1-dev") // the other one is alike
	find(write("flux1-krea-dev_fp8.safetensors", "flux1-dev-small"), "black-forest-labs/FLUX.1-Krea-dev")

	saved := filepath.Join(dir, "FLUX.1-Krea-dev-mflux-4bit")
	if err := os.CopyFS(saved, os.DirFS(testModel("flux1-dev-small")+"/transformer")); err != nil {
		t.Fatal(err)
	}
	find(saved, "black-forest-labs/FLUX.1-Krea-dev")

	// what its tensors do not tell
	tuned := write("mine.safetensors", "zimage-ordinary")
	turbo := write("z_image_turbo_bf16.safetensors", "zimage-ordinary")
	place("Tongyi-MAI/Z-Image-Turbo", "zimage-ordinary")
	find(tuned, "Tongyi-MAI/Z-Image-Turbo")
	place("Tongyi-MAI/Z-Image", "zimage-ordinary")
	fail(tuned, "", ErrRequest, "z-image-turbo, z-image", "--base-model")
	find(turbo, "Tongyi-MAI/Z-Image-Turbo")

	fail(turbo, "flux1-dev", nil, turbo, "ZImageTransformer2DModel", "FLUX.1-dev", "FluxTransformer2DModel")
	fail(turbo, file, nil, file, "no whole model")
	fail(turbo, turbo, nil, "no whole model")
	fail(turbo, "nobody/nothing", ErrNotFound, "nobody/nothing")
	fail(testModel("zimage-ordinary"), "flux1-dev", ErrRequest, "is whole")
	fail(testModel("zimage-ordinary")+"/vae", "flux1-dev", ErrRequest, "no transformer")
	// what cannot be completed can be looked at
	lone := filepath.Join(dir, "lone")
	if err := os.CopyFS(lone, os.DirFS(testModel("flux2-klein")+"/transformer")); err != nil {
		t.Fatal(err)
	}
	if s, err := Find(lone); err != nil {
		t.Error(err)
	} else if w, err := OpenWeights(s.FS); err != nil || len(w.Components) != 1 {
		t.Errorf("%+v, %v", w, err)
	} else {
		w.Close()
		mlxtest.Contains(t, Inspect(s.FS).Incomplete.Error(), lone, "Flux2Transformer2DModel", "--base-model")
	}
	// of no published size
	fail(write("flux-2.safetensors", "flux2-klein"), "", nil, "no model that is known by name", "--base-model")
}

// TestOtherBase completes a file by models that have other components.
func TestOtherBase(t *testing.T) {
	base := testModel("zimage-ordinary")
	parts := map[string]map[string]*checkpoint.Array{
		"model.diffusion_model.":           original(t, base+"/transformer"),
		"text_encoders.t5xxl.transformer.": modeltest.Read(t, testModel("flux1-schnell-ordinary")+"/text_encoder_2"),
	}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	modeltest.Write(t, path, nil, parts)
	for base, text := range map[string]string{
		base:                                "has a T5EncoderModel, and the base model, " + base + ", has none",
		testModel("flux1-schnell-ordinary"): "has a ZImageTransformer2DModel, and the base model, " + testModel("flux1-schnell-ordinary") + ", a FluxTransformer2DModel",
	} {
		if _, err := FindWith(path, base); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("base %s: error %v, expected %q", base, err, text)
		}
	}
}

// TestNoModel has files that are no models, and what is said of them.
func TestNoModel(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	dir := t.TempDir()
	tensor := modeltest.Read(t, testModel("zimage-ordinary")+"/vae")["encoder.conv_in.bias"]
	file := func(name string, keys ...string) string {
		t.Helper()
		list := map[string]*checkpoint.Array{}
		for _, key := range keys {
			list[key] = tensor
		}
		path := filepath.Join(dir, name)
		modeltest.Write(t, path, nil, map[string]map[string]*checkpoint.Array{"": list})
		return path
	}
	raw := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	vae := filepath.Join(dir, "ae.safetensors")
	modeltest.Write(t, vae, nil, map[string]map[string]*checkpoint.Array{"": original(t, testModel("zimage-ordinary")+"/vae")})
	for path, texts := range map[string][]string{
		file("lora.safetensors", "transformer.x_embedder.lora_A.weight"):                       {"LoRA", "--lora", "lora_A"},
		file("kohya.safetensors", "lora_unet_double_blocks_0_img_attn_proj.alpha"):             {"LoRA", "--lora"},
		file("xl.safetensors", "model.diffusion_model.input_blocks.0.0.weight"):                {"Stable Diffusion"},
		file("chroma.safetensors", "distilled_guidance_layer.in_proj.weight", "img_in.weight"): {"Chroma"},
		file("other.safetensors", "a.weight", "b.weight", "c.weight", "d.weight", "e.weight"):  {"a.weight, b.weight", "5 in all", "FLUX.1", "Z-Image", "ComfyUI"},
		file("long.safetensors", strings.Repeat("x", 1000)):                                    {strings.Repeat("x", 90) + "", "…"},
		vae:                       {"vae (AutoencoderKL)", "no transformer"},
		raw("model.gguf", "GGUF"): {"GGUF", "safetensors", "--quantize"},
		raw("model-00001-of-00003.safetensors", ""): {"several", "folder"},
		raw("model.ckpt", "PK\x03\x04"):             {"pickle", "safetensors"},
		raw("empty.safetensors", ""):                {"empty.safetensors", "not a safetensors file"},
		raw("pickle.safetensors", "\x80\x02"):       {"pickle.safetensors"},
	} {
		_, err := Find(path)
		if err == nil {
			t.Errorf("%s: no error", path)
			continue
		}
		mlxtest.Contains(t, err.Error(), append(texts, filepath.Base(path))...)
		if len(err.Error()) > 1000 {
			t.Errorf("%s: the message has %d bytes", path, len(err.Error()))
		}
	}
}

// TestOverlay reads a folder put together of two.
func TestOverlay(t *testing.T) {
	under := fstest.MapFS{"model_index.json": {Data: []byte("{}")}, "vae/config.json": {Data: []byte("1")}, "transformer/config.json": {Data: []byte("2")}, "transformer/a.bin": {}}
	from := fstest.MapFS{"x/weights": {Data: []byte("three")}}
	o := &overlay{name: "here", under: under, hidden: map[string]bool{"transformer": true}, files: map[string]overlayFile{"transformer/config.json": {text: []byte("four")}}}
	o.add("transformer/weights", from, "x/weights")
	if err := fstest.TestFS(o, "model_index.json", "vae/config.json", "transformer/config.json", "transformer/weights"); err != nil {
		t.Error(err)
	}
	got := map[string]string{}
	fs.WalkDir(o, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			data, _ := fs.ReadFile(o, name)
			got[name] = string(data)
		}
		return err
	})
	want := map[string]string{"model_index.json": "{}", "vae/config.json": "1", "transformer/config.json": "four", "transformer/weights": "three"}
	if !maps.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
	if _, err := fs.Stat(o, "transformer/a.bin"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a hidden file: %v", err)
	}
}

// TestPublished compares the table of what is published with the presets and with
// the pipelines that there are.
func TestPublished(t *testing.T) {
	for _, p := range Presets {
		facts, ok := published.Models[p.Name]
		if !ok {
			t.Errorf("%s is not in published.json", p.Name)
			continue
		}
		if classes[facts.Pipeline] == nil || published.Schedulers[facts.Scheduler] == nil {
			t.Errorf("%s: %+v", p.Name, facts)
		}
	}
	if len(published.Models) != len(Presets) || len(published.Pipelines) != len(classes) {
		t.Errorf("%d models and %d pipelines, expected %d and %d", len(published.Models), len(published.Pipelines), len(Presets), len(classes))
	}
}
