package serve

import (
	"context"
	"fmt"
	"image"
	"slices"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/engine"
)

// find finds a model of the list, and reports whether it is one of --model.
func (m *servedModels) find(name string) (source *gomflux.Source, given bool, err error) {
	if m.group.Rank() == 0 && !named(m.list(), name) { // which the others know by then
		return nil, false, fmt.Errorf("%s: %w", name, gomflux.ErrNotFound)
	}
	flag, base := name, ""
	if i := slices.IndexFunc(m.given, func(g givenModel) bool { return g.name == name }); i >= 0 {
		flag, base, given = m.given[i].flag, m.options.Base, true
	}
	source, err = gomflux.FindWith(flag, base)
	return source, given, err
}

// A language is a language model that rewrites prompts for models of the list.
type language struct {
	*gomflux.LanguageModel
	models *servedModels
}

// openLanguage loads the language model of a model of the list, for [engine.Config].
func (m *servedModels) openLanguage(ctx context.Context, name string, o *gomflux.LanguageOptions) (engine.LanguageModel, error) {
	source, _, err := m.find(name)
	if err != nil {
		return nil, err
	}
	open := m.options.OpenOptions()
	m.options.WeightFlags.Open(open)
	o.Device, o.Dtype, o.Quantize = open.Device, open.Dtype, open.Quantize
	o.Warn = func(message string) { m.log.Warn("loading", "language model of", name, "warning", message) }
	if m.options.lowRAM {
		o.MakeRoom()
	}
	began := time.Now()
	model, err := source.OpenLanguageModel(ctx, o)
	if err != nil {
		return nil, err
	}
	m.log.Info("loaded", "language model of", name, "took", time.Since(began).Round(time.Millisecond))
	return &language{model, m}, nil
}

// Enhance implements [engine.LanguageModel].
func (l *language) Enhance(ctx context.Context, model, prompt string, references []image.Image, o *gomflux.LanguageOptions,
) (*gomflux.Enhanced, error) {
	source, _, err := l.models.find(model)
	if err != nil {
		return nil, err
	}
	return l.LanguageModel.Enhance(ctx, source, prompt, references, o)
}
