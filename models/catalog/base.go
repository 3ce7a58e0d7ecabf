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

// A base is the base model that completes components: a model on this machine, or a published
// model of which only configs are needed, or components that another model on this machine has.
type base struct {
	local  *Source // has the components that are needed; nil if no files are needed
	preset *Preset // has the configs; nil if local has them
}

func (b *base) name() string {
	if b.preset == nil {
		return b.local.Name
	}
	return b.preset.Name
}

func (b *base) defaults() *family.Defaults {
	if b.preset == nil {
		return b.local.Defaults
	}
	return &b.preset.Defaults
}

// configs describes, for messages, where config values come from that tensor shapes
// do not determine.
func (b *base) configs() string {
	if b.preset == nil {
		return "the config of " + b.local.Name
	}
	return "published values of " + b.preset.Name
}

// baseOf finds the base model of components by its name. If the name is empty, it is
// guessed from the components.
func (s *Source) baseOf(parts map[string]*bareComponent, name string) (*base, error) {
	if name == "" {
		return s.guessBase(parts)
	}
	preset, known := presetByName(name)
	if known && isComplete(parts, &preset) {
		return &base{preset: &preset}, nil
	}
	local, err := locate(name)
	if err != nil && known {
		if other := findSharing(&preset); other != nil {
			return &base{local: other, preset: &preset}, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: base model: %w", s.Folder, err)
	}
	if !index.Exists(local.FS) {
		return nil, fmt.Errorf("%s: base model %s: must be a whole model in diffusers' layout, found no %s", s.Folder, name, index.File)
	}
	return &base{local: local}, nil
}

// guessBase finds the base model by the class and size of the transformer and the
// name of the source. It must be on this machine, unless the components need none of
// its weights and tokenizers.
func (s *Source) guessBase(parts map[string]*bareComponent) (*base, error) {
	what := fmt.Sprintf("%s: contains %s", s.Folder, describe(parts))
	candidates := basesOf(parts[component.Transformers], s.baseName())
	if len(candidates) == 0 {
		return nil, fmt.Errorf("%s, whose size is that of no known model: "+
			"name the model that supplies the other components with --base-model NAME", what)
	}
	var names []string
	var complete, cached []*Preset
	for _, preset := range candidates {
		names = append(names, preset.Name)
		if isComplete(parts, preset) {
			complete = append(complete, preset)
		}
		if isCached(preset) {
			cached = append(cached, preset)
		}
	}
	var sharing *Source
	if len(complete) == len(candidates) {
		cached = complete
	} else if len(cached) == 0 {
		if sharing = findSharing(candidates[0]); sharing != nil {
			cached = candidates
		}
	}
	switch {
	case len(cached) == 0:
		return nil, errs.NotFound(fmt.Errorf("%s; its base model, which supplies the other components, is not on this machine "+
			"(gomflux pull %s, or name another model with --base-model NAME)", what, names[0]))
	case slices.ContainsFunc(cached[1:], func(p *Preset) bool { return !interchangeable(p, cached[0]) }):
		return nil, errs.Requestf("%s, which fits several base models: choose one of %s with --base-model NAME",
			what, strings.Join(names, ", "))
	case len(complete) == len(candidates):
		return &base{preset: cached[0]}, nil
	case sharing != nil:
		return &base{local: sharing, preset: cached[0]}, nil
	}
	local, err := locate(cached[0].Repo)
	return &base{local: local}, err
}

// isCached reports whether a published model is in the Hugging Face cache.
func isCached(preset *Preset) bool {
	folder, err := hub.Find(preset.Repo, "")
	return err == nil && index.Exists(os.DirFS(folder))
}

// findSharing returns a model in the Hugging Face cache that has the same components as a published
// model except for the transformer, nil if there is no such model.
func findSharing(preset *Preset) *Source {
	for i := range Presets {
		if other := &Presets[i]; shares(preset, other) && isCached(other) {
			if s, err := locate(other.Repo); err == nil {
				return s
			}
		}
	}
	return nil
}

// shares reports whether other has all components of a model except for those that a single file or
// published configs replace: published models of a family with the same configs have the same text
// encoders, tokenizers and autoencoder.
func shares(preset, other *Preset) bool {
	members := family.Find(other.Class).Components
	lacks := func(m family.Member) bool {
		replaced := m.Class.Role == component.Transformer || m.Class.Role == component.Scheduler ||
			m.Class.Role == component.Processor && !m.Class.Tokenizes()
		same := func(o family.Member) bool { return o.Folder == m.Folder && o.Class == m.Class }
		return !replaced && !slices.ContainsFunc(members, same)
	}
	return reflect.DeepEqual(preset.Configs, other.Configs) && !slices.ContainsFunc(family.Find(preset.Class).Components, lacks)
}

// isComplete reports whether components need nothing but published configs to be a
// whole model of a preset: whether only its scheduler and processor are missing.
func isComplete(parts map[string]*bareComponent, preset *Preset) bool {
	return !slices.ContainsFunc(family.Find(preset.Class).Components, func(m family.Member) bool {
		return parts[m.Folder] == nil && m.Class.Role != component.Scheduler &&
			(m.Class.Role != component.Processor || m.Class.Tokenizes())
	})
}

// interchangeable reports whether two presets complete a component in the same way.
func interchangeable(a, b *Preset) bool {
	return a.Class == b.Class && reflect.DeepEqual(a.Scheduler, b.Scheduler) &&
		reflect.DeepEqual(a.Index, b.Index) && reflect.DeepEqual(a.Transformer, b.Transformer)
}

// baseName returns the last element of the source's name.
func (s *Source) baseName() string {
	if s.Revision != "" { // the folder of a snapshot is named by its commit
		return path.Base(s.Name)
	}
	if abs, err := filepath.Abs(s.Folder); err == nil {
		return filepath.Base(abs)
	}
	return filepath.Base(s.Folder)
}

// basesOf lists the published models that a transformer can come from: those with its
// class and sizes. If the name of its file or folder contains a model's FileNames, only
// such models are listed, otherwise only models without FileNames. Of these, it lists
// the ones whose own name has the most words in common with the file's.
func basesOf(transformer *bareComponent, name string) (bases []*Preset) {
	var candidates []*Preset
	for i := range Presets {
		member, ok := family.Find(Presets[i].Class).Member(component.Transformers)
		if ok && member.Class.Name == transformer.class && transformer.matches(&Presets[i]) {
			candidates = append(candidates, &Presets[i])
		}
	}
	identified := func(p *Preset) bool {
		return slices.ContainsFunc(p.FileNames, func(part string) bool {
			return strings.Contains(strings.ToLower(name), strings.ToLower(part))
		})
	}
	if slices.ContainsFunc(candidates, identified) {
		candidates = slices.DeleteFunc(candidates, func(p *Preset) bool { return !identified(p) })
	} else {
		candidates = slices.DeleteFunc(candidates, func(p *Preset) bool { return len(p.FileNames) > 0 })
	}
	best, words := 0, splitWords(name)
	for _, preset := range candidates {
		switch score := matchingWords(words, preset); {
		case score > best:
			best, bases = score, []*Preset{preset}
		case score == best:
			bases = append(bases, preset)
		}
	}
	return bases
}

// matchingWords returns the number of words in the longest name of a preset all of
// whose words are among the given ones.
func matchingWords(words []string, preset *Preset) (most int) {
	missing := func(w string) bool { return !slices.Contains(words, w) }
	for _, own := range append([]string{preset.Name, preset.RepoName()}, preset.Aliases...) {
		if list := splitWords(own); len(list) > most && !slices.ContainsFunc(list, missing) {
			most = len(list)
		}
	}
	return most
}

// splitWords returns the words of a name in lower case.
func splitWords(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// matches reports whether the transformer's config agrees with the published one.
func (l *bareComponent) matches(preset *Preset) bool {
	for key, want := range preset.Transformer {
		if known, ok := l.known[key]; ok && fmt.Sprint(known) != fmt.Sprint(want) {
			return false
		}
	}
	return true
}
