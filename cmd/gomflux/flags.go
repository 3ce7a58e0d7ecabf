package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// An optional is the value of a flag that may be left out. It implements
// pflag.Value and refuses what the flag cannot take.
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

// orZero is the value, or the zero that stands for the model's default.
func (o *optional[T]) orZero() (v T) {
	if o.value != nil {
		v = *o.value
	}
	return v
}

// count takes whole numbers from 1.
func count(kind string) optional[int] {
	return optional[int]{kind: kind, parse: func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < 1 {
			return 0, errors.New("must be a whole number from 1")
		}
		return int(n), nil
	}}
}

// scale takes numbers from 0.
func scale(kind string) optional[float64] {
	return optional[float64]{kind: kind, parse: func(s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return 0, errors.New("must be a number from 0, which is none")
		}
		return v, nil
	}}
}

// seed takes 64-bit unsigned numbers.
func seed(kind string) optional[uint64] {
	return optional[uint64]{kind: kind, parse: func(s string) (uint64, error) {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, errors.New("must be a whole number from 0 (leave it out for a random one)")
		}
		return n, nil
	}}
}

// oneOf takes some words, in any case.
func oneOf(kind string, words ...string) optional[string] {
	return optional[string]{kind: kind, parse: func(s string) (string, error) {
		if s = strings.ToLower(s); !slices.Contains(words, s) {
			return "", fmt.Errorf("must be %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
		}
		return s, nil
	}}
}
