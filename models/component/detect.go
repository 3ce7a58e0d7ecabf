package component

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
)

// A Part is a component that was found in a checkpoint.
type Part struct {
	Class *Class
	// Table is the layout that its tensors have under Prefix. One without rules is
	// of diffusers' own names.
	Table  *layout.Table
	Prefix string
}

// Infer finds out by the shapes of the part's tensors what its config.json would
// say.
func (p Part) Infer(ck *checkpoint.Checkpoint) (layout.Config, error) {
	return layout.Infer(p.Class.Name, p.Class.Infer, layout.Shapes(ck, p.Table, p.Prefix, p.Class.bare))
}

// ErrLoRA is wrapped by errors about files that are LoRAs, and no models.
var ErrLoRA = errors.New("a LoRA")

// Detect finds out by its tensors' names which components a checkpoint holds, at
// least one. Its errors name some of them, and end with what is supported.
func Detect(ck *checkpoint.Checkpoint, supported string) ([]Part, error) {
	var parts []Part
	for _, class := range All {
		if class.Role != TextEncoder && slices.ContainsFunc(parts, func(p Part) bool { return p.Class.Role == class.Role }) {
			continue // there is one of its kind, whose names it has too
		}
		for _, t := range class.Tables() {
			if prefix, ok := t.Matches(ck); ok {
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
