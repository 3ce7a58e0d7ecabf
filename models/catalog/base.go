package catalog

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// A base is the model that components are completed by: one on this machine, or a
// published one of which no files are needed.
type base struct {
	like   *Source
	preset *Preset // nil if there is like
}

func (b *base) name() string {
	if b.like != nil {
		return b.like.Name
	}
	return b.preset.Name
}

func (b *base) defaults() *family.Defaults {
	if b.like != nil {
		return b.like.Defaults
	}
	return &b.preset.Defaults
}

// configs is where configs say what shapes do not, for messages.
func (b *base) configs() string {
	if b.like != nil {
		return "the config of " + b.like.Name
	}
	return "what is published of " + b.preset.Name
}

// baseOf finds the model that components are completed by: the one of a name, or
// without a name the one that they tell of.
func (s *Source) baseOf(parts map[string]*loose, name string) (*base, error) {
	if name == "" {
		return s.guessBase(parts)
	}
	preset, known := findNamed(name)
	if known && wholeWithout(parts, &preset) {
		return &base{preset: &preset}, nil
	}
	like, err := locate(name)
	if err != nil {
		return nil, fmt.Errorf("%s: its base model: %w", s.Folder, err)
	}
	if !index.Exists(like.FS) {
		return nil, fmt.Errorf("%s: its base model, %s, is no whole model in diffusers' layout (it has no %s)", s.Folder, name, index.File)
	}
	return &base{like: like}, nil
}

// guessBase finds the model that components are made from, which has to be on this
// machine unless they lack none of its files.
func (s *Source) guessBase(parts map[string]*loose) (*base, error) {
	what := fmt.Sprintf("%s: has %s", s.Folder, describe(parts))
	candidates := basesOf(parts[component.Transformers], s.word())
	if len(candidates) == 0 {
		return nil, fmt.Errorf("%s; it is made from no model that is known by name: --base-model NAME says what to take the rest from", what)
	}
	var names []string
	var complete, cached []*Preset
	for _, preset := range candidates {
		names = append(names, preset.Name)
		if wholeWithout(parts, preset) {
			complete = append(complete, preset)
		}
		if folder, err := hub.Find(preset.Repo, ""); err == nil && index.Exists(os.DirFS(folder)) {
			cached = append(cached, preset)
		}
	}
	if len(complete) == len(candidates) {
		cached = complete
	}
	switch {
	case len(cached) == 0:
		return nil, errs.NotFound(fmt.Errorf("%s, and takes the rest from a model that is not on this machine: gomflux pull %s, or --base-model NAME", what, names[0]))
	case slices.ContainsFunc(cached[1:], func(p *Preset) bool { return !alike(p, cached[0]) }):
		return nil, errs.Requestf("%s; its tensors do not tell which of %s it is made from: --base-model NAME does", what, strings.Join(names, ", "))
	case len(complete) == len(candidates):
		return &base{preset: cached[0]}, nil
	}
	like, err := locate(cached[0].Repo)
	return &base{like: like}, err
}

// wholeWithout reports whether components and what is published make a whole model
// like a preset's: whether it has all but the settings of scheduler and processor.
func wholeWithout(parts map[string]*loose, preset *Preset) bool {
	return !slices.ContainsFunc(family.Find(preset.Class).Components, func(m family.Member) bool {
		return parts[m.Folder] == nil && m.Class.Role != component.Scheduler && m.Class.Role != component.Processor
	})
}

// alike reports whether a component of one preset can be completed by either.
func alike(a, b *Preset) bool {
	return a.Class == b.Class && reflect.DeepEqual(a.Scheduler, b.Scheduler) && reflect.DeepEqual(a.Index, b.Index) && reflect.DeepEqual(a.Transformer, b.Transformer)
}

// word is what the source is called, without where it is.
func (s *Source) word() string {
	if s.Revision != "" { // a snapshot's folder is called by its commit
		return path.Base(s.Name)
	}
	if abs, err := filepath.Abs(s.Folder); err == nil {
		return filepath.Base(abs)
	}
	return filepath.Base(s.Folder)
}

// basesOf lists the presets that a transformer can be of: by its class and sizes,
// and by what its file or folder is called, if that says anything.
func basesOf(transformer *loose, name string) (bases []*Preset) {
	best := 0
	words := wordsOf(name)
	for i := range Presets {
		preset := &Presets[i]
		member, ok := family.Find(preset.Class).Member(component.Transformers)
		if !ok || member.Class.Name != transformer.class || !transformer.fits(preset) {
			continue
		}
		switch score := wordsOfPreset(words, preset); {
		case score > best:
			best, bases = score, []*Preset{preset}
		case score == best:
			bases = append(bases, preset)
		}
	}
	return bases
}

// wordsOfPreset counts the words of the longest name of a preset that is among some
// words.
func wordsOfPreset(words []string, preset *Preset) (most int) {
	for _, own := range append([]string{preset.Name, preset.RepoName()}, preset.Aliases...) {
		if list := wordsOf(own); len(list) > most && !slices.ContainsFunc(list, func(w string) bool { return !slices.Contains(words, w) }) {
			most = len(list)
		}
	}
	return most
}

// wordsOf takes a name apart.
func wordsOf(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// fits reports whether what the transformer's tensors tell is what is published.
func (l *loose) fits(preset *Preset) bool {
	for key, want := range preset.Transformer {
		if told, ok := l.told[key]; ok && fmt.Sprint(told) != fmt.Sprint(want) {
			return false
		}
	}
	return true
}
