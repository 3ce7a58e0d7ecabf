package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/inspect"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/parity"
)

// None is the value that turns off recorded LoRAs or quantization.
const None = "none"

// WeightFlags are the flags that change a model's weights while they are loaded.
type WeightFlags struct {
	Quantize  Optional[gomflux.Quantization]
	GroupSize Optional[int]
	LoRAs     loraList
	scales    []float64 // mflux's
	NoBake    bool
	Partial   bool
}

func NewWeightFlags() WeightFlags {
	return WeightFlags{
		Quantize:  OneOf("level", append(Convert[gomflux.Quantization](component.Quantizations), None)...),
		GroupSize: Parsed("weights", groupSize),
	}
}

func groupSize(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || !slices.Contains([]int{32, 64, 128}, n) {
		return 0, errors.New("must be 32, 64 or 128")
	}
	return n, nil
}

// Add adds the flags, with those for a model that runs.
func (w *WeightFlags) Add(f *pflag.FlagSet, runs bool) {
	f.VarP(&w.Quantize, "quantize", "q", "quantize the weights to 3, 4, 5, 6 or 8 bits, mxfp4, mxfp8 or nvfp4 (see gomflux help weights)")
	f.Var(&w.GroupSize, "group-size", "number of weights that share a scale: 32, 64 or 128 (default: 64)")
	f.Var(&w.LoRAs, "lora", "apply a LoRA, with an optional scale: --lora FILE 0.7. A safetensors file, owner/name, "+
		"or owner/name:file in the Hugging Face cache (can be repeated)")
	f.BoolVar(&w.Partial, "lora-partial", false, "use the tensors of LoRAs that fit the model, and leave out the others with a warning")
	if runs {
		f.BoolVar(&w.NoBake, "no-bake-lora", false, "apply LoRAs at run time instead of baking them into the weights (slower)")
	}
	f.Float64SliceVar(&w.scales, mfluxScales, nil, "")
	if err := f.MarkHidden(mfluxScales); err != nil {
		panic(err) // a flag that is not there
	}
}

// Validate refuses flags that do not go together, and gives LoRAs the scales of
// mflux's --lora-scales.
func (w *WeightFlags) Validate(given func(string) bool) error {
	if !given("config-from-metadata") { // which may supply the other flag
		switch {
		case given("group-size") && !given("quantize"):
			return UsageErrorf("--group-size has no effect without --quantize")
		case w.NoBake && len(w.LoRAs.List) == 0:
			return UsageErrorf("--no-bake-lora has no effect without --lora")
		case w.Partial && len(w.LoRAs.List) == 0:
			return UsageErrorf("--lora-partial has no effect without --lora")
		}
	}
	if given(mfluxScales) {
		if len(w.scales) != len(w.LoRAs.List) {
			return UsageErrorf("--%s has %s for %s (--lora FILE NUMBER gives both)",
				mfluxScales, ui.Plural(len(w.scales), "number"), ui.Plural(len(w.LoRAs.List), "LoRA"))
		}
		for i := range w.LoRAs.List {
			w.LoRAs.List[i].Scale = w.scales[i]
		}
		w.scales = nil
	}
	for _, l := range w.LoRAs.List {
		if l.Scale == 0 {
			return UsageErrorf("--lora %s 0 has no effect (leave it out)", l.Path)
		}
	}
	return nil
}

// Quantization returns what --quantize asks for, "" for nothing, and the size of groups.
func (w *WeightFlags) Quantization() (q gomflux.Quantization, group int) {
	if q = w.Quantize.OrZero(); q == None {
		return "", 0
	}
	return q, w.GroupSize.OrZero()
}

// Open sets the options that a model is opened with.
func (w *WeightFlags) Open(o *gomflux.OpenOptions) {
	o.Quantize, o.GroupSize = w.Quantization()
	o.LoRAs, o.RuntimeLoRA = w.Used(w.LoRAs.List), w.NoBake && len(w.LoRAs.List) > 0
}

// Used returns LoRAs as the flags use them.
func (w *WeightFlags) Used(loras []gomflux.LoRA) []gomflux.LoRA {
	loras = slices.Clone(loras)
	for i := range loras {
		loras[i].Partial = loras[i].Partial || w.Partial
	}
	return loras
}

// WarnQuantized warns of a --quantize without effect.
func (w *WeightFlags) WarnQuantized(source *gomflux.Source, out *ui.Output) {
	q, _ := w.Quantization()
	if q == "" {
		return
	}
	if has := inspect.Model(source.FS()).Quantization; has != "" && has != string(q) {
		out.Warn("the weights are already quantized (%s): --quantize %s has no effect on them", QuantizationText(has), q)
	}
}

// Parity sets the options of a comparison.
func (w *WeightFlags) Parity(given func(string) bool, p *parity.Options) (err error) {
	if err := w.Validate(given); err != nil {
		return err
	}
	if q, group := w.Quantization(); q != "" {
		if p.Quantize, err = component.ParseQuantization(string(q), group); err != nil {
			return Coded(ExitUsage, err)
		}
	}
	for _, l := range w.Used(w.LoRAs.List) {
		found, err := catalog.FindLoRA(l.Path)
		if err != nil {
			return Coded(ExitModel, err)
		}
		p.LoRAs = append(p.LoRAs, lora.Spec{Path: found.Path, Scale: l.Scale, Partial: l.Partial})
	}
	p.RuntimeLoRA = w.NoBake
	return nil
}

// A loraList is the value of --lora: a name, or name=scale, which JoinValues
// makes of two words. It implements pflag.Value.
type loraList struct {
	List []gomflux.LoRA
	none bool // --lora none
}

func (l *loraList) Set(s string) error {
	if s == None {
		*l = loraList{none: true}
		return nil
	}
	one := gomflux.LoRA{Path: s, Scale: 1}
	if i := strings.LastIndexByte(s, '='); i >= 0 && isScale(s[i+1:]) {
		one.Path = s[:i]
		one.Scale, _ = strconv.ParseFloat(s[i+1:], 64) // isScale has checked it
	}
	if one.Path == "" {
		return errors.New("the name is empty")
	}
	l.List, l.none = append(l.List, one), false
	return nil
}

func (l *loraList) String() string {
	var words []string
	for _, one := range l.List {
		words = append(words, fmt.Sprintf("%s=%v", one.Path, one.Scale))
	}
	return strings.Join(words, " ")
}

func (l *loraList) Type() string { return "file" }

func (l *loraList) Given() bool { return l.none || len(l.List) > 0 }

// isScale reports whether a word is a finite number.
func isScale(s string) bool {
	v, err := strconv.ParseFloat(s, 64)
	return err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// mflux's flags for all LoRAs and for all their scales.
const MfluxLoRAs, mfluxScales = "lora-paths", "lora-scales"
