package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/inspect"
	"github.com/gomflux/gomflux/serve/engine"
)

// A ListedModel is a model that --model takes, downloaded or not.
type ListedModel struct {
	Name       string   `json:"name"`
	Repo       string   `json:"repo,omitempty"`
	Revision   string   `json:"revision,omitempty"`
	Path       string   `json:"path,omitempty"`
	Builtin    bool     `json:"builtin"`
	About      string   `json:"about,omitempty"`
	Class      string   `json:"class,omitempty"`
	Bytes      int64    `json:"bytes"`
	Quantized  string   `json:"quantized,omitempty"`
	Packed     string   `json:"packed,omitempty"`
	Here       bool     `json:"here"`
	Complete   bool     `json:"complete"`
	Supported  bool     `json:"supported"`
	Problems   []string `json:"problems,omitempty"`
	Unfinished []string `json:"unfinished,omitempty"`
	Get        string   `json:"get,omitempty"`
	Aliases    []string `json:"aliases,omitempty"`
	family.Licence
	Gated bool `json:"gated"`

	Access string `json:"-"` // how to get access, if it is gated
	Stack  []byte `json:"-"` // of a panic while it was inspected

	Can engine.ModelInfo `json:"-"` // what it can do by its configs, for gomflux serve; no more of it is set
}

func (m *ListedModel) State() string {
	switch {
	case !m.Here:
		return "not downloaded"
	case !m.Supported:
		return "not supported"
	case !m.Complete:
		return "incomplete"
	}
	return "ready"
}

func (m *ListedModel) Where() string {
	switch {
	case m.Builtin:
		return "built in: " + m.About
	case !m.Here:
		return "to download: " + m.Get
	}
	return quote.Printable(catalog.TildePath(m.Path))
}

// ListModels returns all models; with an error those that could be found.
func ListModels() ([]ListedModel, error) {
	cached, err := hub.List()
	return listModels(cached), err
}

// ListAll is ListModels with the networks that enlarge images after them.
func ListAll() ([]ListedModel, error) {
	cached, err := hub.List()
	return append(listModels(cached), listUpscalers(cached)...), err
}

func listModels(cached []hub.Repo) []ListedModel {
	list := []ListedModel{}
	builtins := catalog.Builtins()
	for _, name := range slices.Sorted(maps.Keys(builtins)) {
		m := ListedModel{Name: name, Builtin: true, About: builtins[name].About}
		m.inspect("", checkpoint.Folder{FS: builtins[name].FS, Name: name})
		list = append(list, m)
	}
	repos := map[string]hub.Repo{}
	for _, r := range cached {
		repos[r.Name] = r
	}
	for _, p := range catalog.Presets {
		m := ListedModel{Name: p.Name, Repo: p.Repo, Get: "gomflux pull " + p.Name, Supported: true}
		s, err := gomflux.Find(p.Name)
		switch {
		case err == nil:
			m.inspect(s.Path(), s.FS())
			m.Revision = s.Revision()
		case !errors.Is(err, gomflux.ErrNotFound) || repos[p.Repo].Blobs:
			m.Here, m.Problems = true, []string{err.Error()}
		}
		if s != nil && s.Revision() == "" {
			m.Repo, m.Get = "", "" // a folder of that name
		} else {
			m.Aliases, m.Licence, m.Gated = p.Aliases, p.Licence, p.Gated
			if m.Gated {
				m.Access = p.Access()
			}
			m.Unfinished = repos[p.Repo].Unfinished
			delete(repos, p.Repo)
		}
		list = append(list, m)
	}
	for _, name := range slices.Sorted(maps.Keys(repos)) {
		r := repos[name]
		if r.Err != nil && !errors.Is(r.Err, hub.ErrNotCached) {
			list = append(list, ListedModel{Name: name, Repo: name, Here: true, Supported: true,
				Problems: []string{r.Err.Error()}, Unfinished: r.Unfinished})
			continue
		}
		fsys, err := pipelineIn(r)
		if fsys == nil && err == nil {
			continue // not a pipeline, as far as can be seen
		}
		m := ListedModel{Name: name, Repo: name, Revision: filepath.Base(r.Snapshot), Unfinished: r.Unfinished, Get: "gomflux pull " + name}
		if err != nil {
			m.Here, m.Problems = true, []string{err.Error()}
		} else {
			m.inspect(r.Snapshot, fsys)
		}
		list = append(list, m)
	}
	return list
}

