package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestRegisterCompletions(t *testing.T) {
	root := &cobra.Command{Use: "gomflux"}
	generate := &cobra.Command{Use: "generate", Run: func(*cobra.Command, []string) {}}
	f := generate.Flags()
	f.String("model", "", "")
	f.String("scheduler", "", "")
	f.Bool("show", false, "")
	f.String("seed", "", "where the noise starts from (`number`)")
	f.String("prompt-file", "", "a `file` with the prompt")
	f.String("picked-later", "", "a `picture`")
	decode := &cobra.Command{Use: "decode", Run: func(*cobra.Command, []string) {}}
	root.AddCommand(generate, decode)
	registerCompletions(root)

	none := []string{}
	tests := []struct {
		flag, prefix string
		names        []string
		directive    cobra.ShellCompDirective
	}{
		{"model", "sha", []string{"shapes"}, cobra.ShellCompDirectiveNoFileComp},
		{"model", "z-image-t", []string{"z-image-turbo"}, cobra.ShellCompDirectiveNoFileComp},
		{"model", "./", none, cobra.ShellCompDirectiveFilterDirs},
		{"scheduler", "flow_match_h", []string{"flow_match_heun_discrete"},
			cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder},
		{"seed", "", none, cobra.ShellCompDirectiveNoFileComp},
	}
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	for _, test := range tests {
		complete, ok := generate.GetFlagCompletionFunc(test.flag)
		if !ok {
			t.Errorf("--%s has no completion", test.flag)
			continue
		}
		found, directive := complete(generate, nil, test.prefix)
		names := []string{}
		for _, c := range found {
			name, _, _ := strings.Cut(c, "\t")
			names = append(names, name)
		}
		if !slices.Equal(names, test.names) || directive != test.directive {
			t.Errorf("--%s %s: %v, %d, expected %v, %d", test.flag, test.prefix, names, directive, test.names, test.directive)
		}
	}
	for _, name := range []string{"show", "prompt-file", "picked-later"} {
		if _, ok := generate.GetFlagCompletionFunc(name); ok {
			t.Errorf("--%s has a completion", name)
		}
	}
	if ext, directive := decode.ValidArgsFunction(decode, nil, ""); !slices.Equal(ext, []string{"safetensors", "npy",
		"npz"}) || directive != cobra.ShellCompDirectiveFilterFileExt {
		t.Errorf("decode: %v, %d", ext, directive)
	}
	if _, directive := generate.ValidArgsFunction(generate, nil, ""); directive != cobra.ShellCompDirectiveNoFileComp {
		t.Errorf("generate: %d", directive)
	}
}
