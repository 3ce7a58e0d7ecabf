package models

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/hub"
)

// A Preset is a published model: its names, where it is, what it may be used
// for, and the settings it is meant to be run with.
type Preset struct {
	Name    string
	Aliases []string
	Repo    string
	// Licence is an SPDX identifier, or the licence's own name where it has none.
	Licence    string
	LicenceURL string
	// Gated models are fetched with a token of somebody who has accepted their
	// conditions at URL.
	Gated bool
	// Defaults are nil where they are those of the pipeline class.
	Defaults *Defaults
}

// URL is the model's page.
func (p *Preset) URL() string { return hub.DefaultEndpoint + "/" + p.Repo }

// Access is what there is to do before a gated model can be fetched.
func (p *Preset) Access() string {
	return "accept its conditions at " + p.URL() + ", and set HF_TOKEN to a token of yours (from " + hub.DefaultEndpoint + "/settings/tokens) or log in (hf auth login)"
}

// Presets holds the published models that are known by name: presets.json.
var Presets = func() []Preset {
	presets, err := readPresets(presetsJSON)
	if err != nil {
		panic("models: presets.json: " + err.Error())
	}
	return presets
}()

//go:embed presets.json
var presetsJSON []byte

// readPresets reads a table of presets. Of the settings one has all or none.
func readPresets(table []byte) ([]Preset, error) {
	var entries []struct {
		Name              string   `json:"name"`
		Aliases           []string `json:"aliases"`
		Repo              string   `json:"repo"`
		Licence           string   `json:"licence"`
		LicenceURL        string   `json:"licence_url"`
		Gated             bool     `json:"gated"`
		Steps             *int     `json:"steps"`
		Guidance          *float64 `json:"guidance"`
		NegativePrompt    string   `json:"negative_prompt"`
		Height            *int     `json:"height"`
		Width             *int     `json:"width"`
		MaxSequenceLength *int     `json:"max_sequence_length"`
	}
	d := json.NewDecoder(bytes.NewReader(table))
	d.DisallowUnknownFields()
	if err := d.Decode(&entries); err != nil {
		return nil, err
	}
	var presets []Preset
	taken := map[string]string{}
	for _, e := range entries {
		p := Preset{Name: e.Name, Aliases: e.Aliases, Repo: e.Repo, Licence: e.Licence, LicenceURL: e.LicenceURL, Gated: e.Gated}
		numbers := []*int{e.Steps, e.Height, e.Width, e.MaxSequenceLength}
		switch missing := slices.Index(numbers, nil); {
		case missing < 0 && e.Guidance != nil:
			if slices.ContainsFunc(numbers, func(n *int) bool { return *n < 1 }) || !(*e.Guidance >= 0) {
				return nil, fmt.Errorf("%s: a setting is out of its range", e.Name)
			}
			p.Defaults = &Defaults{*e.Steps, *e.Guidance, e.NegativePrompt, *e.Height, *e.Width, *e.MaxSequenceLength}
		case e.Guidance != nil || e.NegativePrompt != "" || slices.ContainsFunc(numbers, func(n *int) bool { return n != nil }):
			return nil, fmt.Errorf("%s: has some settings, and not all", e.Name)
		}
		if !hub.IsRepo(p.Repo) || p.Licence == "" || !strings.HasPrefix(p.LicenceURL, "https://") {
			return nil, fmt.Errorf("%s: the repository, the licence or its URL is missing or wrong", e.Name)
		}
		for _, name := range append([]string{p.Name, p.Repo}, p.Aliases...) {
			key := strings.ToLower(name)
			if name == "" || name != p.Repo && name != key {
				return nil, fmt.Errorf("%s: %q is no name (they are in lower case)", e.Name, name)
			}
			if other, ok := taken[key]; ok {
				return nil, fmt.Errorf("%s: %s is a name of %s already", e.Name, name, other)
			}
			taken[key] = e.Name
		}
		presets = append(presets, p)
	}
	if len(presets) == 0 {
		return nil, errors.New("it is empty")
	}
	return presets, nil
}

// FindPreset returns the preset of a short name, an alias, a repository, or a
// folder as presetOf does. Find takes a folder that is there for no alias.
func FindPreset(model string) (Preset, bool) {
	if p, ok := findNamed(model); ok {
		return p, true
	}
	return presetOf(model)
}

// findNamed returns the preset that has a name, in any case: its own, an alias
// or its repository.
func findNamed(name string) (Preset, bool) {
	is := func(own string) bool { return strings.EqualFold(name, own) }
	for _, p := range Presets {
		if is(p.Name) || is(p.Repo) || slices.ContainsFunc(p.Aliases, is) {
			return p, true
		}
	}
	return Preset{}, false
}

// presetOf returns the preset of a folder: a snapshot of its repository in a
// Hugging Face cache, or one that has its name or that of its repository. A
// folder of another name can hold anything.
func presetOf(folder string) (Preset, bool) {
	folder = filepath.Clean(folder)
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs // the name of . and .. too
	}
	base := filepath.Base(folder)
	if repo, ok := hub.RepoOf(folder); ok {
		_, base, _ = strings.Cut(repo, "/")
	}
	for _, p := range Presets {
		_, repo, _ := strings.Cut(p.Repo, "/")
		if strings.EqualFold(base, repo) || strings.EqualFold(base, p.Name) {
			return p, true
		}
	}
	return Preset{}, false
}
