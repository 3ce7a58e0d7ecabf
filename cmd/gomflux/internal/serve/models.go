package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/serve/engine"
)

// relist is how long a list of models is used before the Hugging Face cache is read again, or ten times
// as long as that took.
const relist = 10 * time.Second

// servedModels are the models that clients of gomflux serve can name.
type servedModels struct {
	options      *serveOptions
	defaultModel string
	given        []givenModel
	log          *slog.Logger
	group        group

	mu     sync.Mutex
	listed []engine.ModelInfo
	until  time.Time // listed is used

	lorasListed []string
	lorasWhen   time.Time

	memory     map[string][2]int64 // estimates and what is available, in bytes, by name and revision
	estimating sync.Mutex          // of the estimate under way
}

// A givenModel is a model of --model.
type givenModel struct {
	name string // for clients
	flag string // as it was given
	path string // flag, if it is a path
}

// give adds a model of --model. Clients see a path as the name of its last folder or file, with a number
// if another model has that name.
func (m *servedModels) give(flag string, source *gomflux.Source, taken func(name string) bool) {
	if slices.ContainsFunc(m.given, func(g givenModel) bool { return g.flag == flag }) {
		return
	}
	g := givenModel{name: flag, flag: flag}
	if source.Path() != "" && source.Revision() == "" {
		base := filepath.Base(source.Path())
		if ext := filepath.Ext(base); ext == ".safetensors" || ext == ".gguf" {
			base = strings.TrimSuffix(base, ext)
		}
		g.name, g.path = base, flag
		used := func(other givenModel) bool { return other.name == g.name }
		for n := 2; taken(g.name) || slices.ContainsFunc(m.given, used); n++ {
			g.name = fmt.Sprintf("%s-%d", base, n)
		}
	}
	m.given = append(m.given, g)
}

// newServedModels finds the models of --model, and the default model.
func newServedModels(o *serveOptions, out *ui.Output) (*servedModels, error) {
	m := &servedModels{options: o}
	known := sync.OnceValue(func() []cli.ListedModel { // reading the tokenizers of many models takes seconds
		list, _ := cli.ListModels() // m.list reports the error
		return list
	})
	taken := func(name string) bool {
		_, listed := catalog.Builtins()[name] // all others that are listed are presets, or have owner/name
		listed = listed || slices.ContainsFunc(catalog.Presets, func(p catalog.Preset) bool { return p.Name == name })
		here := func(k cli.ListedModel) bool { return k.Name == name && k.Here }
		return slices.Contains(o.models, name) || listed && slices.ContainsFunc(known(), here)
	}
	for _, name := range o.models {
		source, err := cli.FindWith(name, o.Base)
		if err != nil {
			return nil, err
		}
		writes, _ := onlyWrites(source)
		if err := source.Err(); err != nil && !writes {
			return nil, cli.Coded(cli.ExitModel, err)
		}
		o.WarnQuantized(source, out)
		m.give(name, source, taken)
		if m.defaultModel == "" && !writes {
			m.defaultModel = m.given[len(m.given)-1].name
		}
	}
	for _, l := range o.LoRAs.List {
		if _, err := catalog.FindLoRA(l.Path); err != nil {
			return nil, cli.Coded(cli.ExitModel, err)
		}
	}
	if m.defaultModel != "" {
		return m, nil
	}
	m.defaultModel = cli.DefaultModel
	if _, err := gomflux.Find(cli.DefaultModel); errors.Is(err, gomflux.ErrNotFound) {
		m.defaultModel = cli.SortedKeys(catalog.Builtins())[0]
		out.Note("the default model is %s, since %s is not downloaded (gomflux pull %s)",
			m.defaultModel, cli.DefaultModel, cli.DefaultModel)
	}
	return m, nil
}

