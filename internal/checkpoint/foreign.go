package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// What to use instead of weights in a format that gomflux does not read.
const (
	plainly  = "use a safetensors file of the same model in bfloat16 or in one of ComfyUI's formats"
	in8Bits  = plainly + ", with --quantize 8 for as little memory"
	in4Bits  = plainly + ", with --quantize 4 for as little memory"
	inNVFP4  = plainly + ", with --quantize nvfp4 for the same format"
	unknown  = "without ComfyUI's tensors comfy_quant, which name its format"
	original = "use the bfloat16 files that it was made from, which have the same weights"
)

// A foreignWeights is a format of quantized weights in safetensors files that gomflux does not read.
// A checkpoint has it if a tensor's name ends with suffix and, if these are set, the tensor has
// dtype, more than one element, and a tensor of the same module whose name ends with beside.
type foreignWeights struct {
	name    string
	method  string // quant_method in configs
	suffix  string
	dtype   Dtype
	several bool
	beside  string
	instead string
}

// foreignWeightsList lists the formats, those before others whose tensors they have too. The suffixes
// are the names that the programs give their tensors, mostly as the quantizers of diffusers 0.42 and
// transformers 5 read them.
var foreignWeightsList = []foreignWeights{
	{name: "bitsandbytes NF4", suffix: ".quant_state.bitsandbytes__nf4", instead: in4Bits},
	{name: "bitsandbytes FP4", suffix: ".quant_state.bitsandbytes__fp4", instead: in4Bits},
	{name: "bitsandbytes with 4 bits", suffix: ".weight.absmax", instead: in4Bits},
	{name: "bitsandbytes LLM.int8", method: "bitsandbytes", suffix: ".SCB", instead: in8Bits},
	{name: "SVDQuant, as Nunchaku reads it", method: "nunchaku_lite", suffix: ".wscales", instead: in4Bits},
	{name: "DFloat11", method: "dfloat11", suffix: ".encoded_exponent", instead: original},
	{name: "torchao", method: "torchao", suffix: "._weight_qdata", instead: in8Bits},
	{name: "optimum-quanto with 2 or 4 bits", suffix: ".weight._data._data", instead: in4Bits},
	{name: "optimum-quanto", method: "quanto", suffix: ".weight._data", instead: in8Bits},
	{name: "HQQ", method: "hqq", suffix: ".W_q", instead: in4Bits},
	{name: "EETQ", method: "eetq", suffix: ".weight_scales", instead: in8Bits},
	{name: "compressed-tensors NVFP4", suffix: ".weight_global_scale", instead: inNVFP4},
	{name: "compressed-tensors", method: "compressed-tensors", suffix: ".weight_packed", instead: in4Bits},
	{name: "GPTQ", method: "gptq", suffix: ".g_idx", beside: ".qzeros", instead: in4Bits},
	{name: "AWQ", method: "awq", suffix: ".qzeros", beside: ".qweight", instead: in4Bits},
	{name: "AutoRound", method: "auto-round", suffix: ".qweight", instead: in4Bits},
	{name: "SDNQ", method: "sdnq", suffix: ".svd_up", beside: ".svd_down", instead: in4Bits},
	{name: "SDNQ", method: "sdnq", suffix: ".weight", dtype: U8, beside: ".scale", instead: in4Bits},
	{name: "SDNQ", method: "sdnq", suffix: ".weight", dtype: I8, beside: ".scale", instead: in8Bits},
	{name: "SDNQ", method: "sdnq", suffix: ".weight", dtype: F8E4M3, beside: ".scale", instead: in8Bits},
	{name: "NVFP4, as ModelOpt and Black Forest Labs write it", suffix: ".weight_scale_2", beside: ".weight", instead: inNVFP4},
	{name: "ModelOpt", suffix: ".weight_quantizer._scale", instead: in8Bits},
	{name: "FP8 with a scale for each block", method: "fp8", suffix: ".weight_scale_inv", instead: in8Bits},
	{name: unknown, suffix: ".weight", dtype: I8, instead: in8Bits},
	{name: unknown, suffix: ".weight", dtype: U8, beside: ".weight_scale", instead: in4Bits},
	{name: "FP8 with a scale for each row", method: "bfl", suffix: ".weight_scale", several: true, beside: ".weight", instead: in8Bits},
	{name: "FP8 with five bits of exponent (float8_e5m2)", suffix: ".weight", dtype: F8E5M2, instead: plainly},
	{name: "transformers' Metal kernels", method: "metal", suffix: ".qbiases", instead: in4Bits},
	{name: "HIGGS", method: "higgs", suffix: ".tables2", instead: in4Bits},
	{name: "FP-Quant", method: "fp_quant", suffix: ".dqweight", instead: in4Bits},
}

// in returns the name of a tensor that shows the format, "" if there is no such tensor.
func (f *foreignWeights) in(tensors map[string]Tensor, names []string) string {
	for _, name := range names {
		module, ok := strings.CutSuffix(name, f.suffix)
		if !ok {
			continue
		}
		t := tensors[name]
		_, beside := tensors[module+f.beside]
		if t.Packing == nil && (f.dtype == "" || t.Dtype == f.dtype) && (!f.several || t.Len() > 1) && (f.beside == "" || beside) {
			return name
		}
	}
	return ""
}

