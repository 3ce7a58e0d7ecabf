package models

import (
	"strings"
	"testing"
)

func TestReadPresets(t *testing.T) {
	const (
		about  = `"repo": "a/b", "licence": "MIT", "licence_url": "https://x"`
		rest   = `"guidance": 0, "height": 8, "width": 8, "max_sequence_length": 1`
		second = `, {"name": "b", "repo": "a/c", "licence": "MIT", "licence_url": "https://x"`
	)
	for table, want := range map[string]string{
		`[]`:                            "it is empty",
		`{}`:                            "cannot unmarshal",
		`[{"name": "a", "steps": 1.5}]`: "cannot unmarshal",
		`[{"name": "a", "stepz": 1}]`:   `unknown field "stepz"`,
		`[{"name": "a", "steps": 1, ` + about + `}]`:                                              "a: has some settings, and not all",
		`[{"name": "a", "guidance": 1, ` + about + `}]`:                                           "a: has some settings, and not all",
		`[{"name": "a", ` + rest + `, ` + about + `}]`:                                            "a: has some settings, and not all",
		`[{"name": "a", "steps": 0, ` + rest + `, ` + about + `}]`:                                "a: a setting is out of its range",
		`[{"name": "a", "steps": 1, ` + strings.Replace(rest, "0", "-1", 1) + `, ` + about + `}]`: "a: a setting is out of its range",
		`[{"name": "a"}]`:                                                                 "a: the repository, the licence or its URL",
		`[{` + about + `}]`:                                                               `: "" is no name`,
		`[{"name": "A", ` + about + `}]`:                                                  `A: "A" is no name`,
		`[{"name": "a", "aliases": ["a"], ` + about + `}]`:                                "a: a is a name of a already",
		`[{"name": "a", "aliases": ["b"], ` + about + `}` + second + `}]`:                 "b: b is a name of a already",
		`[{"name": "a", ` + about + `}` + second + `, "aliases": ["c", "a"]}]`:            "b: a is a name of a already",
		`[{"name": "a", ` + about + `}` + strings.Replace(second, "a/c", "A/B", 1) + `}]`: "b: A/B is a name of a already",
	} {
		if _, err := readPresets([]byte(table)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, expected %s", table, err, want)
		}
	}
	presets, err := readPresets([]byte(`[{"name": "a", "aliases": ["x"], "gated": true, "steps": 3, ` + rest + `, ` + about + `}` + second + `}]`))
	if err != nil {
		t.Fatal(err)
	}
	if p := presets[0]; !p.Gated || *p.Defaults != (Defaults{Steps: 3, Height: 8, Width: 8, MaxSequenceLength: 1}) || p.URL() != "https://huggingface.co/a/b" {
		t.Errorf("%+v", p)
	}
	if p := presets[1]; p.Gated || p.Defaults != nil {
		t.Errorf("%+v", p)
	}
}
