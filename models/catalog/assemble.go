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

// What is not a whole model in diffusers' layout is made one: a file with one or
// all of the components, as ComfyUI and the models' makers have it, a transformer's
// own folder, and a folder that mflux saved, which has no configs. What a config
// says is found out by the tensors' shapes, as far as they tell, and where they do
// not, it is that of the base model or, without one, of what is published. All
// components that are missing are the base model's.

// assemble makes a whole model of a source that is not. It leaves others as they
// are, and those that it does not know: what is wrong with them is said when they
// are opened.
func (s *Source) assemble(base string) (made bool, err error) {
	if s.Folder == "" {
		return false, nil // in the program
	}
	info, err := os.Stat(s.Folder)
	if err != nil {
		return false, err
	}
	var parts map[string]*loose
	if !info.IsDir() {
		parts, err = looseFile(s.FS, filepath.Base(s.Folder))
	} else if !index.Exists(s.FS) {
		if parts, err = looseFolder(s.FS); base == "" {
			base = savedByMFlux(s.FS)
		}
	}
	if err != nil || parts == nil {
		return false, err
	}
	return true, s.complete(parts, base)
}

// complete makes a model of components, with what another one has.
func (s *Source) complete(parts map[string]*loose, baseName string) error {
	b, err := s.baseOf(parts, baseName)
	if err != nil {
		return err
	}
	o := &overlay{name: s.Folder, hidden: map[string]bool{}, files: map[string]overlayFile{}}
	var x index.Index
	if b.like != nil {
		o.under = b.like.FS
		x, err = b.like.Index()
	} else {
		x, err = o.writePublished(b.preset, parts)
	}
	if err != nil {
		return fmt.Errorf("%s: its base model: %w", s.Folder, err)
	}
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		part, own := parts[dir], x.Components[dir]
		switch {
		case own == "" && part.class == "":
			continue // a folder of something else
		case own == "":
			return fmt.Errorf("%s: has a %s, and the base model, %s, has none (--base-model names another)", part.from, part.class, b.name())
		case part.class != "" && part.class != mainName(own):
			return fmt.Errorf("%s: has a %s, and the base model, %s, a %s (--base-model names another)", part.from, part.class, b.name(), own)
		}
		o.hidden[dir] = true
		for file, f := range part.files {
			o.files[path.Join(dir, file)] = f
		}
		if part.config == nil {
			continue
		}
		config, err := b.configFor(dir, part)
		if err == nil {
			err = o.write(path.Join(dir, component.ConfigFile), "the shapes of its tensors and "+b.configs(), config)
		}
		if err != nil {
			return err
		}
	}
	s.Base, s.Defaults, s.FS = b.name(), b.defaults(), o
	return nil
}

// configFor is the config of a component without one: what its tensors tell, over
// the base model's or what is published.
func (b *base) configFor(dir string, part *loose) (map[string]any, error) {
	config := map[string]any{}
	if b.like != nil {
		if err := checkpoint.ReadJSON(b.like.FS, path.Join(dir, component.ConfigFile), &config); err != nil {
			return nil, fmt.Errorf("base model %s: %w", b.name(), err)
		}
	} else {
		maps.Copy(config, part.config.Published)
		if dir == component.Transformers {
			maps.Copy(config, b.preset.Transformer)
		}
	}
	if dir == component.Transformers || dir == component.Autoencoders {
		config["_class_name"] = part.class
	}
	maps.Copy(config, part.config.Told)
	if text, ok := config["text_config"].(map[string]any); ok { // where newer files have it
		maps.Copy(text, part.config.Told)
	}
	return config, nil
}

// writePublished makes what the components of a preset's model lack.
func (o *overlay) writePublished(preset *Preset, parts map[string]*loose) (index.Index, error) {
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
		if err := o.write(name, "what is published of "+preset.Name, text); err != nil {
			return x, err
		}
	}
	return x, nil
}

// write makes a JSON file of something, for messages.
func (o *overlay) write(name, of string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	o.files[name] = overlayFile{text: text, of: of}
	return nil
}
