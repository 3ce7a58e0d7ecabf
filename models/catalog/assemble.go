package catalog

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// This file completes sources that are not a whole model in diffusers' layout: a
// single file with one or all of the components, as ComfyUI and the models' makers
// publish them, a transformer's own folder, and a folder saved by mflux, which has no
// configs. Configs are inferred from the shapes of the tensors. Values that shapes do
// not determine come from the base model or, if no base model is needed, from what is
// published about the model. Missing components come from the base model.

// assemble completes a source that is not a whole model and reports whether it did.
// Whole models and unknown folders are left as they are: errors in those are reported
// when they are opened.
func (s *Source) assemble(base string) (made bool, err error) {
	if s.Folder == "" {
		return false, nil // built into the program
	}
	info, err := os.Stat(s.Folder)
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		s.FS = fromRoot(s.FS, s.Folder)
	}
	var parts map[string]*bareComponent
	if !info.IsDir() {
		parts, err = modelOfFile(s.FS, filepath.Base(s.Folder))
	} else if !index.Exists(s.FS) {
		if parts, err = componentsOfFolder(s.FS); base == "" {
			base = mfluxModelName(s.FS) // "" if mflux did not save it
		}
	}
	if err != nil || parts == nil {
		return false, err
	}
	return true, s.complete(parts, base)
}

// complete makes a whole model from components and the base model of that name. If
// the name is empty, the base model is guessed.
func (s *Source) complete(parts map[string]*bareComponent, baseName string) error {
	b, err := s.baseOf(parts, baseName)
	if err != nil {
		return err
	}
	o := &overlay{name: s.Folder, hidden: map[string]bool{}, files: map[string]overlayFile{}}
	var x index.Index
	if b.local != nil {
		o.lower = b.local.FS
	}
	if b.preset == nil {
		x, err = b.local.Index()
	} else {
		x, err = o.writePublished(b.preset, parts)
	}
	if err != nil {
		return fmt.Errorf("%s: base model: %w", s.Folder, err)
	}
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		part, own := parts[dir], x.Components[dir]
		if part.class != "" && part.class != mainName(own) {
			part.as(s.FS, component.Find(own))
		}
		switch {
		case own == "" && part.class == "":
			continue // a folder that belongs to no component
		case own == "":
			return fmt.Errorf("%s: contains a %s, but its base model %s has no such component (choose another with --base-model)",
				part.from, part.class, b.name())
		case part.class != "" && part.class != mainName(own):
			return fmt.Errorf("%s: contains a %s, but its base model %s has a %s instead (choose another with --base-model)",
				part.from, part.class, b.name(), own)
		}
		o.hidden[dir] = true
		for file, f := range part.files {
			o.files[path.Join(dir, file)] = f
		}
		if part.inferred == nil {
			continue
		}
		config, err := b.configFor(dir, part)
		if err == nil {
			err = o.writeJSON(path.Join(dir, component.ConfigFile), "inferred from the shapes of its tensors and "+b.configs(), config)
		}
		if err != nil {
			return err
		}
	}
	s.Base, s.Defaults, s.FS = b.name(), b.defaults(), o
	return nil
}

// configFor returns the config of a component that has no config.json: the values
// inferred from its tensors, on top of the base model's config or published values.
func (b *base) configFor(dir string, part *bareComponent) (map[string]any, error) {
	config := map[string]any{}
	if b.local != nil {
		if err := checkpoint.ReadJSON(b.local.FS, path.Join(dir, component.ConfigFile), &config); err != nil {
			return nil, fmt.Errorf("base model %s: %w", b.name(), err)
		}
	} else {
		maps.Copy(config, part.inferred.Published)
	}
	if b.preset != nil && dir == component.Transformers {
		maps.Copy(config, b.preset.Transformer)
	}
	if dir == component.Transformers || dir == component.Autoencoders {
		config["_class_name"] = part.class
	}
	text, nested := config["text_config"].(map[string]any) // of newer files
	maps.Copy(config, part.inferred.Inferred)
	if nested {
		inferred, ok := part.inferred.Inferred["text_config"].(map[string]any)
		if !ok {
			inferred = part.inferred.Inferred
		}
		maps.Copy(text, inferred)
		config["text_config"] = text
	}
	return config, nil
}

// writePublished adds the published model_index.json of a preset, and the configs of
// the scheduler and the processor that parts lack.
func (o *overlay) writePublished(preset *Preset, parts map[string]*bareComponent) (index.Index, error) {
	x := index.Index{Class: preset.Class, Components: map[string]string{}}
	members := map[string]any{"_class_name": preset.Class}
	maps.Copy(members, preset.Index)
	files := map[string]any{index.File: members}
	for _, m := range family.Find(preset.Class).Components {
		class := m.ClassName()
		x.Components[m.Folder], members[m.Folder] = class, [2]string{m.Class.Library, class}
		if parts[m.Folder] != nil {
			continue
		}
		name := path.Join(m.Folder, index.ConfigFile(class))
		switch m.Class.Role {
		case component.Scheduler:
			scheduler := map[string]any{"_class_name": class}
			maps.Copy(scheduler, preset.Scheduler)
			files[name] = scheduler
		case component.Processor:
			files[name] = preset.Processor
		}
	}
	for name, text := range files {
		if err := o.writeJSON(name, "published values of "+preset.Name, text); err != nil {
			return x, err
		}
	}
	return x, nil
}

// writeJSON adds v as a JSON file. Messages describe the file by origin.
func (o *overlay) writeJSON(name, origin string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	o.files[name] = overlayFile{text: text, origin: origin}
	return nil
}