// FoundModel describes one model, which was found by its name.
func FoundModel(name string, s *gomflux.Source) ListedModel {
	m := ListedModel{Name: name}
	if b, ok := catalog.Builtins()[name]; ok {
		m.Builtin, m.About = true, b.About
	}
	m.inspect(s.Path(), s.FS())
	if s.Revision() != "" {
		m.Repo, m.Revision = s.Name(), s.Revision()
		if _, _, preset := catalog.Published(name); preset != nil {
			m.Aliases, m.Licence, m.Gated = preset.Aliases, preset.Licence, preset.Gated
		}
		if !m.Complete {
			m.Get = "gomflux pull " + name
		}
	}
	return m
}

// pipelineIn returns the files of the pipeline in a repository's snapshot, in the
// diffusers layout or completed to it; nil if the repository is something else.
func pipelineIn(r hub.Repo) (fs.FS, error) {
	if r.Snapshot == "" {
		return nil, nil
	}
	if index.Exists(os.DirFS(r.Snapshot)) {
		return checkpoint.OpenFolder(r.Snapshot)
	}
	s, err := gomflux.Find(r.Name)
	if err != nil {
		return nil, nil
	}
	if !index.Exists(s.FS()) {
		return nil, nil
	}
	return s.FS(), nil
}

// inspect fills in what the configs and headers of a model say. A bug that one model meets does not
// hide the others.
func (m *ListedModel) inspect(path string, fsys fs.FS) {
	m.Path, m.Here = path, true
	defer func() {
		if p := recover(); p != nil {
			m.Supported, m.Problems, m.Stack = false, append(m.Problems, InternalError(p)), debug.Stack()
		}
	}()
	info := inspect.Model(fsys)
	m.Class, m.Bytes, m.Quantized, m.Packed = info.Class, info.Size, info.Quantization, info.Packed
	if d := info.Declared; d != nil {
		can, class := &m.Can, family.Find(info.Class)
		can.HasAlpha, can.Defaults = d.VAE.ImageChannels() == 4, gomflux.Defaults(d.Pipeline.Defaults())
		if l, ok := d.Pipeline.(family.Layerer); ok {
			can.Layers = l.DefaultLayers()
		}
		can.Boxes = family.RewriterFor(info.Class).Layout != nil
		can.GuidanceUnit, can.TrueCFG = class.GuidanceUnit(), class.TrueCFG
		can.SizeMultiple = d.VAE.ScaleFactor() * d.Pipeline.Multiple()
		if editor, ok := d.Pipeline.(family.Editor); ok {
			can.Edits, can.Multiple = editor.CheckReferences(1) == nil, editor.CheckReferences(2) == nil
		}
	}
	m.Complete, m.Supported = info.Incomplete == nil, info.Unsupported == nil
	for _, err := range []error{info.Unsupported, info.Incomplete} {
		if err != nil {
			m.Problems = append(m.Problems, err.Error())
		}
	}
	if m.Complete {
		m.Get = ""
	}
	if card, err := checkpoint.ReadText(fsys, "README.md", 1<<20); err == nil {
		m.Licence = family.LicenceNamed(hub.CardLicence(card)) // unless there is a preset, which knows better
	}
}

// QuantizationText returns a quantization level in words.
func QuantizationText(name string) string {
	if len(name) == 1 {
		return name + " bits"
	}
	return name
}

// A ModelList is what models and list print.
type ModelList []ListedModel

func (list ModelList) Text(p *ui.Page) {
	width := 0
	for _, m := range list {
		width = max(width, len(m.Name))
	}
	for i := range list {
		list[i].line(p, width)
		list[i].details(p)
	}
}

// line writes a model's name, padded to a width, size, state and location.
func (m *ListedModel) line(p *ui.Page, width int) {
	size := "-"
	if m.Here {
		size = units.Bytes(m.Bytes)
	}
	line := fmt.Sprintf("%-*s  %9s  %-14s  %s", width, m.Name, size, m.State(), m.Where())
	if m.Quantized != "" {
		line += ", quantized: " + QuantizationText(m.Quantized)
	}
	p.Printf("%s\n", strings.TrimRight(line, " "))
}

// details writes the indented lines below a model.
func (m *ListedModel) details(p *ui.Page) {
	for _, problem := range m.Problems {
		p.Printf("\t%s\n", quote.Printable(problem))
	}
	if m.Here && !m.Complete {
		for _, name := range m.Unfinished {
			p.Printf("\tunfinished download: %s\n", quote.Printable(catalog.TildePath(name)))
		}
		if m.Get != "" {
			p.Printf("\tto download what is missing: %s\n", m.Get)
		}
	}
	if m.Access != "" && !m.Complete {
		p.Printf("\tgated: %s\n", m.Access)
	}
	var about []string
	if len(m.Aliases) > 0 {
		about = append(about, "also "+strings.Join(m.Aliases, ", "))
	}
	if licence := m.Summary(); licence != "" {
		about = append(about, licence)
	}
	if len(about) > 0 {
		p.Printf("\t%s\n", strings.Join(about, "; "))
	}
}