// list returns all models, the default one first.
func (m *servedModels) list() []engine.ModelInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listed != nil && time.Now().Before(m.until) {
		return m.withMemory()
	}
	began := time.Now()
	var list []engine.ModelInfo
	for _, g := range m.given {
		info := m.describe(g.flag, m.options.Base, nil)
		info.Name, info.Path = g.name, g.path
		list = append(list, info)
	}
	known, err := cli.ListModels()
	if err != nil && m.log != nil {
		m.log.Warn("models", "error", err.Error())
	}
	for _, k := range known {
		if !named(list, k.Name) {
			list = append(list, m.describe(k.Name, "", &k))
		}
	}
	first := slices.IndexFunc(list, func(i engine.ModelInfo) bool { return i.Name == m.defaultModel })
	if first >= 0 {
		list[first].Default = true
		one := list[first]
		list = slices.Insert(slices.Delete(list, first, first+1), 0, one)
	}
	// reading the tokenizers of many models takes seconds
	m.listed, m.until = list, time.Now().Add(max(relist, 10*time.Since(began)))
	return m.withMemory()
}

// withMemory returns the list with what is known of the memory that models need.
func (m *servedModels) withMemory() []engine.ModelInfo {
	list := slices.Clone(m.listed)
	for i := range list {
		found := m.memory[cmp.Or(list[i].Path, list[i].Name)+"@"+list[i].Revision]
		list[i].Peak, list[i].Free = found[0], found[1]
	}
	return list
}

func named(list []engine.ModelInfo, name string) bool {
	return slices.ContainsFunc(list, func(i engine.ModelInfo) bool { return i.Name == name })
}

// describe describes a model, of which listModels may know something.
func (m *servedModels) describe(name, base string, known *cli.ListedModel) engine.ModelInfo {
	var info engine.ModelInfo
	preset, _ := catalog.FindPreset(name)
	source, err := gomflux.FindWith(name, base)
	if err == nil {
		err = source.Err()
	}
	if known == nil && err == nil {
		found := cli.FoundModel(name, source)
		known = &found
	}
	if known != nil {
		info = known.Can
		info.Licence, info.Missing, info.Bytes = known.Licence, missing(known), known.Bytes
		if known.Stack != nil {
			m.log.Error("internal error (this is a bug: please report it)", "model", name, "stack", string(known.Stack))
		}
	}
	info.Name, info.Repo = name, preset.Repo
	if source != nil {
		info.OnlyWrites, info.Sees = onlyWrites(source)
	}
	if info.Writes = info.OnlyWrites; info.Writes {
		info.Missing = "it is a language model, which generates no images"
		return info
	}
	if err != nil {
		info.Missing, info.Defaults = cmp.Or(info.Missing, err.Error()), gomflux.Defaults(preset.Defaults)
		return info
	}
	info.Revision = source.Revision()
	if stat, err := fs.Stat(source.FS(), index.Name(source.FS())); err == nil {
		info.Created = stat.ModTime()
	}
	if d := source.Defaults(); d != nil {
		info.Defaults = *d
	}
	if info.Missing == "" {
		if _, builtin := catalog.Builtins()[name]; !builtin { // which are not trained to write
			info.Writes, info.Sees = models.HasLanguageModel(source.FS())
		}
		m.estimate(name, source)
	}
	return info
}

// onlyWrites reports whether a folder has nothing but a language model, and whether that sees images.
func onlyWrites(source *gomflux.Source) (writes, sees bool) {
	if index.Exists(source.FS()) {
		return false, false
	}
	return models.HasLanguageModel(source.FS())
}

