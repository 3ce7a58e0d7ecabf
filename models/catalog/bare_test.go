package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
)

// TestNoModel checks the errors about files that are not models.
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
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
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
	modeltest.Write(t, vae, nil, map[string]map[string]*checkpoint.Array{"": modeltest.Original(t, testModel("zimage-ordinary")+"/vae")})
	for path, texts := range map[string][]string{
		file("lora.safetensors", "transformer.x_embedder.lora_A.weight"):                       {"LoRA", "--lora", "lora_A"},
		file("kohya.safetensors", "lora_unet_double_blocks_0_img_attn_proj.alpha"):             {"LoRA", "--lora"},
		file("xl.safetensors", "model.diffusion_model.input_blocks.0.0.weight"):                {"Stable Diffusion"},
		file("chroma.safetensors", "distilled_guidance_layer.in_proj.weight", "img_in.weight"): {"Chroma"},
		file("other.safetensors", "a.weight", "b.weight", "c.weight", "d.weight", "e.weight"): {"a.weight, b.weight",
			"5 in all", "FLUX.1", "Z-Image", "ComfyUI"},
		file("long.safetensors", strings.Repeat("x", 1000)): {strings.Repeat("x", 90) + "", "…"},
		vae:                       {"expected a transformer", "vae (AutoencoderKL)"},
		raw("model.gguf", "GGUF"): {"GGUF", "safetensors", "--quantize"},
		raw("model.onnx", "x"):    {"ONNX", "safetensors"},
		file("nf4.safetensors", "img_in.weight.quant_state.bitsandbytes__nf4"):  {"bitsandbytes NF4", "--quantize 4"},
		file("df11/model.safetensors", "transformer_blocks.0.encoded_exponent"): {"DFloat11", "bfloat16"},
		raw("model-00001-of-00003.safetensors", ""):                             {"several", "folder"},
		raw("model.ckpt", "PK\x03\x04"):                                         {"pickle", "safetensors"},
		raw("empty.safetensors", ""):                                            {"empty.safetensors", "not a safetensors file"},
		raw("pickle.safetensors", "\x80\x02"):                                   {"pickle.safetensors"},
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
