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
func JoinValues(args []string) []string {
	var out []string
	several := len(args) > 0 && (args[0] == "edit" || args[0] == "inpaint") // images
	number := func(i int) bool { return i < len(args) && isSeed(args[i]) }
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(out, args[i:]...)
		}
		if words, n := joinLoRAs(args[i:]); n > 0 {
			out = append(out, words...)
			i += n - 1
			continue
		}
		out = append(out, args[i])
		flag, value, joined := strings.Cut(args[i], "=")
		if flag == "--seed" || flag == "-S" {
			switch {
			case joined && isSeed(value):
			case !joined && number(i+1):
				i++
				out = append(out, args[i])
			default:
				continue
			}
			for ; number(i + 1); i++ {
				out[len(out)-1] += "," + args[i+1]
			}
		}
		if several && slices.Contains([]string{"--image", "-i", "--" + MfluxEdit}, flag) {
			if !joined && i+1 < len(args) {
				i++
				out = append(out, args[i])
			}
			for ; i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"); i++ {
				out = append(out, "--image="+args[i+1])
			}
			continue
		}
		if args[i] == "--mask-crop" && number(i+1) ||
			(args[i] == "--preview" || args[i] == "--show") && i+1 < len(args) && slices.Contains(ProtocolNames(), args[i+1]) {
			out[len(out)-1] += "=" + args[i+1]
			i++
		}
	}
	return out
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
