// Package cli has what the commands of gomflux share: kinds of flags and their parsing, the flags for
// models, weights and output, exit codes, models by name, and image files.
package cli

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

// An OptionalFlag is the value of a flag that may be left out.
type OptionalFlag interface {
	pflag.Value
	Given() bool
}

// An Optional is the value of a flag that may be left out. It implements pflag.Value
// and refuses invalid values.
type Optional[T any] struct {
	Value *T
	parse func(string) (T, error)
	kind  string // for the help
}

func (o *Optional[T]) Set(s string) error {
	v, err := o.parse(s)
	if err != nil {
		return err
	}
	o.Value = &v
	return nil
}

func (o *Optional[T]) String() string {
	if o.Value == nil {
		return ""
	}
	return fmt.Sprint(*o.Value)
}

func (o *Optional[T]) Type() string { return o.kind }

func (o *Optional[T]) Given() bool { return o.Value != nil }

// OrElse returns the value, or a default.
func (o *Optional[T]) OrElse(otherwise T) T {
	if o.Value != nil {
		return *o.Value
	}
	return otherwise
}

// OrZero returns the value, or zero, which stands for the model's default.
func (o *Optional[T]) OrZero() (zero T) { return o.OrElse(zero) }

// Count is a flag for whole numbers from 1.
func Count(kind string) Optional[int] { return WholeFrom(1, kind) }

// WholeFrom is a flag for whole numbers from the least one.
func WholeFrom(least int64, kind string) Optional[int] {
	return Optional[int]{kind: kind, parse: func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < least {
			return 0, fmt.Errorf("must be a whole number, %d or more", least)
		}
		return int(n), nil
	}}
}

// number is a flag for the numbers for which valid is true, which expected describes.
func number(kind, expected string, valid func(v float64) bool) Optional[float64] {
	return Optional[float64]{kind: kind, parse: func(s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !valid(v) {
			return 0, errors.New("must be a number" + expected)
		}
		return v, nil
	}}
}

// Scale is a flag for numbers from 0.
func Scale(kind string) Optional[float64] {
	return number(kind, ", 0 or more", func(v float64) bool { return v >= 0 && !math.IsInf(v, 1) })
}

// Strength is a flag for numbers above 0 and below 1; 1 would leave no step.
func Strength(kind string) Optional[float64] {
	return number(kind, " above 0 and below 1", func(v float64) bool { return v > 0 && v < 1 })
}

// Fraction is a flag for numbers from 0 and below 1.
func Fraction(kind string) Optional[float64] {
	return number(kind, ", 0 or more and below 1", func(v float64) bool { return v >= 0 && v < 1 })
}

// A SeedList is the value of --seed: 64-bit unsigned numbers with commas between them,
// or from several flags. It implements pflag.Value.
type SeedList []uint64

func (l *SeedList) Set(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return errors.New("must be whole numbers, 0 or more (leave it out for a random seed)")
		}
		*l = append(*l, n)
	}
	return nil
}

func (l *SeedList) String() string {
	var words []string
	for _, n := range *l {
		words = append(words, strconv.FormatUint(n, 10))
	}
	return strings.Join(words, ",")
}

func (l *SeedList) Type() string { return "numbers" }

func isSeed(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// Parsed is a flag for values that a function can parse.
func Parsed[T any](kind string, parse func(string) (T, error)) Optional[T] {
	return Optional[T]{kind: kind, parse: parse}
}

// MfluxNames maps names of mflux's flags to names here.
var MfluxNames = map[string]string{
	"config-from-conf": "config-from-metadata",
	"make-conf":        "metadata",
	"no-exif":          "no-metadata",
}

// mflux's names for --image of generate, and of edit.
const MfluxStart, MfluxEdit = "image-path", "image-paths"

// MfluxMasks are the names for --mask of mflux's commands.
var MfluxMasks = []string{"mask-image", "mask-path", "masked-image-path"}

// NormalizeFlag makes mflux's names of flags aliases, of which some depend on the command.
func NormalizeFlag(images []string, masks bool) func(*pflag.FlagSet, string) pflag.NormalizedName {
	return func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch {
		case slices.Contains(images, name):
			name = "image"
		case masks && slices.Contains(MfluxMasks, name):
			name = "mask"
		}
		return pflag.NormalizedName(cmp.Or(MfluxNames[name], name))
	}
}

func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// OneOf is a flag for some words, in any case.
func OneOf[T ~string](kind string, words ...T) Optional[T] {
	return Optional[T]{kind: kind, parse: func(s string) (T, error) {
		word := T(strings.ToLower(s))
		if !slices.Contains(words, word) {
			names := Convert[string](words)
			return "", fmt.Errorf("must be %s or %s", strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
		}
		return word, nil
	}}
}

// Convert converts words to another type.
func Convert[To, From ~string](words []From) []To {
	out := make([]To, len(words))
	for i, w := range words {
		out[i] = To(w)
	}
	return out
}

// SchedulerOf parses a scheduler's name, short name or class.
func SchedulerOf(s string) (gomflux.Scheduler, error) {
	name, err := scheduler.Name(s)
	return gomflux.Scheduler(name), err
}

var sizePattern = regexp.MustCompile(`^(?i)([0-9]+(?:\.[0-9]+)?) ?([kmg]?)b?$`)

// ParseSize parses a number of bytes, such as 16GB.
func ParseSize(s string) (int64, error) {
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
