package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/inspect"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/parity"
)

// none is what turns off what a picture was made with.
const none = "none"

// weightFlags are the flags of commands that change a model's weights while they
// are loaded.
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

// add adds the flags, with those that count for a model that runs.
func (w *weightFlags) add(f *pflag.FlagSet, runs bool) {
	f.VarP(&w.quantize, "quantize", "q", "pack the weights while they are loaded: 3, 4, 5, 6 or 8 bits, mxfp4, mxfp8 or nvfp4 (gomflux help weights)")
	f.Var(&w.groupSize, "group-size", "how many weights share a scale: 32, 64 or 128 (default: 64)")
	f.Var(&w.loras, "lora", "change the weights by a LoRA, and by how much: --lora FILE 0.7; a safetensors file, owner/name or owner/name:file in the Hugging Face cache; without a number it is 1 (can be repeated)")
	if runs {
		f.BoolVar(&w.noBake, "no-bake-lora", false, "compute LoRAs beside the weights and not into them, which is slower")
	}
	f.Var((*scaleList)(&w.scales), mfluxScales, "")
	if err := f.MarkHidden(mfluxScales); err != nil {
		panic(err) // a flag that is not there
	}
}

// check refuses flags that do not go together, and gives LoRAs the scales that
// came by mflux's flag for them.
func (w *weightFlags) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if !given("config-from-metadata") { // which may have the other
		switch {
		case given("group-size") && !given("quantize"):
			return usageErrorf("--group-size does nothing without --quantize")
		case w.noBake && len(w.loras.list) == 0:
			return usageErrorf("--no-bake-lora does nothing without --lora")
		}
	}
	if given(mfluxScales) {
		if len(w.scales) != len(w.loras.list) {
			return usageErrorf("--%s gives %s for %s (--lora FILE NUMBER gives them together)", mfluxScales, plural(len(w.scales), "number"), plural(len(w.loras.list), "LoRA"))
		}
		for i := range w.loras.list {
			w.loras.list[i].Scale = w.scales[i]
		}
		w.scales = nil
	}
	for _, l := range w.loras.list {
		if l.Scale == 0 {
			return usageErrorf("--lora %s 0 leaves the model as it is (leave it out)", l.Path)
		}
	}
	return nil
}

// open puts what was given to the options that a model is opened with.
func (w *weightFlags) open(o *gomflux.OpenOptions) {
	if q := w.quantize.orZero(); q != none {
		o.Quantize, o.GroupSize = q, w.groupSize.orZero()
	}
	o.LoRAs, o.RuntimeLoRA = w.loras.list, w.noBake && len(w.loras.list) > 0
}

// warnQuantized warns of a quantization that does nothing.
func (w *weightFlags) warnQuantized(source *gomflux.Source, to warner) {
	q := w.quantize.orZero()
	if q == "" || q == none {
		return
	}
	if has := inspect.Model(source.FS()).Quantization; has != "" && has != string(q) {
		to.warn("the weights are quantized already (%s), so that --quantize %s does nothing to them", quantizationText(has), q)
	}
}

// parity puts what was given to the options of a comparison.
func (w *weightFlags) parity(cmd *cobra.Command, p *parity.Options) (err error) {
	if err := w.check(cmd); err != nil {
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

// A loraList is the value of --lora. It implements pflag.Value: a name, or
// name=scale, which joinValues makes of two words.
type loraList struct {
	list []gomflux.LoRA
	none bool // given, and not one
}

func (l *loraList) Set(s string) error {
	if s == none {
		*l = loraList{none: true}
		return nil
	}
	one := gomflux.LoRA{Path: s, Scale: 1}
	if i := strings.LastIndexByte(s, '='); i >= 0 && isScale(s[i+1:]) {
		one.Path = s[:i]
		one.Scale, _ = strconv.ParseFloat(s[i+1:], 64) // which isScale has tried
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

// isScale says whether a word is a finite number.
func isScale(s string) bool {
	v, err := strconv.ParseFloat(s, 64)
	return err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// A scaleList is the value of mflux's flag for the scales of LoRAs. It implements
// pflag.Value.
type scaleList []float64

func (l *scaleList) Set(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		if !isScale(word) {
			return errors.New("must be numbers")
		}
		v, _ := strconv.ParseFloat(word, 64) // which isScale has tried
		*l = append(*l, v)
	}
	return nil
}

func (l *scaleList) String() string { return "" }
func (l *scaleList) Type() string   { return "numbers" }

// mflux's flags for LoRAs and for their scales, each with all of them.
const mfluxLoRAs, mfluxScales = "lora-paths", "lora-scales"

// joinLoRAs is joinValues for the words at i, if they are a flag about LoRAs: it
// returns what stands for them, and how many they are.
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
