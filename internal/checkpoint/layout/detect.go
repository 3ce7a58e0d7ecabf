package layout

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Part is a component that was found in a checkpoint.
type Part struct {
	// Class is diffusers' or transformers'.
	Class string
	// Table is the layout that its tensors have under Prefix. One without rules is
	// of diffusers' own names.
	Table  *Table
	Prefix string
}

// ErrLoRA is wrapped by errors about files that change a model, and are none.
var ErrLoRA = errors.New("a LoRA")

// order is that in which classes are looked for. One that has all of another's
// tensors and more comes before it.
var order = []string{
	"FluxTransformer2DModel", "Flux2Transformer2DModel", "ZImageTransformer2DModel", "QwenImageTransformer2DModel",
	"AutoencoderKLFlux2", "AutoencoderKL", "AutoencoderKLQwenImage",
	"CLIPTextModel", "T5EncoderModel", "Qwen3Model", "Qwen2_5_VLForConditionalGeneration",
}

// Detect finds out by its tensors' names which components a checkpoint holds, at
// least one. Its errors name some of them, and what they would have to be.
func Detect(ck *checkpoint.Checkpoint) ([]Part, error) {
	var parts []Part
	found := func(kind string) bool {
		return slices.ContainsFunc(parts, func(p Part) bool { return strings.HasPrefix(p.Class, kind) })
	}
	const kl = "AutoencoderKL"
	for _, class := range order {
		if strings.HasPrefix(class, kl) && found(kl) {
			continue
		}
		for _, t := range tables[class] {
			if prefix, ok := t.matches(ck); ok {
				parts = append(parts, Part{class, t, prefix})
				break
			}
		}
	}
	if len(parts) > 0 {
		return parts, nil
	}
	names := slices.Sorted(maps.Keys(ck.Tensors))
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: holds no tensors", ck.Dir)
	}
	if i := slices.IndexFunc(names, isLoRA); i >= 0 {
		return nil, fmt.Errorf("%s: is %w (it has %s): give it with --lora, and with --model the model that it was made for", ck.Dir, ErrLoRA, shorten(names[i]))
	}
	for _, other := range foreign {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains("."+name, other.part) }) {
			return nil, fmt.Errorf("%s: is %s, which this version does not run; %s", ck.Dir, other.name, supported)
		}
	}
	// some from all over the file
	var some []string
	for i := range min(4, len(names)) {
		some = append(some, shorten(names[i*len(names)/min(4, len(names))]))
	}
	return nil, fmt.Errorf("%s: it is not known what has these tensors: %s (%d in all); %s", ck.Dir, strings.Join(some, ", "), len(names), supported)
}

// supported is the end of a message.
const supported = "what is known are the transformers of FLUX.1, FLUX.2-klein, Z-Image and Qwen-Image, their autoencoders and their text encoders, " +
	"under diffusers' names, those of the models' makers, ComfyUI's and mflux's"

// isLoRA tells the tensors of LoRA, LoKr, LoHa and DoRA.
func isLoRA(name string) bool {
	if strings.HasPrefix(name, "lora_") {
		return true
	}
	for _, part := range []string{".lora_A.", ".lora_B.", ".lora_up.", ".lora_down.", ".lora.up.", ".lora.down.", ".lokr_w", ".hada_w", ".lora_A", ".lora_B"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// foreign are models that one may try by mistake, by a part of a tensor's name
// with a dot before it.
var foreign = []struct{ part, name string }{
	{".input_blocks.0.0.weight", "a Stable Diffusion 1, 2 or XL"},
	{".joint_blocks.0.", "a Stable Diffusion 3"},
	{".distilled_guidance_layer.", "a Chroma"},
	{".controlnet_", "a ControlNet"},
	{".control_", "a ControlNet"},
	{".layers.0.adaLN_modulation.1.", "a Lumina 2"},
	{".patch_embedding.weight", "a Wan video model"},
	{".txt_in.individual_token_refiner.", "a HunyuanVideo"},
}

// shorten is a tensor's name as a message has it.
func shorten(name string) string {
	const most = 100
	if len(name) > most {
		name = name[:most] + "…"
	}
	return strings.Trim(strconv.Quote(name), `"`)
}

// Shapes are those of a part's tensors under diffusers' names, without what
// transformers may put before them, and of quantized matrices those that they are
// packed from. A tensor that is stored as rows of a larger one has nil.
func Shapes(ck *checkpoint.Checkpoint, p Part) map[string][]int {
	shapes := map[string][]int{}
	for stored, tensor := range ck.Tensors {
		other, ok := strings.CutPrefix(stored, p.Prefix)
		if !ok || isMark(other) {
			continue
		}
		names, rule := p.Table.Names(other)
		forms := rule.Forms
		if p.Table.ChannelsLast && len(tensor.Shape) > 3 && len(forms) == 0 {
			forms = []checkpoint.FormOp{checkpoint.FormChannelsFirst}
		}
		var err error
		for _, op := range forms {
			if err == nil {
				tensor, err = tensor.In(checkpoint.Form{Op: op})
			}
		}
		shape := tensor.Shape
		if module, ok := strings.CutSuffix(stored, ".weight"); ok && tensor.Dtype == "U32" && len(shape) == 2 {
			shape = unpacked(ck, tensor, module)
		}
		if len(names) == 0 { // what diffusers does not have may tell something too
			names = []string{other}
		}
		for _, name := range names {
			if name = bare(p.Class, name); len(names) > 1 || err != nil {
				shapes[name] = nil
			} else {
				shapes[name] = shape
			}
		}
	}
	return shapes
}

// bare is a name without what transformers may put before it.
func bare(class, name string) string {
	switch class {
	case "CLIPTextModel":
		return strings.TrimPrefix(name, "text_model.")
	case "Qwen3Model", "Qwen2_5_VLForConditionalGeneration":
		return strings.TrimPrefix(name, "model.")
	}
	return name
}

// unpacked is the shape of a matrix that is quantized: a number of 32 bits holds
// as many as fit, and a group, of 64 if nothing else is known, has a scale.
func unpacked(ck *checkpoint.Checkpoint, packed checkpoint.Tensor, module string) []int {
	scales, ok := ck.Tensors[module+".scales"]
	if !ok || len(scales.Shape) != 2 || scales.Shape[1] == 0 {
		return nil
	}
	columns, groups := packed.Shape[1], scales.Shape[1]
	bits := 0
	for _, f := range ck.Files {
		if n, err := strconv.Atoi(f.Header.Metadata["quantization_level"]); err == nil {
			bits = n
		}
	}
	for _, group := range []int{64, 32, 128} {
		per := 32 * columns / groups // of a group, times its size
		if n := per / group; per%group == 0 && per*groups == 32*columns && (n == bits || bits == 0 && slices.Contains([]int{2, 3, 4, 5, 6, 8}, n)) {
			return []int{packed.Shape[0], groups * group}
		}
	}
	return nil
}
