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
	"github.com/gomflux/gomflux/models/lora"
)

// A Detected is a component that was found in a checkpoint.
type Detected struct {
	Class *Class
	// Table is the layout of its tensor names after Prefix. A table without rules
	// stands for diffusers' names.
	Table  *layout.Table
	Prefix string
}

// has reports whether a tensor belongs to the component by its signature. A class with more
// specific names was found then.
func (d Detected) has(stored string) bool { return d.Prefix+d.Table.Signature[0] == stored }

// Infer infers the component's config from the shapes of its tensors.
func (d Detected) Infer(ck *checkpoint.Checkpoint) (layout.Config, error) {
	return layout.Infer(d.Class.Name, d.Class.Infer, layout.Shapes(ck, d.Table, d.Prefix, d.Class.bare))
}

// DetectAs finds a component of a class in a checkpoint, whatever other classes have the same names.
func DetectAs(ck *checkpoint.Checkpoint, class *Class) (d Detected, ok bool) {
	for _, t := range class.Tables() {
		if prefix, ok := t.Matches(ck); ok {
			return Detected{class, t, prefix}, true
		}
	}
	return Detected{}, false
}

// ErrLoRA is wrapped by errors about files that are LoRAs instead of models.
var ErrLoRA = errors.New("a LoRA")

// Detect finds the components in a checkpoint, at least one, by the names of its
// tensors. Errors name some of the tensors and end with the text supported, which
// describes the supported formats.
func Detect(ck *checkpoint.Checkpoint, supported string) ([]Detected, error) {
	var parts []Detected
	for _, class := range All {
		if class.Role != TextEncoder && slices.ContainsFunc(parts, func(p Detected) bool { return p.Class.Role == class.Role }) {
			continue // a class with the same role and more specific names was found
		}
		for _, t := range slices.Concat(class.MFlux, class.Original) {
			prefix, ok := t.Matches(ck)
			if ok && !slices.ContainsFunc(parts, func(p Detected) bool { return p.has(prefix + t.Signature[0]) }) {
				parts = append(parts, Detected{class, t, prefix})
				break
			}
		}
	}
	if len(parts) > 0 {
		return parts, nil
	}
	names := slices.Sorted(maps.Keys(ck.Tensors))
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: contains no tensors", ck.Dir)
	}
	if i := slices.IndexFunc(names, lora.IsKey); i >= 0 {
		return nil, fmt.Errorf("%s: is %w (it has tensor %s): pass it with --lora, and its base model with --model",
			ck.Dir, ErrLoRA, shorten(names[i]))
	}
	for _, other := range unsupportedModels {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains("."+name, other.part) }) {
			return nil, fmt.Errorf("%s: is %s, which is not supported by this version; %s", ck.Dir, other.name, supported)
		}
	}
	// name tensors from all over the file
	var some []string
	for i := range min(4, len(names)) {
		some = append(some, shorten(names[i*len(names)/min(4, len(names))]))
	}
	return nil, fmt.Errorf("%s: unknown model, with tensors such as %s (%d in all); %s", ck.Dir, strings.Join(some, ", "),
		len(names), supported)
}

// unsupportedModels lists models that a user may try by mistake, with a part of the
// name of one of their tensors. A name is searched with a dot before it.
var unsupportedModels = []struct{ part, name string }{
	{".input_blocks.0.0.weight", "a Stable Diffusion 1, 2 or XL model"},
	{".joint_blocks.0.", "a Stable Diffusion 3 model"},
	{".distilled_guidance_layer.", "a Chroma model"},
	{".controlnet_", "a ControlNet"},
	{".control_", "a ControlNet"},
	{".layers.0.adaLN_modulation.1.", "a Lumina 2 model"},
	{".patch_embedding.weight", "a Wan video model"},
	{".residual_group.blocks.", "a network of SwinIR's or HAT's kind"},
	{".before_RG.", "a network of DAT's kind"},
	{".c1_r.sk.", "a network of SPAN's kind"},
	{".lk.conv.", "a network of PLKSR's kind"},
	{".txt_in.individual_token_refiner.", "a HunyuanVideo model"},
}

// shorten returns a tensor name for a message, cut to 100 bytes and with control
// characters escaped.
func shorten(name string) string {
	const most = 100
	if len(name) > most {
		name = name[:most] + "…"
	}
	return strings.Trim(strconv.Quote(name), `"`)
}
