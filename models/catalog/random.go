package catalog

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// FindConfigs returns the configs of a model, for random weights: those of a published model, which
// need not be on this machine, or of a built-in model or a folder, which takes precedence.
func FindConfigs(name string) (*Source, error) {
	s, err := locate(name)
	if err == nil && index.Exists(s.FS) {
		return s, nil
	}
	if preset, known := presetByName(name); known {
		return PublishedConfigs(&preset)
	}
	if errors.Is(err, errs.ErrNotFound) {
		names := make([]string, len(Presets))
		for i, p := range Presets {
			names[i] = p.Name
		}
		err = fmt.Errorf("no model %s: expected one of %s, or a folder with the configs of a model", name, strings.Join(names, ", "))
		return nil, errs.NotFound(err)
	}
	if err == nil {
		_, err = index.Read(s.FS)
	}
	return nil, err
}

// PublishedConfigs returns a source with nothing but the configs of a published model.
func PublishedConfigs(p *Preset) (*Source, error) {
	o := &overlay{name: p.Name, files: map[string]overlayFile{}}
	if _, err := o.writePublished(p, nil); err != nil {
		return nil, err
	}
	for _, m := range family.Find(p.Class).Components {
		if !index.IsModel(m.ClassName()) {
			continue
		}
		config := map[string]any{"_class_name": m.Class.Name}
		maps.Copy(config, p.Configs[m.Folder])
		if m.Folder == component.Transformers {
			maps.Copy(config, p.Transformer)
		}
		if err := o.writeJSON(path.Join(m.Folder, component.ConfigFile), "published values", config); err != nil {
			return nil, err
		}
	}
	return &Source{Name: p.Name, Defaults: &p.Defaults, FS: o}, nil
}
