package component_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
)

// The models of package textenc's tests have the names of Qwen3VLForConditionalGeneration, of
// Qwen3VLModel, and of ComfyUI's files.
var qwen3VLs = []string{"qwen3vl-published", "qwen3vl-small", "qwen3vl-whole"}

func openQwen3VL(t *testing.T, folder string) *checkpoint.Checkpoint {
	t.Helper()
	ck, err := checkpoint.OpenCheckpoint(os.DirFS("../../textenc/testdata"), folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}

// renamed returns a checkpoint whose tensors have the names that f returns, without those for
// which it returns "".
func renamed(ck *checkpoint.Checkpoint, f func(name string) string) *checkpoint.Checkpoint {
	view := &checkpoint.Checkpoint{Dir: ck.Dir, Files: ck.Files, Tensors: map[string]checkpoint.Tensor{}}
	for name, tensor := range ck.Tensors {
		if to := f(name); to != "" {
			view.Tensors[to] = tensor
		}
	}
	return view
}

// TestDetectQwen3VL recognises a Qwen3-VL in single files, with and without its vision encoder,
// and infers the sizes that shapes determine.
func TestDetectQwen3VL(t *testing.T) {
	for _, folder := range qwen3VLs {
		ck := openQwen3VL(t, folder)
		want := textenc.DefaultQwen3VLConfig()
		text, err := os.ReadFile(filepath.Join("../../textenc/testdata", folder, "config.json"))
		if err == nil {
			err = json.Unmarshal(text, &want)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"", "text_encoder.", "text_encoders.qwen3vl_4b.transformer.",
			"text_encoders.qwen3vl_8b.transformer."} {
			for _, vision := range []bool{true, false} {
				class := component.Qwen3VLForConditionalGeneration
				if !vision && folder == "qwen3vl-whole" && !strings.Contains(prefix, "qwen3vl") {
					class = component.Qwen3Model // whose names these are
				}
				file := renamed(ck, func(name string) string {
					if !vision && strings.Contains(name, "visual.") {
						return ""
					}
					return prefix + name
				})
				parts, err := component.Detect(file, "")
				if err != nil || len(parts) != 1 || parts[0].Class != class || parts[0].Prefix != prefix {
					t.Errorf("%s, prefix %q, vision %v: found %+v, %v, expected a %s", folder, prefix, vision, parts, err, class.Name)
					continue
				}
				as, ok := component.DetectAs(file, component.Qwen3VLForConditionalGeneration)
				if !ok || as.Prefix != prefix {
					t.Errorf("%s, prefix %q, vision %v: is no Qwen3-VL, found %+v", folder, prefix, vision, as)
				}
				c, err := as.Infer(file)
				if err != nil {
					t.Errorf("%s, prefix %q: %v", folder, prefix, err)
					continue
				}
				if layers := c.Inferred["num_hidden_layers"]; layers != want.Text.NumHiddenLayers {
					t.Errorf("%s: inferred %v layers, expected %d", folder, layers, want.Text.NumHiddenLayers)
				}
				if heads := c.Inferred["num_key_value_heads"]; heads != *want.Text.NumKeyValueHeads {
					t.Errorf("%s: inferred %v heads of keys, expected %d", folder, heads, *want.Text.NumKeyValueHeads)
				}
				tower, ok := c.Published["vision_config"].(map[string]any)
				if ok != vision || ok && (tower["depth"] != want.Vision.Depth || tower["patch_size"] != want.Vision.PatchSize ||
					tower["out_hidden_size"] != want.Text.HiddenSize) {
					t.Errorf("%s, vision %v: inferred %v, expected %+v", folder, vision, tower, want.Vision)
				}
			}
		}
	}
}

// TestQwen3VLWithVision checks that a model without its vision encoder can still be declared,
// and that the reason is told.
func TestQwen3VLWithVision(t *testing.T) {
	const folder = "qwen3vl-small"
	whole := openQwen3VL(t, folder)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "text"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := renamed(whole, func(name string) string {
		if strings.HasPrefix(name, "visual.") {
			return ""
		}
		return name
	})
	var arrays []*checkpoint.Array
	for name, tensor := range text.Tensors {
		a, err := checkpoint.NewArray(name, tensor.Dtype, tensor.Shape, make([]byte, tensor.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		arrays = append(arrays, a)
	}
	if err := checkpoint.WriteFile(filepath.Join(dir, "text", "model.safetensors"), arrays, nil); err != nil {
		t.Fatal(err)
	}
	open := func(root, dir string, vision bool) (*textenc.Qwen3VL, error, error) {
		fsys, err := checkpoint.OpenFolder(root)
		if err != nil {
			t.Fatal(err)
		}
		c := textenc.DefaultQwen3VLConfig()
		if err := checkpoint.ReadJSON(os.DirFS("../../textenc/testdata"), folder+"/config.json", &c); err != nil {
			t.Fatal(err)
		}
		if !vision {
			c.Vision = nil
		}
		f := component.Folder{FS: fsys, Dtype: mlx.Float32}
		return f.Qwen3VLWithVision(dir, c, []int{1})
	}

	m, missing, err := open("../../textenc/testdata", folder, true)
	if err != nil || missing != nil || m.Visual == nil {
		t.Errorf("found %v, %v", missing, err)
	}
	m, missing, err = open(dir, "absent", true)
	if err != nil || missing != nil || m.Visual == nil {
		t.Errorf("without weights: found %v, %v", missing, err)
	}
	m, missing, err = open(dir, "text", true)
	want := "lacks the 75 tensors of the vision encoder (visual.patch_embed.proj.weight, visual.patch_embed.proj.bias, …): " +
		"the model can generate images, but not see any"
	if err != nil || missing == nil || !strings.HasSuffix(missing.Error(), want) || m.Visual != nil {
		t.Errorf("found %v, %v, expected %q", missing, err, want)
	}
	m, missing, err = open(dir, "text", false)
	if err != nil || missing == nil || !strings.Contains(missing.Error(), "text/config.json: has no vision_config") || m.Visual != nil {
		t.Errorf("found %v, %v", missing, err)
	}
}
