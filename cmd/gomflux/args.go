package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// joinValues lets --seed 1 2 3 be given as to mflux, for --seed 1,2,3, --image A
// B to edit, for --image A --image B, --lora A 0.7, for --lora A=0.7, and
// --preview kitty for --preview=kitty, which pflag takes for a flag and an
// argument since the value can be left out.
func joinValues(args []string) []string {
	var out []string
	edits := len(args) > 0 && args[0] == "edit"
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
		if edits && slices.Contains([]string{"--image", "-i", "--" + mfluxEdit}, flag) {
			if !joined && i+1 < len(args) {
				i++
				out = append(out, args[i])
			}
			for ; i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"); i++ {
				out = append(out, "--image="+args[i+1])
			}
			continue
		}
		if (args[i] == "--preview" || args[i] == "--show") && i+1 < len(args) && slices.Contains(protocolNames(), args[i+1]) {
			out[len(out)-1] += "=" + args[i+1]
			i++
		}
	}
	return out
}

// oneFile takes one argument.
func oneFile(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usageErrorf("give %s", what)
		case 1:
			return nil
		}
		return usageErrorf("unexpected argument %q", args[1])
	}
}
