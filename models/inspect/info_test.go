package inspect_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/inspect"
)

const ordinary = "../testdata/zimage-ordinary/model"

// TestModel damages a model in many ways. models.Load has to refuse all that Model
// finds incomplete or not supported.
func TestModel(t *testing.T) {
	mlxtest.Do(t, func() {}) // MLX's library is found from this folder, which is left below
	const shard = "transformer/diffusion_pytorch_model-00002-of-00002.safetensors"
	remove := func(names ...string) func(*testing.T) {
		return func(t *testing.T) {
			for _, name := range names {
				if err := os.RemoveAll(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	dangle := func(name string) func(*testing.T) {
		return func(t *testing.T) {
			remove(name)(t)
			if err := os.Symlink("../../blobs/abc", name); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(name, text string) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func(name string, to int64) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Truncate(name, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace := func(name, old, new string) func(*testing.T) {
		return func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), old) {
				t.Fatalf("%s has no %s", name, old)
			}
			write(name, strings.ReplaceAll(string(text), old, new))(t)
		}
	}

	tests := map[string]struct {
		damage      func(*testing.T)
		incomplete  []string // what the error has; none for no error
		unsupported string
		noClass     bool
	}{
		"whole":      {damage: func(*testing.T) {}},
		"more files": {damage: write("README.md", "read me")},
		"no index":   {damage: remove("model_index.json"), incomplete: []string{"m: has no model_index.json"}, noClass: true},
		"dangling index": {damage: dangle("model_index.json"),
			incomplete: []string{"m/model_index.json: is a link to ../../blobs/abc"}, noClass: true},
		"index is no JSON": {damage: write("model_index.json", "{"), incomplete: []string{"m/model_index.json: line 1"}, noClass: true},
		"escaping index": {damage: write("model_index.json",
			`{"_class_name": "ZImagePipeline", "../m": ["diffusers", "AutoencoderKL"]}`),
			incomplete: []string{`"../m" is not the name of a component`}, noClass: true},
		"no component": {damage: remove("vae"),
			incomplete: []string{"folder m: is not complete (is the download complete?), missing: vae/"}},
		"no configs": {damage: remove("transformer/config.json", "scheduler/scheduler_config.json",
			"tokenizer/tokenizer.json"), incomplete: []string{"missing: scheduler/scheduler_config.json, transformer/config.json"}},
		"no tokenizer": {damage: remove("tokenizer/tokenizer.json", "tokenizer/vocab.json"),
			incomplete: []string{"missing: tokenizer/tokenizer.json"}},
		"dangling config": {damage: dangle("vae/config.json"), incomplete: []string{"missing: vae/config.json"}},
		"no shard": {damage: remove(shard),
			incomplete: []string{"1 of 2 shards are missing (is the download complete?): diffusion_pytorch_model-00002"}},
		"dangling shard": {damage: dangle(shard),
			incomplete: []string{"1 of 2 shards are missing (is the download complete?): diffusion_pytorch_model-00002"}},
		"no index of shards": {damage: remove("transformer/diffusion_pytorch_model.safetensors.index.json"),
			incomplete: []string{"folder m/transformer: found shards but not their index"}},
		"no weights": {damage: remove("vae/diffusion_pytorch_model.safetensors"),
			incomplete: []string{"folder m/vae: no safetensors file", "is the download complete?"}},
		"dangling weights": {damage: dangle("vae/diffusion_pytorch_model.safetensors"),
			incomplete: []string{"m/vae/diffusion_pytorch_model.safetensors: is a link to ../../blobs/abc", "is the download complete"}},
		"cut":           {damage: cut(shard, 60000), incomplete: []string{"m/" + shard + ": ", "truncated"}},
		"cut header":    {damage: cut(shard, 7), incomplete: []string{"m/" + shard + ": not a safetensors file"}},
		"cut tokenizer": {damage: cut("tokenizer/tokenizer.json", 9000), incomplete: []string{"m/tokenizer/tokenizer.json: "}},
		"tokenizer's option": {damage: write("tokenizer/tokenizer_config.json",
			`{"tokenizer_class": "Qwen2Tokenizer", "split_special_tokens": true}`),
			unsupported: "m/tokenizer/tokenizer_config.json: split_special_tokens true is not supported"},
		"cut config": {damage: cut("vae/config.json", 100), incomplete: []string{"m/vae/config.json: "}},
		"pickles": {damage: func(t *testing.T) {
			remove("vae/diffusion_pytorch_model.safetensors")(t)
			write("vae/diffusion_pytorch_model.bin", "")(t)
		}, incomplete: []string{"only diffusion_pytorch_model.bin: a pickle file"}},
		"all at once": {damage: func(t *testing.T) {
			remove("vae", shard)(t)
			cut("text_encoder/model-00001-of-00002.safetensors", 20000)(t)
		}, incomplete: []string{"missing: vae/", "1 of 2 shards", "m/text_encoder/model-00001-of-00002.safetensors: "}},
		"two models": {damage: replace("vae/config.json", `"latent_channels": 4`, `"latent_channels": 8`),
			incomplete: []string{"the vae's latent_channels is 8, but the transformer's in_channels is 4: " +
				"the components belong to different models"}},
		"other config": {damage: replace("transformer/config.json", `"n_refiner_layers": 1`, `"n_refiner_layers": 2`),
			incomplete: []string{"the tensors in m/transformer do not match the transformer that its config describes: " +
				"28 missing (such as noise_refiner.1."}},
		"class": {damage: replace("model_index.json", "ZImagePipeline", "StableDiffusion3Pipeline"),
			unsupported: `m/model_index.json: pipeline class "StableDiffusion3Pipeline"`},
		"no class": {damage: replace("model_index.json", "_class_name", "_classname"), unsupported: `pipeline class ""`, noClass: true},
		"class and shard": {damage: func(t *testing.T) {
			replace("model_index.json", "ZImagePipeline", "StableDiffusion3Pipeline")(t)
			remove(shard)(t)
		}, unsupported: `"StableDiffusion3Pipeline"`, incomplete: []string{"1 of 2 shards"}},
		"class and tokenizer": {damage: func(t *testing.T) {
			replace("model_index.json", "ZImagePipeline", "StableDiffusion3Pipeline")(t)
			remove("tokenizer/tokenizer.json")(t)
		}, unsupported: `"StableDiffusion3Pipeline"`},
		"projection": {damage: write("vae/latent_rgb_factors.json", `{"latent_rgb_factors": [[1,2,3]]}`),
			incomplete: []string{"m/vae/latent_rgb_factors.json: 1 latent_rgb_factors"}},
		"config": {damage: replace("vae/config.json", `"act_fn": "silu"`, `"act_fn": "mish"`),
			unsupported: `m/vae/config.json: act_fn "mish"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			from, err := filepath.Abs(ordinary)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			if err := os.CopyFS("m", os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			t.Chdir("m")
			test.damage(t)
			t.Chdir("..")
			folder, err := checkpoint.OpenFolder("m")
			if err != nil {
				t.Fatal(err)
			}
			info := inspect.Model(folder)
			if (info.Class == "") != test.noClass {
				t.Errorf("class %q", info.Class)
			}
			if info.Size <= 0 {
				t.Errorf("%d bytes", info.Size)
			}
			if (info.Incomplete == nil) != (test.incomplete == nil) {
				t.Errorf("incomplete: %v, expected %q", info.Incomplete, test.incomplete)
			}
			for _, want := range test.incomplete {
				if info.Incomplete == nil || !strings.Contains(info.Incomplete.Error(), want) ||
					strings.Contains(info.Incomplete.Error(), "\n") {
					t.Errorf("incomplete: %v, expected one line with %q", info.Incomplete, want)
				}
			}
			if test.unsupported == "" && info.Unsupported != nil ||
				test.unsupported != "" && (!errors.Is(info.Unsupported, errs.ErrUnsupported) ||
					!strings.Contains(info.Unsupported.Error(), test.unsupported)) {
				t.Errorf("not supported: %v, expected %q", info.Unsupported, test.unsupported)
			}

			mlxtest.Do(t, func() {
				p, err := models.Load(folder, models.LoadOptions{})
				if err == nil {
					p.Close()
				}
				if (err == nil) != (info.Incomplete == nil && info.Unsupported == nil) {
					t.Errorf("Load: %v, and Model: %v, %v", err, info.Incomplete, info.Unsupported)
				}
			})
		})
	}
}

// FuzzModel reads any model_index.json beside the components of a model.
func FuzzModel(f *testing.F) {
	text, err := os.ReadFile(filepath.Join(ordinary, "model_index.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"_class_name": 1, "vae": ["diffusers", "AutoencoderKL"], "image_encoder": [null, null], ` +
		`"tokenizer_2": ["transformers", "T5Tokenizer"]}`))
	f.Add([]byte(`{"_class_name": "ZImagePipeline", ".": ["a", "b"], "vae/x": ["a", "b"], "": ["a", "b"], "vae": [1, 2, 3]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		config := &fstest.MapFile{Data: []byte("{}")}
		info := inspect.Model(fstest.MapFS{
			"model_index.json": {Data: text}, "vae/config.json": config, "scheduler/scheduler_config.json": config,
			"tokenizer/tokenizer.json": config, ".cache/huggingface/download/x.incomplete": config,
		})
		if info.Size != int64(len(text)+6) {
			t.Errorf("%d bytes", info.Size)
		}
		if info.Incomplete == nil && info.Unsupported == nil {
			t.Error("a model without weights can be run")
		}
	})
}
