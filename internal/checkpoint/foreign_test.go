package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A part is a tensor of a layer in files of other programs, with its name after the layer's.
type part struct {
	suffix string
	dtype  Dtype
	shape  []int
}

// writeStored writes a folder with the tensors of two modules, zeros, and a config with a quant_method.
func writeStored(t *testing.T, method string, tensors []part) string {
	t.Helper()
	dir := t.TempDir()
	list := []Tensor{{Name: "norm.scale", Dtype: F32, Shape: []int{4}}, {Name: "norm.weight", Dtype: F32, Shape: []int{4}}}
	for _, module := range []string{"blocks.0.to_q", "blocks.1.to_q"} {
		for _, s := range tensors {
			list = append(list, Tensor{Name: module + s.suffix, Dtype: s.dtype, Shape: s.shape})
		}
	}
	f, err := Create(filepath.Join(dir, "model.safetensors"), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range list {
		if _, err := io.CopyN(f, zeros{}, tensor.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if method != "" {
		config := fmt.Sprintf(`{"quantization_config": {"quant_method": %q}}`, method)
		if err := os.WriteFile(filepath.Join(dir, configName), []byte(config), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestForeignWeights checks that weights of other programs are refused by the name of their format, and
// that those that gomflux reads are not. The tensors are those of a layer of 64 x 128 as the programs
// that the list names write it.
func TestForeignWeights(t *testing.T) {
	none, one, rows := []int{}, []int{1}, []int{64, 1}
	gptq := []part{{".qweight", I32, []int{16, 64}}, {".qzeros", I32, []int{1, 8}}, {".scales", F16, []int{1, 64}}}
	nf4 := []part{{".weight", U8, []int{4096, 1}}, {".weight.absmax", U8, []int{128}}, {".weight.quant_map", F32, []int{16}},
		{".weight.nested_absmax", F32, one}, {".weight.nested_quant_map", F32, []int{256}},
		{".weight.quant_state.bitsandbytes__nf4", U8, []int{90}}}
	for _, c := range []struct {
		name, method string // "" for weights that are read
		tensors      []part
	}{
		{"bitsandbytes NF4", "", nf4},
		{"bitsandbytes NF4", "bitsandbytes", nf4},
		{"bitsandbytes FP4", "bitsandbytes", []part{{".weight", U8, []int{4096, 1}}, {".weight.absmax", F32, []int{128}},
			{".weight.quant_map", F32, []int{16}}, {".weight.quant_state.bitsandbytes__fp4", U8, []int{80}}}},
		{"bitsandbytes LLM.int8", "bitsandbytes", []part{{".weight", I8, []int{64, 128}}, {".SCB", F32, []int{64}},
			{".weight_format", U8, none}}},
		{"bitsandbytes LLM.int8", "", []part{{".weight", I8, []int{64, 128}}, {".SCB", F32, []int{64}}, {".weight_format", U8, none}}},
		{"SVDQuant", "", []part{{".qweight", I8, []int{64, 64}}, {".wscales", BF16, []int{2, 64}}, {".smooth_factor", BF16, []int{128}},
			{".proj_down", BF16, []int{128, 32}},
			{".proj_up", BF16, []int{64, 32}}}},
		{"SVDQuant", "", []part{{".qweight", I32, []int{16, 64}}, {".wscales", BF16, []int{2, 64}}, {".wzeros", BF16, []int{2, 64}}}},
		{"DFloat11", "", []part{{".encoded_exponent", U8, one}, {".sign_mantissa", U8, one}, {".luts", U8, one},
			{".gaps", U8, one}}},
		{"torchao", "torchao", []part{{"._weight_qdata", I8, []int{64, 128}}, {"._weight_scale", BF16, rows}}},
		{"optimum-quanto (", "quanto", []part{{".weight._data", I8, []int{64, 128}}, {".weight._scale", BF16, rows},
			{".input_scale", F32, none}}},
		{"optimum-quanto with 2 or 4 bits", "quanto", []part{{".weight._data._data", U8, []int{64, 64}}, {".weight._scale", BF16, rows},
			{".weight._shift", BF16, rows}}},
		{"HQQ", "hqq", []part{{".W_q", U8, []int{64, 64}}, {".scale", F16, []int{128, 1}}, {".zero", F16, []int{128, 1}}}},
		{"EETQ", "eetq", []part{{".weight", I8, []int{128, 64}}, {".weight_scales", F16, []int{64}}}},
		{"compressed-tensors (", "compressed-tensors", []part{{".weight_packed", I32, []int{64, 16}}, {".weight_scale", BF16, rows},
			{".weight_shape", I64, []int{2}}}},
		{"compressed-tensors NVFP4", "compressed-tensors", []part{{".weight_packed", U8, []int{64, 64}},
			{".weight_scale", F8E4M3, []int{64, 8}}, {".weight_global_scale", F32, one}}},
		{"GPTQ", "", append([]part{{".g_idx", I32, []int{128}}}, gptq...)},
		{"GPTQ", "gptq", append([]part{{".g_idx", I32, []int{128}}}, gptq...)},
		{"AWQ", "", gptq},
		{"AutoRound", "auto-round", gptq},
		{"SDNQ", "sdnq", []part{{".weight", U8, []int{4096}}, {".scale", BF16, rows}, {".zero_point", BF16, rows}}},
		{"SDNQ", "sdnq", []part{{".weight", I8, []int{64, 128}}, {".scale", BF16, rows}}},
		{"SDNQ", "", []part{{".weight", U16, []int{64, 128}}, {".scale", BF16, rows}, {".svd_up", BF16, []int{64, 32}},
			{".svd_down", BF16, []int{32, 128}}}},
		{"NVFP4, as ModelOpt", "modelopt", []part{{".weight", U8, []int{64, 64}}, {".weight_scale", F8E4M3, []int{64, 8}},
			{".weight_scale_2", F32, none}, {".input_scale", F32, none}}},
		{"FP8 with a scale for each block", "fp8", []part{{".weight", F8E4M3, []int{64, 128}}, {".weight_scale_inv", F32, []int{1, 1}}}},
		{"FP8 with a scale for each row", "bfl", []part{{".weight", F8E4M3, []int{64, 128}}, {".weight_scale", F32, []int{64}}}},
		{"FP8 with five bits of exponent", "", []part{{".weight", F8E5M2, []int{64, 128}}, {".scale_weight", F32, one}}},
		{"without ComfyUI's tensors comfy_quant", "", []part{{".weight", I8, []int{64, 128}}, {".weight_scale", F32, rows}}},
		{`"new"`, "new", []part{{".weight", I8, []int{64, 128}}}},
		{"transformers' Metal kernels", "metal", []part{{".weight", U32, []int{64, 16}}, {".scales", BF16, []int{64, 2}},
			{".qbiases", BF16, []int{64, 2}}}},

		{"", "", []part{{".weight", BF16, []int{64, 128}}, {".bias", BF16, []int{64}}}},
		{"", "bitsandbytes", []part{{".weight", BF16, []int{64, 128}}}}, // dequantized
		{"", "", []part{{".weight", U32, []int{64, 16}}, {".scales", BF16, []int{64, 2}}, {".biases", BF16, []int{64, 2}}}},
		{"", "", []part{{".weight", U32, []int{64, 16}}, {".scales", U8, []int{64, 4}}}},
		{"", "fp8", []part{{".weight", F8E4M3, []int{64, 128}}, {".scale_weight", F32, none}, {".scale_input", F32, one}}},
		{"", "modelopt", []part{{".weight", F8E4M3, []int{64, 128}}, {".weight_scale", F32, one}, {".input_scale", F32, one}}},
	} {
		ck, err := OpenCheckpoint(os.DirFS(writeStored(t, c.method, c.tensors)), ".")
		if err == nil {
			ck.Close()
		}
		switch {
		case c.name == "" && err != nil:
			t.Errorf("%v: %v, expected no error", c.tensors, err)
		case c.name == "":
		case !errors.Is(err, ErrUnsupported),
			!strings.Contains(err.Error(), "quantization "+c.name), !strings.Contains(err.Error(), "; use "):
			t.Errorf("%v with quant_method %q: %v, expected %s", c.tensors, c.method, err, c.name)
		}
	}
}

func TestFormatNamed(t *testing.T) {
	for name, want := range map[string]string{
		"a/model-Q4_K_M.gguf": "GGUF", "x.CKPT": "pickle", "x.bin": "pickle", "model.onnx": "ONNX", "unet.plan": "TensorRT",
		"Unet.mlmodelc": "Core ML", "flax_model.msgpack": "Flax", "a.safetensors": "", "model": "", "config.json": "",
	} {
		switch f := FormatNamed(name); {
		case f == nil && want != "", f != nil && want == "":
			t.Errorf("%s: %v, expected %q", name, f, want)
		case f != nil && !strings.Contains(f.String(), want):
			t.Errorf("%s: %v, expected %q", name, f, want)
		}
	}
}
