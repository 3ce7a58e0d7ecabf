package generate

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gomflux/gomflux/picture"
)

// TestTemplateFieldsInHelp keeps the help complete.
func TestTemplateFieldsInHelp(t *testing.T) {
	help := NewCommand().Long
	for field := range templateFields {
		if !strings.Contains(help, "{"+field+"}") {
			t.Errorf("the help does not have {%s}", field)
		}
	}
}

func TestExpandName(t *testing.T) {
	s := picture.Settings{
		Seed: 1<<64 - 1, Prompt: "A red circle,\nleft of a blue square", Model: "~/models/Z-Image-Turbo", Steps: 8,
		Guidance: 2.5, Height: 24, Width: 40,
		Scheduler: "flow_match_euler_discrete", Created: time.Date(2026, 11, 21, 9, 5, 7, 0, time.Local),
	}
	for name, want := range map[string]string{
		"x.png":                          "x.png",
		"{seed}.png":                     "18446744073709551615.png",
		"{index}-{index}.png":            "3-3.png",
		"{model} {prompt}.jpg":           "z-image-turbo a-red-circle-left-of-a-blue-square.jpg",
		"{steps}{guidance}{height}.png":  "82.524.png",
		"a/{width}{scheduler}.png":       "a/40flow-match-euler-discrete.png",
		"{date}T{time}.png":              "2026-11-21T090507.png",
		"}{seed}}.png":                   "}18446744073709551615}.png",
		"a.b/x":                          "a.b/x",
		"{seed":                          "",
		"{}":                             "",
		"{Seed}.png":                     "",
		"{seed}/x.png":                   "",
		"{date}/{seed}.png":              "",
		"{{seed}}.png":                   "",
		"/{prompt}.png":                  "/a-red-circle-left-of-a-blue-square.png",
		"../{prompt}.png":                "../a-red-circle-left-of-a-blue-square.png",
		"no extension {index}":           "no extension 3",
		"{scheduler}{scheduler}{seed}.x": "flow-match-euler-discreteflow-match-euler-discrete18446744073709551615.x",
	} {
		got, err := expandName(name, s, 2, 1, 1)
		if (err != nil) != (want == "") || got != want {
			t.Errorf("%s is %q, %v, expected %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"x.png":           "x_seed_18446744073709551615.png",
		"a.b/x.y.jpg":     "a.b/x.y_seed_18446744073709551615.jpg",
		"{prompt}.png":    "a-red-circle-left-of-a-blue-square_seed_18446744073709551615.png",
		"{index}.png":     "3.png",
		"{seed}.png":      "18446744073709551615.png",
		"x{steps}{s}.png": "",
	} {
		got, err := expandName(name, s, 2, 3, 1)
		if (err != nil) != (want == "") || got != want {
			t.Errorf("several %s are %q, %v, expected %q", name, got, err, want)
		}
	}
	prompts := map[string][2]string{ // with one seed, and with two
		"x.png": {"x_3.png", "x_3_seed_18446744073709551615.png"},
		"{prompt}.png": {"a-red-circle-left-of-a-blue-square.png",
			"a-red-circle-left-of-a-blue-square_seed_18446744073709551615.png"},
		"{seed}.png": {"18446744073709551615_3.png", "18446744073709551615_3.png"},
		"{prompt}-{seed}.png": {"a-red-circle-left-of-a-blue-square-18446744073709551615.png",
			"a-red-circle-left-of-a-blue-square-18446744073709551615.png"},
		"{index} {steps}.png":   {"3 8.png", "3 8.png"},
		"{prompt}/{prompt}.png": {"", ""},
	}
	for name, want := range prompts {
		for i, want := range want {
			got, err := expandName(name, s, 2, 3*(i+1), 3)
			if (err != nil) != (want == "") || got != want {
				t.Errorf("%s of 3 prompts, %d seeds: %q, %v, expected %q", name, i+1, got, err, want)
			}
		}
	}
}

func TestFileWord(t *testing.T) {
	for text, want := range map[string]string{
		"a red circle":             "a-red-circle",
		"  A -- Red, (circle)!  ":  "a-red-circle",
		"v1.5":                     "v1.5",
		"../../etc/passwd":         "etc-passwd",
		"..":                       "_",
		"":                         "_",
		"!?":                       "_",
		"größer":                   "größer",
		"猫":                        "猫",
		"a\x00b\x1b[31m":           "a-b-31m",
		".hidden":                  "hidden",
		strings.Repeat("ab ", 30):  strings.TrimSuffix(strings.Repeat("ab-", 20), "-"),
		strings.Repeat("x", 100):   strings.Repeat("x", 60),
		strings.Repeat("x ", 100):  strings.TrimSuffix(strings.Repeat("x-", 30), "-"),
		strings.Repeat(" .- ", 99): "_",
	} {
		if got := fileWord(text); got != want {
			t.Errorf("%q is %q, expected %q", text, got, want)
		}
	}
}

// FuzzFileWord: whatever the prompt, it is part of one name.
func FuzzFileWord(f *testing.F) {
	for _, s := range []string{"a red circle", "..", "a/b\\c:d", "\xff\x00", "猫"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		word := fileWord(s)
		if word == "" || strings.HasPrefix(word, ".") || strings.ContainsAny(word, "/\\:\x00 {}") ||
			utf8.RuneCountInString(word) > 60 || !utf8.ValidString(word) {
			t.Errorf("%q", word)
		}
	})
}
