package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/scheduler"
)

// An optionalFlag is the value of a flag that may be left out.
type optionalFlag interface {
	pflag.Value
	given() bool
}

// An optional is the value of a flag that may be left out. It implements pflag.Value
// and refuses invalid values.
type optional[T any] struct {
	value *T
	parse func(string) (T, error)
	kind  string // for the help
}

func (o *optional[T]) Set(s string) error {
	v, err := o.parse(s)
	if err != nil {
		return err
	}
	o.value = &v
	return nil
}

func (o *optional[T]) String() string {
	if o.value == nil {
		return ""
	}
	return fmt.Sprint(*o.value)
}

func (o *optional[T]) Type() string { return o.kind }

func (o *optional[T]) given() bool { return o.value != nil }

// orElse returns the value, or a default.
func (o *optional[T]) orElse(otherwise T) T {
	if o.value != nil {
		return *o.value
	}
	return otherwise
}

// orZero returns the value, or zero, which stands for the model's default.
func (o *optional[T]) orZero() (zero T) { return o.orElse(zero) }

// count is a flag for whole numbers from 1.
func count(kind string) optional[int] { return wholeFrom(1, kind) }

// wholeFrom is a flag for whole numbers from the least one.
func wholeFrom(least int64, kind string) optional[int] {
	return optional[int]{kind: kind, parse: func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < least {
			return 0, fmt.Errorf("must be a whole number, %d or more", least)
		}
		return int(n), nil
	}}
}

// scale is a flag for numbers from 0.
func scale(kind string) optional[float64] {
	return optional[float64]{kind: kind, parse: func(s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return 0, errors.New("must be a number, 0 or more")
		}
		return v, nil
	}}
}

// strength is a flag for numbers above 0 and below 1; 1 would leave no step.
func strength(kind string) optional[float64] {
	return optional[float64]{kind: kind, parse: func(s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v > 0 && v < 1) {
			return 0, errors.New("must be a number above 0 and below 1")
		}
		return v, nil
	}}
}

// fraction is a flag for numbers from 0 and below 1.
func fraction(kind string) optional[float64] {
	return optional[float64]{kind: kind, parse: func(s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v < 1) {
			return 0, errors.New("must be a number, 0 or more and below 1")
		}
		return v, nil
	}}
}

// A seedList is the value of --seed: 64-bit unsigned numbers with commas between them,
// or from several flags. It implements pflag.Value.
type seedList []uint64

func (l *seedList) Set(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return errors.New("must be whole numbers, 0 or more (leave it out for a random seed)")
		}
		*l = append(*l, n)
	}
	return nil
}

func (l *seedList) String() string {
	var words []string
	for _, n := range *l {
		words = append(words, strconv.FormatUint(n, 10))
	}
	return strings.Join(words, ",")
}

func (l *seedList) Type() string { return "numbers" }

func isSeed(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// fileNames is the value of a flag that takes several files, or one, the last one given.
// It implements pflag.Value.
type fileNames struct {
	names   []string
	several bool
}

func (f *fileNames) Set(s string) error {
	if !f.several {
		f.names = nil
	}
	f.names = append(f.names, s)
	return nil
}

func (f *fileNames) String() string { return strings.Join(f.names, " ") }

func (f *fileNames) Type() string {
	if f.several {
		return "files"
	}
	return "file"
}

// parsed is a flag for values that a function can parse.
func parsed[T any](kind string, parse func(string) (T, error)) optional[T] {
	return optional[T]{kind: kind, parse: parse}
}

// mfluxNames maps names of mflux's flags to names here.
var mfluxNames = map[string]string{
	"config-from-conf": "config-from-metadata",
	"make-conf":        "metadata",
	"no-exif":          "no-metadata",
}

// mflux's names for --image of generate, and of edit.
const mfluxStart, mfluxEdit = "image-path", "image-paths"

// mfluxMasks are the names for --mask of mflux's commands.
var mfluxMasks = []string{"mask-image", "mask-path", "masked-image-path"}

// normalizeFlag makes mflux's names of flags aliases, of which some depend on the command.
func normalizeFlag(images []string, masks bool) func(*pflag.FlagSet, string) pflag.NormalizedName {
	return func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch {
		case slices.Contains(images, name):
			name = "image"
		case masks && slices.Contains(mfluxMasks, name):
			name = "mask"
		}
		return pflag.NormalizedName(cmp.Or(mfluxNames[name], name))
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// oneOf is a flag for some words, in any case.
func oneOf[T ~string](kind string, words ...T) optional[T] {
	return optional[T]{kind: kind, parse: func(s string) (T, error) {
		word := T(strings.ToLower(s))
		if !slices.Contains(words, word) {
			names := convert[string](words)
			return "", fmt.Errorf("must be %s or %s", strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
		}
		return word, nil
	}}
}

// convert converts words to another type.
func convert[To, From ~string](words []From) []To {
	out := make([]To, len(words))
	for i, w := range words {
		out[i] = To(w)
	}
	return out
}

// schedulerOf parses a scheduler's name, short name or class.
func schedulerOf(s string) (gomflux.Scheduler, error) {
	name, err := scheduler.Name(s)
	return gomflux.Scheduler(name), err
}

var sizePattern = regexp.MustCompile(`^(?i)([0-9]+(?:\.[0-9]+)?) ?([kmg]?)b?$`)

// parseSize parses a number of bytes, such as 16GB.
func parseSize(s string) (int64, error) {
	m := sizePattern.FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("must be a size, such as 500MB or 16GB")
	}
	v, _ := strconv.ParseFloat(m[1], 64) // the pattern allows numbers only
	v *= map[string]float64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[strings.ToLower(m[2])]
	if v < 1 || v >= math.MaxInt64 {
		return 0, errors.New("must be a size, such as 500MB or 16GB")
	}
	return int64(v), nil
}
