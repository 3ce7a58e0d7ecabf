package main

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

// none is the value that turns off recorded LoRAs or quantization.
const none = "none"

// weightFlags are the flags that change a model's weights while they are loaded.
type weightFlags struct {
	quantize  optional[gomflux.Quantization]
	groupSize optional[int]
	loras     loraList
	scales    []float64 // mflux's
	noBake    bool
}

func newWeightFlags() weightFlags {
	return weightFlags{
		quantize:  oneOf("level", append(convert[gomflux.Quantization](component.Quantizations), none)...),
		groupSize: groupSize(),
	}
}

func groupSize() optional[int] {
	return optional[int]{kind: "weights", parse: func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || !slices.Contains([]int{32, 64, 128}, n) {
			return 0, errors.New("must be 32, 64 or 128")
		}
		return n, nil
	}}
}

// add adds the flags, with those for a model that runs.
func (w *weightFlags) add(f *pflag.FlagSet, runs bool) {
	f.VarP(&w.quantize, "quantize", "q", "quantize the weights to 3, 4, 5, 6 or 8 bits, mxfp4, mxfp8 or nvfp4 (see gomflux help weights)")
	f.Var(&w.groupSize, "group-size", "number of weights that share a scale: 32, 64 or 128 (default: 64)")
	f.Var(&w.loras, "lora", "apply a LoRA, with an optional scale: --lora FILE 0.7. A safetensors file, owner/name, "+
		"or owner/name:file in the Hugging Face cache (can be repeated)")
	if runs {
		f.BoolVar(&w.noBake, "no-bake-lora", false, "apply LoRAs at run time instead of baking them into the weights (slower)")
	}
	f.Var((*scaleList)(&w.scales), mfluxScales, "")
	if err := f.MarkHidden(mfluxScales); err != nil {
		panic(err) // a flag that is not there
	}
}

// validate refuses flags that do not go together, and gives LoRAs the scales of
// mflux's --lora-scales.
func (w *weightFlags) validate(given func(string) bool) error {
	if !given("config-from-metadata") { // which may supply the other flag
		switch {
		case given("group-size") && !given("quantize"):
			return usageErrorf("--group-size has no effect without --quantize")
		case w.noBake && len(w.loras.list) == 0:
			return usageErrorf("--no-bake-lora has no effect without --lora")
		}
	}
	if given(mfluxScales) {
		if len(w.scales) != len(w.loras.list) {
			return usageErrorf("--%s has %s for %s (--lora FILE NUMBER gives both)",
				mfluxScales, ui.Plural(len(w.scales), "number"), ui.Plural(len(w.loras.list), "LoRA"))
		}
		for i := range w.loras.list {
			w.loras.list[i].Scale = w.scales[i]
		}
		w.scales = nil
	}
	for _, l := range w.loras.list {
		if l.Scale == 0 {
			return usageErrorf("--lora %s 0 has no effect (leave it out)", l.Path)
		}
	}
	return nil
}

// open sets the options that a model is opened with.
func (w *weightFlags) open(o *gomflux.OpenOptions) {
	if q := w.quantize.orZero(); q != none {
		o.Quantize, o.GroupSize = q, w.groupSize.orZero()
	}
	o.LoRAs, o.RuntimeLoRA = w.loras.list, w.noBake && len(w.loras.list) > 0
}

// warnQuantized warns of a --quantize without effect.
func (w *weightFlags) warnQuantized(source *gomflux.Source, out *ui.Output) {
	q := w.quantize.orZero()
	if q == "" || q == none {
		return
	}
	if has := inspect.Model(source.FS()).Quantization; has != "" && has != string(q) {
		out.Warn("the weights are already quantized (%s): --quantize %s has no effect on them", quantizationText(has), q)
	}
}

// parity sets the options of a comparison.
func (w *weightFlags) parity(given func(string) bool, p *parity.Options) (err error) {
	if err := w.validate(given); err != nil {
		return err
	}
	if q := w.quantize.orZero(); q != "" && q != none {
		if p.Quantize, err = component.ParseQuantization(string(q), w.groupSize.orZero()); err != nil {
			return coded(exitUsage, err)
		}
	}
	for _, l := range w.loras.list {
		found, err := catalog.FindLoRA(l.Path)
		if err != nil {
			return coded(exitModel, err)
		}
		p.LoRAs = append(p.LoRAs, lora.Spec{Path: found.Path, Scale: l.Scale})
	}
	p.RuntimeLoRA = w.noBake
	return nil
}

// A loraList is the value of --lora: a name, or name=scale, which joinValues
// makes of two words. It implements pflag.Value.
type loraList struct {
	list []gomflux.LoRA
	none bool // --lora none
}

func (l *loraList) Set(s string) error {
	if s == none {
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
	l.list, l.none = append(l.list, one), false
	return nil
}

func (l *loraList) String() string {
	var words []string
	for _, one := range l.list {
		words = append(words, fmt.Sprintf("%s=%v", one.Path, one.Scale))
	}
	return strings.Join(words, " ")
}

func (l *loraList) Type() string { return "file" }

func (l *loraList) given() bool { return l.none || len(l.list) > 0 }

// isScale reports whether a word is a finite number.
func isScale(s string) bool {
	v, err := strconv.ParseFloat(s, 64)
	return err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// A scaleList is the value of mflux's --lora-scales. It implements pflag.Value.
type scaleList []float64

func (l *scaleList) Set(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		if !isScale(word) {
			return errors.New("must be numbers")
		}
		v, _ := strconv.ParseFloat(word, 64) // isScale has checked it
		*l = append(*l, v)
	}
	return nil
}

func (l *scaleList) String() string { return "" }
func (l *scaleList) Type() string   { return "numbers" }

// mflux's flags for all LoRAs and for all their scales.
const mfluxLoRAs, mfluxScales = "lora-paths", "lora-scales"

// joinLoRAs is joinValues for a flag about LoRAs at the start of args. It returns
// its replacement and the number of words replaced, 0 for other flags.
func joinLoRAs(args []string) (out []string, n int) {
	flag, value, joined := strings.Cut(args[0], "=")
	values := func(from int) []string {
		end := from
		for end < len(args) && (!strings.HasPrefix(args[end], "-") || isScale(args[end])) {
			end++
		}
		return args[from:end]
	}
	switch flag {
	case "--lora":
		words := []string{args[0]}
		if !joined && len(args) > 1 {
			words = args[:2]
		}
		n = len(words)
		out = slices.Clone(words)
		if n < len(args) && isScale(args[n]) && (joined || n == 2) && !(joined && value == "") {
			out[len(out)-1] += "=" + args[n]
			n++
		}
	case "--" + mfluxLoRAs:
		words := values(1)
		n = 1 + len(words)
		if joined {
			words = append([]string{value}, words...)
		}
		if len(words) == 0 {
			words = []string{none}
		}
		for _, word := range words {
			out = append(out, "--lora="+word)
		}
	case "--" + mfluxScales:
		words := values(1)
		n = 1 + len(words)
		if joined {
			words = append([]string{value}, words...)
		}
		out = []string{flag + "=" + strings.Join(words, ",")}
	}
	return out, n
}
