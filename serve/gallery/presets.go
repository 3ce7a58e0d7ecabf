package gallery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/models/errs"
)

// Limits on the presets of an owner.
const (
	MaxPreset  = 16 << 10 // bytes of one
	maxPresets = 100
	maxName    = 80 // characters
)

// A Preset is settings with a name.
type Preset struct {
	Name     string          `json:"name"`
	Settings json.RawMessage `json:"settings"`
}

// presetsFile is the name of the file with an owner's presets. It is not that of an image.
func presetsFile(owner string) string { return "gomflux-presets-" + hash(owner) + ".json" }

// Presets returns the presets of an owner, sorted by name.
func (g *Gallery) Presets(owner string) ([]Preset, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.presets(owner)
}

func (g *Gallery) presets(owner string) ([]Preset, error) {
	presets := []Preset{}
	text, err := fs.ReadFile(g.root.FS(), presetsFile(owner))
	if errors.Is(err, fs.ErrNotExist) {
		return presets, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &presets)
	}
	if err != nil {
		return nil, fmt.Errorf("presets %s: %w", filepath.Join(g.dir, presetsFile(owner)), err)
	}
	return presets, nil
}

// SavePreset stores a preset of an owner, and replaces one of the same name. A name that is not valid, or one preset too
// many, is a [gomflux.ErrRequest].
func (g *Gallery) SavePreset(owner string, p Preset) error {
	if n := utf8.RuneCountInString(p.Name); n > maxName || strings.TrimSpace(p.Name) != p.Name || p.Name == "" ||
		!utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, unicode.IsControl) {
		return errs.Requestf("name %.100q: expected 1 to %d characters without spaces at the ends", p.Name, maxName)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	presets, err := g.presets(owner)
	if err != nil {
		return err
	}
	at, found := findPreset(presets, p.Name)
	switch {
	case found:
		presets[at] = p
	case len(presets) >= maxPresets:
		return errs.Requestf("there are %d presets, expected at most %d: delete some first", len(presets), maxPresets)
	default:
		presets = slices.Insert(presets, at, p)
	}
	return g.writePresets(owner, presets)
}

// RemovePreset removes a preset of an owner, and reports whether there was one.
func (g *Gallery) RemovePreset(owner, name string) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	presets, err := g.presets(owner)
	if err != nil {
		return false, err
	}
	at, found := findPreset(presets, name)
	if !found {
		return false, nil
	}
	return true, g.writePresets(owner, slices.Delete(presets, at, at+1))
}

func findPreset(presets []Preset, name string) (int, bool) {
	return slices.BinarySearchFunc(presets, name, func(p Preset, name string) int { return strings.Compare(p.Name, name) })
}

func (g *Gallery) writePresets(owner string, presets []Preset) error {
	path := filepath.Join(g.dir, presetsFile(owner))
	err := atomicfile.ReplacePrivate(path, func(w io.Writer) error { return json.NewEncoder(w).Encode(presets) })
	if err != nil {
		return g.wrap(err)
	}
	return nil
}