// estimate estimates the memory that a model needs, if that was not done yet, and one model at a time, so
// that a job waits for one of them at most.
func (m *servedModels) estimate(name string, source *gomflux.Source) {
	key := name + "@" + source.Revision()
	if _, ok := m.memory[key]; ok {
		return
	}
	if m.memory == nil {
		m.memory = map[string][2]int64{}
	}
	m.memory[key] = [2]int64{} // is under way
	o := models.LoadOptions{Defaults: (*family.Defaults)(source.Defaults())}
	if q, group := m.options.Quantization(); q != "" {
		o.Quantize, _ = component.ParseQuantization(string(q), group) // open reports errors
	}
	go func() {
		m.estimating.Lock()
		defer m.estimating.Unlock()
		var peak, free int64
		err := mlx.Do(context.Background(), func() error {
			e, low, available, err := models.EstimateModel(source.FS(), o)
			if m.options.lowRAM {
				e = low
			}
			peak, free = e.Peak(), available
			return err
		})
		if err != nil {
			return // a job with the model will say so
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.memory[key] = [2]int64{peak, free}
	}()
}

// missing returns why a model cannot be used, with the command that would help.
func missing(m *cli.ListedModel) string {
	if m.State() == "ready" {
		return ""
	}
	text := m.State()
	if len(m.Problems) > 0 {
		text += ": " + strings.Join(m.Problems, "; ")
	}
	if m.Get != "" && m.Supported {
		text += " (" + m.Get + ")"
	}
	return text
}

// loras lists names of LoRAs that clients can use.
func (m *servedModels) loras() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.lorasWhen) >= relist {
		var err error
		if m.lorasListed, err = catalog.ListLoRAs(); err != nil {
			m.log.Warn("LoRAs", "error", err.Error())
		}
		m.lorasWhen = time.Now()
	}
	return slices.Clone(m.lorasListed)
}

// A renamedError is an error with another text.
type renamedError struct {
	error
	text string
}

func (e renamedError) Error() string { return e.text }
func (e renamedError) Unwrap() error { return e.error }

// withoutPaths returns an error in which LoRAs have the names that clients gave them instead of paths.
func withoutPaths(err error, loras []gomflux.LoRA) error {
	text := err.Error()
	for _, l := range loras {
		if found, missing := catalog.FindLoRA(l.Path); missing == nil && found.Path != "" {
			text = strings.ReplaceAll(text, found.Path, l.Path)
		}
	}
	return renamedError{err, text}
}

// open loads a model of the list, for [engine.Config].
func (m *servedModels) open(
	ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress),
) (engine.Model, error) {
	if m.group.Size() == 1 {
		return m.load(ctx, name, loras, progress)
	}
	all := &groupModel{group: &m.group}
	err := m.group.tell(order{Do: "open", Model: name, LoRAs: loras}, func() (err error) {
		all.Model, err = m.load(context.WithoutCancel(ctx), name, loras, progress) // in all to its end
		return err
	})
	return all, err
}

// load loads a model in this process, and in the others at the same time.
func (m *servedModels) load(
	ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress),
) (*gomflux.Model, error) {
	o := m.options
	source, given, err := m.find(name)
	if err != nil {
		return nil, m.group.agree(err)
	}
	open := o.OpenOptions()
	o.WeightFlags.Open(open)
	if !given && name != m.defaultModel {
		open.LoRAs = nil
	}
	open.LoRAs = o.Used(append(slices.Clone(open.LoRAs), loras...))
	open.RuntimeLoRA = o.NoBake && len(open.LoRAs) > 0
	open.LowRAM, open.Progress = o.lowRAM, progress
	open.Group = m.group.Group
	open.Warn = func(message string) { m.log.Warn("loading", "model", name, "warning", message) }
	o.PromptCacheFlags.Open(open)
	began := time.Now()
	for _, l := range loras {
		if _, err := catalog.FindLoRA(l.Path); errors.Is(err, gomflux.ErrNotFound) {
			return nil, m.group.agree(fmt.Errorf("LoRA %s is %w (expected the name of one that is, or owner/name[@revision][:file])",
				l.Path, gomflux.ErrNotFound))
		}
	}
	model, err := source.Open(ctx, open)
	if err != nil {
		return nil, withoutPaths(err, loras)
	}
	log := m.log.With("model", name, "took", time.Since(began).Round(time.Millisecond))
	if s := model.Settings(gomflux.Options{Split: o.split.OrZero()}); s.Split != "" {
		log = log.With("split", s.Split, "ranks", s.Ranks)
	}
	log.Info("loaded")
	return model, nil
}
