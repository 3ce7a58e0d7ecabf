package inspect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An attack is a change to the model folder m, which has a sibling folder outside. The
// error must name file and contain want.
type attack struct {
	change     func(t *testing.T)
	file, want string
}

const (
	transformerIndex  = "transformer/diffusion_pytorch_model.safetensors.index.json"
	transformerShard  = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
	transformerConfig = "transformer/config.json"
	textConfig        = "text_encoder/config.json"
	schedulerConfig   = "scheduler/scheduler_config.json"
	vaeConfig         = "vae/config.json"
)

// attacks returns the attacks of internal/checkpoint/testdata/attacks, and attacks that need
// a folder instead of a single safetensors file.
func attacks(t *testing.T) map[string]attack {
	all := map[string]attack{}
	files, err := filepath.Glob("../../internal/checkpoint/testdata/attacks/*.safetensors")
	if err != nil || len(files) == 0 {
		t.Fatalf("no attacks, %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(file)] = attack{file: vaeFile, change: put(vaeFile, string(data))}
		all["shard "+filepath.Base(file)] = attack{file: transformerShard, change: put(transformerShard, string(data))}
	}

	for name, shard := range map[string]string{
		"parent":    "../../outside/" + filepath.Base(transformerShard),
		"absolute":  "/outside/" + filepath.Base(transformerShard),
		"backslash": `..\\..\\outside\\` + filepath.Base(transformerShard),
		"NUL":       `x\u0000.safetensors`,
		"folder":    "folder/" + filepath.Base(transformerShard),
		"pickle":    "pytorch_model.bin",
	} {
		all["shard's name: "+name] = attack{file: transformerIndex,
			want: "must be the name of a .safetensors file in the same folder", change: func(t *testing.T) {
				data, err := os.ReadFile("m/" + transformerShard)
				if err != nil {
					t.Fatal(err)
				}
				for _, dir := range []string{"outside", "m/transformer/folder"} {
					os.Mkdir(dir, 0o777)
					put("../"+dir+"/"+filepath.Base(transformerShard), string(data))(t)
				}
				replaced(transformerIndex, filepath.Base(transformerShard), shard)(t)
			}}
	}

	for name, target := range map[string]string{
		"a device": "/dev/zero", "a named pipe": "../../outside/pipe", "a folder": "../../outside",
		"a file of another kind": "../../outside/secret", "nothing": "../../outside/nothing", "itself": filepath.Base(vaeFile),
	} {
		want := map[string]string{
			"a device": "expected a file, found a device", "a named pipe": "expected a file, found a named pipe",
			"a folder":               "expected a file, found a folder",
			"a file of another kind": "damaged or not a safetensors file",
			"nothing":                "is a link to ../../outside/nothing, which does not exist",
			"itself":                 "too many levels of symbolic links",
		}[name]
		all["link to "+name] = attack{file: vaeFile, want: want, change: linked(vaeFile, target)}
	}
	all["config is a link to a device"] = attack{file: vaeConfig, want: "found a device", change: linked(vaeConfig, "/dev/zero")}
	all["config is a link to a pipe"] = attack{file: vaeConfig, want: "found a named pipe", change: linked(vaeConfig, "../../outside/pipe")}
	all["config is a link to another file"] = attack{file: vaeConfig, want: "line 1: ", change: linked(vaeConfig, "../../outside/secret")}
	all["tokenizer is a link to a device"] = attack{file: "tokenizer/tokenizer.json", want: "found a device",
		change: linked("tokenizer/tokenizer.json", "/dev/zero")}
	all["index is a link to a pipe"] = attack{file: transformerIndex, want: "found a named pipe",
		change: linked(transformerIndex, "../../outside/pipe")}

	for name, component := range map[string]string{"parent": "../outside", "inside": "vae/../../outside",
		"absolute": "/outside", "this folder": ".", "none": ""} {
		all["component's name: "+name] = attack{file: "model_index.json", want: "is not the name of a component",
			change: replaced("model_index.json", `"vae"`, `"`+component+`"`)}
	}

	// numbers that no model has
	for _, c := range []struct{ file, old, new, want string }{
		{transformerConfig, `"n_layers": 2,`, `"n_layers": 2147483648,`, "n_layers 2147483648"},
		{transformerConfig, `"n_layers": 2,`, `"n_layers": -2,`, "n_layers -2"},
		{transformerConfig, `"n_layers": 2,`, `"n_layers": 1e308,`, "n_layers"},
		{transformerConfig, `"n_layers": 2,`, `"n_layers": 99999999999999999999,`, "n_layers"},
		{transformerConfig, `"n_layers": 2,`, `"n_layers": NaN,`, "NaN and Infinity are not JSON"},
		{transformerConfig, `"n_layers": 2,`, `"n_layers": 2, "n_layers": 3,`, "duplicate key"},
		{transformerConfig, `"n_layers": 2,`, `"n_layers": [[2]],`, "n_layers"},
		{transformerConfig, `"n_heads": 2,`, `"n_heads": -2,`, "n_heads"},
		{transformerConfig, `"n_heads": 2,`, `"n_heads": 0,`, "n_heads"},
		{transformerConfig, `"dim": 32,`, `"dim": 9223372036854775807,`, "dim"},
		{transformerConfig, `"rope_theta": 256.0,`, `"rope_theta": -1e308,`, "rope_theta"},
		{transformerConfig, "6,\n    6", "6,\n    1073741824", "axes_dims"},
		{textConfig, `"num_hidden_layers": 3,`, `"num_hidden_layers": 2147483647,`, "num_hidden_layers 2147483647: expected 1 to 1000"},
		{textConfig, `"vocab_size": 576`, `"vocab_size": 4611686018427387904`, "vocab_size 4611686018427387904: expected 1 to 1048576"},
		{textConfig, `"head_dim": 8,`, `"head_dim": -8,`, "head_dim -8"},
		{textConfig, `"num_key_value_heads": 1,`, `"num_key_value_heads": 0,`, "num_key_value_heads 0"},
		{vaeConfig, `"layers_per_block": 1,`, `"layers_per_block": 2147483647,`, "layers_per_block"},
		{vaeConfig, `"norm_num_groups": 2,`, `"norm_num_groups": 0,`, "norm_num_groups"},
		{vaeConfig, "4,\n    8", "-4,\n    8", "block_out_channels"},
		{vaeConfig, `"latent_channels": 4,`, `"latent_channels": 1099511627776,`, "latent_channels"},
		{schedulerConfig, `"num_train_timesteps": 1000,`, `"num_train_timesteps": -1,`, "num_train_timesteps -1"},
		{schedulerConfig, `"shift": 3.0,`, `"shift": 0,`, "shift 0"},
	} {
		all[fmt.Sprintf("%s: %.40s", c.file, c.new)] = attack{file: c.file, want: c.want, change: replaced(c.file, c.old, c.new)}
	}
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	all["deep config"] = attack{file: vaeConfig, want: "max depth", change: put(vaeConfig, deep)}
	all["deep index"] = attack{file: "model_index.json", want: "max depth", change: put("model_index.json", deep)}
	all["deep tokenizer"] = attack{file: "tokenizer/tokenizer.json", change: put("tokenizer/tokenizer.json", deep)}
	all["large config"] = attack{file: vaeConfig, want: "is too large", change: sparse(vaeConfig, 1<<40)}
	all["large index of shards"] = attack{file: transformerIndex, want: "is too large", change: sparse(transformerIndex, 1<<40)}
	all["large tokenizer"] = attack{file: "tokenizer/tokenizer.json", want: "is too large",
		change: sparse("tokenizer/tokenizer.json", 1<<40)}
	all["large weights"] = attack{file: vaeFile, want: "belong to no tensor", change: sparse(vaeFile, 1<<40)}
	all["a tensor of 1 TB"] = attack{file: "vae", want: "do not match the vae that its config describes", change: func(t *testing.T) {
		header := fmt.Sprintf(`{"t":{"dtype":"F32","shape":[1048576,262144],"data_offsets":[0,%d]}}`, int64(1)<<40)
		put(vaeFile, string([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0})+header)(t)
		sparse(vaeFile, 1<<40+8+int64(len(header)))(t)
	}}
	all["tokenizer of something else"] = attack{file: "tokenizer/tokenizer.json",
		change: put("tokenizer/tokenizer.json", `{"model": {"type": "BPE", "vocab": {"a": -1e308}, "merges": [["a"]]}}`)}
	all["tokenizer without a model"] = attack{file: "tokenizer/tokenizer.json", change: put("tokenizer/tokenizer.json", `{}`)}
	return all
}

func put(name, text string) func(*testing.T) {
	return func(t *testing.T) {
		if err := os.WriteFile("m/"+name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func replaced(name, old, new string) func(*testing.T) {
	return func(t *testing.T) {
		text, err := os.ReadFile("m/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), old) {
			t.Fatalf("%s has no %s", name, old)
		}
		put(name, strings.ReplaceAll(string(text), old, new))(t)
	}
}

func linked(name, target string) func(*testing.T) {
	return func(t *testing.T) {
		if err := os.Remove("m/" + name); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, "m/"+name); err != nil {
			t.Fatal(err)
		}
	}
}

func sparse(name string, size int64) func(*testing.T) {
	return func(t *testing.T) {
		if err := os.Truncate("m/"+name, size); err != nil {
			t.Skip(err) // a file system that has no such files
		}
	}
}
