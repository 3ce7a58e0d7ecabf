package modeltest

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// Original are the tensors of a component's folder, which has a config, as the
// model's makers have them.
func Original(t testing.TB, folder string) map[string]*checkpoint.Array {
	t.Helper()
	class, err := component.ClassName(os.DirFS(folder), ".")
	if err != nil {
		t.Fatal(err)
	}
	return AsMade(t, component.Find(class), Read(t, folder))
}

// AsMade are the tensors of a component as the model's makers have them.
func AsMade(t testing.TB, class *component.Class, from map[string]*checkpoint.Array) map[string]*checkpoint.Array {
	t.Helper()
	for _, table := range Renaming(class.Original) {
		made := Stored(t, table, from)
		if !slices.ContainsFunc(table.Signature, func(name string) bool { return made[name] == nil }) {
			return made
		}
	}
	return from
}

// Renaming are the tables that give tensors other names than diffusers'.
func Renaming(tables []*layout.Table) (renaming []*layout.Table) {
	for _, t := range tables {
		if len(t.Rules) > 0 {
			renaming = append(renaming, t)
		}
	}
	return renaming
}

// encoders are ComfyUI's names for text encoders.
var encoders = map[*component.Class]string{
	component.CLIPTextModel: "clip_l", component.T5EncoderModel: "t5xxl", component.Qwen3Model: "qwen3_4b",
	component.Qwen25VLForConditionalGeneration: "qwen25_7b", component.Qwen3VLForConditionalGeneration: "qwen3vl_4b",
}

// WriteEightBits writes tensors as ComfyUI does in files of 8-bit floats, with scales if scaled is set,
// and returns tensors of the numbers that these represent.
func WriteEightBits(t testing.TB, path string, tensors map[string]*checkpoint.Array, scaled bool) map[string]*checkpoint.Array {
	t.Helper()
	values := checkpoint.EightBits(checkpoint.F8E4M3)
	nearest := func(v float32) byte {
		bits := math.Float32bits(v)
		exponent := max(bits>>23&0xff, 127-6)              // smaller numbers have the unit of 2^-6
		unit := math.Float32frombits((exponent - 3) << 23) // there are 8 values from one power of 2 to the next
		size := math.RoundToEven(math.Abs(float64(v / unit)))
		return byte(min(8*(exponent-(127-6))+uint32(size), 126) | bits>>31<<7) // 127 is NaN
	}
	packed := map[string]*checkpoint.Array{"scaled_fp8": {Dtype: checkpoint.BF16, Shape: []int{0}}}
	plain := map[string]*checkpoint.Array{}
	for name, tensor := range tensors {
		module, ok := strings.CutSuffix(name, ".weight")
		if !ok || len(tensor.Shape) != 2 {
			packed[name], plain[name] = tensor, tensor
			continue
		}
		by := float32(1)
		if scaled {
			by = 0.0375 // no power of 2
			one, err := checkpoint.FromFloat32("", []int{}, []float32{by})
			if err != nil {
				t.Fatal(err)
			}
			packed[module+".scale_weight"] = one
		}
		numbers := tensor.Float32s()
		data := make([]byte, len(numbers))
		for i, v := range numbers {
			data[i] = nearest(v / by)
			numbers[i] = values[data[i]] * by
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
	Write(t, path, nil, map[string]map[string]*checkpoint.Array{"model.diffusion_model.": packed})
	Retype(t, path, "U8", "F8_E4M3")
	return plain
}

// SingleFiles writes files of what a model folder has, as the model's makers and
// ComfyUI would: its transformer, with a prefix and without, and all in one. It
// returns their paths.
func SingleFiles(t testing.TB, model string) (bare, comfy, all string) {
	t.Helper()
	const prefix = "model.diffusion_model."
	transformer := Original(t, filepath.Join(model, component.Transformers))
	parts := map[string]map[string]*checkpoint.Array{prefix: transformer, "vae.": Original(t, filepath.Join(model, component.Autoencoders))}
	for _, m := range pipeline(t, model).Components {
		if name := encoders[m.Class]; name != "" {
			parts["text_encoders."+name+".transformer."] = Read(t, filepath.Join(model, m.Folder))
		}
	}
	dir := t.TempDir()
	bare, comfy, all = filepath.Join(dir, "bare.safetensors"), filepath.Join(dir, "comfy.safetensors"),
		filepath.Join(dir, "all.safetensors")
	Write(t, bare, nil, map[string]map[string]*checkpoint.Array{"": transformer})
	Write(t, comfy, nil, map[string]map[string]*checkpoint.Array{prefix: transformer})
	Write(t, all, nil, parts)
	return bare, comfy, all
}

// MFluxFolder writes what a model folder has as mflux saves it, with neither
// model_index.json nor configs nor a scheduler. Anima's text conditioner is in the transformer's folder.
func MFluxFolder(t testing.TB, model string) (folder string) {
	t.Helper()
	metadata := map[string]string{"mflux_version": "0.24.0", "quantization_level": "None"}
	folder = t.TempDir()
	for _, m := range pipeline(t, model).Components {
		from, to := filepath.Join(model, m.Folder), filepath.Join(folder, cmp.Or(m.MFluxFolder, m.Folder))
		switch {
		case m.Class == component.AnimaTextConditioner: // with the transformer
		case m.Class.Tokenizes():
			if err := os.CopyFS(to, os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
		case slices.Contains([]component.Role{component.Transformer, component.Autoencoder, component.TextEncoder}, m.Class.Role):
			table := m.MFlux
			if table == nil {
				table = m.Class.MFlux[0]
			}
			if err := os.MkdirAll(to, 0o777); err != nil {
				t.Fatal(err)
			}
			parts := map[string]map[string]*checkpoint.Array{"": Stored(t, table, Read(t, from))}
			if m.Class == component.CosmosTransformer3DModel {
				parts["llm_adapter."] = Read(t, filepath.Join(model, component.AnimaTextConditioner.Folder))
			}
			Write(t, filepath.Join(to, "0.safetensors"), metadata, parts)
		}
	}
	return folder
}

// pipeline is the class of a model folder.
func pipeline(t testing.TB, model string) *family.Class {
	t.Helper()
	fsys := os.DirFS(model)
	x, err := index.Read(fsys)
	if err != nil {
		t.Fatal(err)
	}
	class, err := family.Of(fsys, x)
	if err != nil {
		t.Fatal(err)
	}
	return class
}
