package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
)

func TestJoinValues(t *testing.T) {
	for args, want := range map[string]string{
		"generate --seed 1 2 3 -p x":     "generate --seed 1,2,3 -p x",
		"generate -S 1 2":                "generate -S 1,2",
		"generate -S 1":                  "generate -S 1",
		"generate -S 1 2 --seed 3 4":     "generate -S 1,2 --seed 3,4",
		"generate -S 1,2 3":              "generate -S 1,2 3",
		"generate --seed=1 2 3 -p x":     "generate --seed=1,2,3 -p x",
		"generate -S=1 2":                "generate -S=1,2",
		"generate --seed=1 x 2":          "generate --seed=1 x 2",
		"generate --seed= 1 2":           "generate --seed= 1 2",
		"generate --seed=x 1":            "generate --seed=x 1",
		"generate --seed -1 2":           "generate --seed -1 2",
		"generate --seed":                "generate --seed",
		"generate -s 1 2":                "generate -s 1 2",
		"generate -- --seed 1 2":         "generate -- --seed 1 2",
		"-S 18446744073709551615 0 x 1":  "-S 18446744073709551615,0 x 1",
		"-S 18446744073709551616 0":      "-S 18446744073709551616 0",
		"--preview kitty --show sixel x": "--preview=kitty --show=sixel x",
		"--preview --show auto":          "--preview --show=auto",
		"--preview=kitty none":           "--preview=kitty none",
		"--show x -S 1 2":                "--show x -S 1,2",
		"-- --show kitty":                "-- --show kitty",
		"edit -i a b -p x":               "edit -i a --image=b -p x",
		"edit --image=a b c":             "edit --image=a --image=b --image=c",
		"edit --image-paths a b -S 1 2":  "edit --image-paths a --image=b -S 1,2",
		"edit --image a -i b --seed=1 2": "edit --image a -i b --seed=1,2",
		"edit -i a -- b":                 "edit -i a -- b",
		"edit -p x -i":                   "edit -p x -i",
		"edit -i --show":                 "edit -i --show",
		"edit -p a b -i c":               "edit -p a b -i c",
		"generate -i a b":                "generate -i a b",
		"inpaint -i a b --mask c":        "inpaint -i a --image=b --mask c",
		"inpaint --mask-crop 32 -p x":    "inpaint --mask-crop=32 -p x",
		"inpaint --mask-crop -p x":       "inpaint --mask-crop -p x",
		"inpaint --mask-crop=8 9":        "inpaint --mask-crop=8 9",
		"--lora a 0.7 --lora b":          "--lora a=0.7 --lora b",
		"--lora a -0.5 -p x":             "--lora a=-0.5 -p x",
		"--lora=a 1e-1 2":                "--lora=a=1e-1 2",
		"--lora 7 8":                     "--lora 7=8",
		"--lora a NaN":                   "--lora a NaN",
		"--lora a -q 4":                  "--lora a -q 4",
		"--lora -q 4":                    "--lora -q=4", // a file of that name
		"--lora":                         "--lora",
		"--lora= 1":                      "--lora= 1",
		"--lora-paths a b -q 4":          "--lora=a --lora=b -q 4",
		"--lora-paths -p x":              "--lora=none -p x",
		"--lora-paths=a b":               "--lora=a --lora=b",
		"--lora-scales 0.5 -1 -p x":      "--lora-scales=0.5,-1 -p x",
		"--lora-scales=0.5 1":            "--lora-scales=0.5,1",
		"--lora-scales":                  "--lora-scales=",
		"-- --lora a 1":                  "-- --lora a 1",
		"":                               "",
	} {
		if got := strings.Join(JoinValues(strings.Fields(args)), " "); got != want {
			t.Errorf("%q became %q, expected %q", args, got, want)
		}
	}
}

func TestLoRAList(t *testing.T) {
	var l loraList
	for _, s := range []string{"a.safetensors", "~/b=c.safetensors=-0.5", "x=y", "me/loras@v1:d/e.safetensors=1e1"} {
		if err := l.Set(s); err != nil {
			t.Error(err)
		}
	}
	want := []gomflux.LoRA{{Path: "a.safetensors", Scale: 1}, {Path: "~/b=c.safetensors", Scale: -0.5}, {Path: "x=y",
		Scale: 1}, {Path: "me/loras@v1:d/e.safetensors", Scale: 10}}
	if !slices.Equal(l.List, want) || !l.Given() {
		t.Errorf("%v, expected %v", l.List, want)
	}
	if err := l.Set("none"); err != nil || len(l.List) > 0 || !l.Given() {
		t.Errorf("none is %v, %v", l, err)
	}
	for _, s := range []string{"", "=1"} {
		if err := l.Set(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func TestSeedList(t *testing.T) {
	var l SeedList
	for _, s := range []string{"1", "2,18446744073709551615", "0"} {
		if err := l.Set(s); err != nil {
			t.Error(err)
		}
	}
	if want := (SeedList{1, 2, 1<<64 - 1, 0}); !slices.Equal(l, want) || l.String() != "1,2,18446744073709551615,0" {
		t.Errorf("%v, expected %v", l, want)
	}
	for _, s := range []string{"", ",", "1,", "-1", "+1", "1.0", "0x1", "1 2", "18446744073709551616"} {
		if err := new(SeedList).Set(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func TestNumbers(t *testing.T) {
	for s, ok := range map[string]bool{"1": true, "2147483647": true, "0": false, "-1": false, "1.5": false,
		"2147483648": false, "": false, "NaN": false} {
		o := Count("")
		if err := o.Set(s); (err == nil) != ok {
			t.Errorf("count %q: %v", s, err)
		}
	}
	for s, ok := range map[string]bool{"0": true, "3.5": true, "1e3": true, "-0.1": false, "NaN": false, "Inf": false,
		"1e999": false, "": false, "x": false} {
		o := Scale("")
		if err := o.Set(s); (err == nil) != ok {
			t.Errorf("scale %q: %v", s, err)
		}
	}
	for s, ok := range map[string]bool{"0.999": true, "0.001": true, "0": false, "-0.1": false, "1": false,
		"1.001": false, "NaN": false, "": false} {
		o := Strength("")
		if err := o.Set(s); (err == nil) != ok {
			t.Errorf("strength %q: %v", s, err)
		}
		f := Fraction("")
		if err := f.Set(s); (err == nil) != (ok || s == "0") {
			t.Errorf("fraction %q: %v", s, err)
		}
	}
}