// foreign returns an error if the weights are in a format that gomflux does not read. Among formats
// with the same tensors the quant_method of a config decides, which method returns.
func (c *Checkpoint) foreign(method func() string) error {
	names := slices.Sorted(maps.Keys(c.Tensors))
	var found *foreignWeights
	var shows string
	for i := range foreignWeightsList {
		f := &foreignWeightsList[i]
		if found != nil && (found.method == "" || f.method == "" || f.method == found.method || f.method != method()) {
			continue
		}
		if name := f.in(c.Tensors, names); name != "" {
			found, shows = f, name
		}
	}
	if found == nil {
		return nil
	}
	name, t := found.name, c.Tensors[shows]
	if name == unknown && method() != "" {
		name = quote.Text(method())
	}
	return fmt.Errorf("%s: %w: quantization %s (tensor %s, %s); %s",
		t.File, ErrUnsupported, name, quote.Text(shows), t.Type(), found.instead)
}

// QuantizationMethod returns the quant_method of a config.json of diffusers, transformers or DFloat11,
// and what to use instead if gomflux does not read it. Both may be "".
func QuantizationMethod(config []byte) (method, instead string) {
	var c struct {
		Quantization struct {
			Method string `json:"quant_method"`
		} `json:"quantization_config"`
		DFloat11 json.RawMessage `json:"dfloat11_config"`
	}
	if json.Unmarshal(config, &c) != nil { // an error when the config is read
		return "", ""
	}
	if method = c.Quantization.Method; c.DFloat11 != nil {
		method = "dfloat11"
	}
	for _, f := range foreignWeightsList {
		if method != "" && f.method == method {
			return method, f.instead
		}
	}
	return method, ""
}

// A FileFormat is a format of files that gomflux does not read.
type FileFormat struct {
	name       string
	extensions []string
	magic      string // the first bytes, "" if they do not tell
	instead    string
}

const (
	// saveAgain is the hint about weights of PyTorch.
	saveAgain = "load the model with diffusers or transformers and save it with save_pretrained(folder, safe_serialization=True)"
	wholeFile = "use a safetensors file of the same model"
)

var fileFormats = []FileFormat{
	{"a GGUF file", []string{".gguf"}, "GGUF", wholeFile + ", with --quantize 4 for as little memory; " +
		"MLX cannot read the GGUF quantizations Q3_K, Q5_0, Q5_1, Q5_K and IQ, and reads most others only as float16 and all at once"},
	{"a zip archive, as torch.save writes", nil, "PK\x03\x04", saveAgain},
	{"a file of Draw Things", nil, "SQLite f", wholeFile},
	{"a pickle file, which can run arbitrary code", []string{".bin", ".pt", ".pth", ".ckpt", ".pkl"}, "", wholeFile + ", or " + saveAgain},
	{"a NumPy file", []string{".npy", ".npz"}, "\x93NUMPY", wholeFile},
	{"an HDF5 file, as Keras writes", []string{".h5", ".hdf5", ".keras"}, "\x89HDF", wholeFile},
	{"a file of Flax", []string{".msgpack"}, "", wholeFile},
	{"an ONNX file", []string{".onnx", ".onnx_data"}, "", wholeFile},
	{"a TensorRT engine", []string{".engine", ".plan", ".trt"}, "ftrt", wholeFile},
	{"a Core ML model", []string{".mlmodel", ".mlmodelc", ".mlpackage"}, "", wholeFile},
	{"a TensorFlow Lite file", []string{".tflite"}, "", wholeFile},
	{"a Git LFS pointer", nil, "version ", "run git lfs pull to get the weights"},
	{"a web page", nil, "<!", "the download failed"},
	{"a web page", nil, "<html", "the download failed"},
	{"a web page", nil, "<?xml", "the download failed"},
}

func (f *FileFormat) String() string { return f.name + " (" + f.instead + ")" }

// FormatNamed returns the format of a file that gomflux does not read, by the file's name; nil if the
// name is not that of such a file.
func FormatNamed(name string) *FileFormat {
	extension := strings.ToLower(path.Ext(name))
	for i := range fileFormats {
		if slices.Contains(fileFormats[i].extensions, extension) {
			return &fileFormats[i]
		}
	}
	return nil
}

// formatOf recognises, by the first 8 bytes, other formats that often have the name of a safetensors
// file.
func formatOf(prefix []byte) *FileFormat {
	for i := range fileFormats {
		if magic := fileFormats[i].magic; magic != "" && bytes.HasPrefix(prefix, []byte(magic)) {
			return &fileFormats[i]
		}
	}
	return nil
}

// IsPickle reports whether a file name is that of a pickle. Loading a pickle can run any code.
func IsPickle(name string) bool { return FormatNamed(name) == pickle }

var pickle = FormatNamed(".pkl")
