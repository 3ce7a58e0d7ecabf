package cli

import (
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// JoinValues rewrites flags with several values, as mflux has them, to what pflag
// reads:
//
//	--seed 1 2 3      --seed 1,2,3
//	--image A B       --image A --image B (of gomflux edit and gomflux inpaint)
//	--mask-crop 32    --mask-crop=32
//	--lora A 0.7      --lora A=0.7
//	--preview kitty   --preview=kitty (pflag reads a flag whose value can be left
//	                  out and an argument)
func JoinValues(args []string) (out []string) {
	images := len(args) > 0 && (args[0] == "edit" || args[0] == "inpaint") // takes several
	for len(args) > 0 && args[0] != "--" {
		words, n := joinFlag(args, images)
		out, args = append(out, words...), args[n:]
	}
	return append(out, args...)
}

// joinFlag is JoinValues for the first word of args and the values after it. It returns the number of words that it replaces.
func joinFlag(args []string, images bool) (out []string, n int) {
	flag, value, joined := strings.Cut(args[0], "=")
	own := min(2, len(args)) // words of the flag with its first value
	if joined {
		own = 1
	}
	following := func(n, most int, fits func(string) bool) []string {
		end := n
		for end < len(args) && end-n < most && fits(args[end]) {
			end++
		}
		return args[n:end]
	}
	appended := func(own int, separator string, most int, fits func(string) bool) ([]string, int) {
		more := following(own, most, fits)
		return append(slices.Clone(args[:own-1]), strings.Join(append([]string{args[own-1]}, more...), separator)), own + len(more)
	}
	const many = math.MaxInt
	switch notFlag := func(s string) bool { return !strings.HasPrefix(s, "-") }; {
	case (flag == "--seed" || flag == "-S") && (joined && isSeed(value) || own == 2 && isSeed(args[1])):
		return appended(own, ",", many, isSeed)
	case flag == "--lora" && (value != "" || own == 2):
		return appended(own, "=", 1, isScale)
	case images && slices.Contains([]string{"--image", "-i", "--" + MfluxEdit}, flag):
		more := following(own, many, notFlag)
		out = slices.Clone(args[:own])
		for _, name := range more {
			out = append(out, "--image="+name)
		}
		return out, own + len(more)
	case args[0] == "--mask-crop":
		return appended(1, "=", 1, isSeed)
	case args[0] == "--preview" || args[0] == "--show":
		return appended(1, "=", 1, func(s string) bool { return slices.Contains(ProtocolNames(), s) })
	case flag == "--"+MfluxLoRAs || flag == "--"+mfluxScales:
		words := following(1, many, func(s string) bool { return notFlag(s) || isScale(s) })
		n = 1 + len(words)
		if joined {
			words = append([]string{value}, words...)
		}
		if flag == "--"+mfluxScales {
			return []string{flag + "=" + strings.Join(words, ",")}, n
		}
		if len(words) == 0 {
			words = []string{None}
		}
		for _, word := range words {
			out = append(out, "--lora="+word)
		}
		return out, n
	}
	return args[:1], 1
}

// Args takes from least to most arguments. missing is the error if there are fewer, and hint follows that of one too many.
func Args(least, most int, missing, hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return UsageErrorf("%s", missing)
		case len(args) > most:
			return UsageErrorf("unexpected argument %q%s", args[most], hint)
		}
		return nil
	}
}

// OneArg takes one argument, which what names: a model, a file with latents.
func OneArg(what string) cobra.PositionalArgs { return Args(1, 1, "give "+what, "") }

// SomeArgs takes one argument or more; hint is the error without any.
func SomeArgs(hint string) cobra.PositionalArgs { return Args(1, math.MaxInt, hint, "") }

// NoArgs refuses arguments that are not flags.
func NoArgs(hint string) cobra.PositionalArgs { return Args(0, 0, "", hint) }

// Without returns an error if one of the flags is given, which have no effect without another one.
func Without(other string, given func(string) bool, flags ...string) error {
	for _, name := range flags {
		if given(name) {
			return UsageErrorf("--%s has no effect without --%s", name, other)
		}
	}
	return nil
}
