package catalog

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

// A loose component is one that was found outside of a model folder.
type loose struct {
	class string                 // by its main name, "" for none that is told
	from  string                 // where, for messages
	files map[string]overlayFile // by their names in the component's folder
	// config is what its tensors tell, nil where a config.json is among the files.
	config *layout.Config
	told   map[string]any // of its config, wherever it is
}

// supported is what [component.Detect] says of files that it does not know.
var supported = "what is known are the transformers of " + family.And(family.Names()) + ", their autoencoders and their text encoders, " +
	"under diffusers' names, those of the models' makers, ComfyUI's and mflux's"

var shard = regexp.MustCompile(`-\d+-of-\d+\.safetensors$`)

// looseFile finds the components in a file.
func looseFile(fsys fs.FS, name string) (map[string]*loose, error) {
	if shard.MatchString(name) {
		return nil, fmt.Errorf("%s: is one of several files of a component: give the folder that they are in", checkpoint.FullName(fsys, name))
	}
	f, err := checkpoint.Open(fsys, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ck := &checkpoint.Checkpoint{Dir: f.Name, Files: []*checkpoint.File{f}, Tensors: f.Header.Tensors}
	found, err := component.Detect(ck, supported)
	if err != nil {
		return nil, err
	}
	parts := map[string]*loose{}
	for _, p := range found {
		part, err := infer(ck, p)
		if err != nil {
			return nil, err
		}
		part.files["model"+safetensors] = overlayFile{fsys: fsys, path: name}
		parts[p.Class.Folder] = part
	}
	if parts[component.Transformers] == nil {
		return nil, fmt.Errorf("%s: holds %s, and no transformer: a model is known by that one", f.Name, describe(parts))
	}
	return parts, nil
}

// looseFolder finds the components in a folder: its own files, if it is a
// transformer's, or those of the folders in it. It returns none where there is no
// transformer.
func looseFolder(fsys fs.FS) (map[string]*loose, error) {
	dirs, err := checkpoint.WeightFolders(fsys)
	switch {
	case err != nil || len(dirs) == 0:
		return nil, err
	case dirs[0] == ".":
		return looseTransformer(fsys), nil
	case !slices.Contains(dirs, component.Transformers):
		return nil, nil
	}
	parts := map[string]*loose{}
	for _, dir := range dirs {
		if _, err := fs.Stat(fsys, path.Join(dir, component.ConfigFile)); err == nil && len(dirs) > 1 {
			return nil, nil // diffusers' folder without its model_index.json, which did not arrive
		}
		if parts[dir], err = looseComponent(fsys, dir); err != nil {
			return nil, err
		}
	}
	// what has no weights: tokenizers, the scheduler
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return parts, err
	}
	for _, e := range entries {
		if info, err := fs.Stat(fsys, e.Name()); err == nil && info.IsDir() && parts[e.Name()] == nil && !strings.HasPrefix(e.Name(), ".") {
			if parts[e.Name()], err = looseFiles(fsys, e.Name()); err != nil {
				return nil, err
			}
		}
	}
	return parts, nil
}

// looseTransformer is the transformer whose own folder this is. There is none in a
// folder of something else, as an autoencoder's.
func looseTransformer(fsys fs.FS) map[string]*loose {
	part, err := looseComponent(fsys, ".")
	if err != nil {
		return nil
	}
	if class := component.Find(part.class); class == nil || class.Role != component.Transformer {
		return nil
	}
	return map[string]*loose{component.Transformers: part}
}

// looseComponent is a component with weights in a folder.
func looseComponent(fsys fs.FS, dir string) (*loose, error) {
	part, err := looseFiles(fsys, dir)
	if err != nil {
		return nil, err
	}
	if _, ok := part.files[component.ConfigFile]; ok {
		err = checkpoint.ReadJSON(fsys, path.Join(dir, component.ConfigFile), &part.told)
		if part.class, _ = part.told["_class_name"].(string); part.class == "" {
			list, _ := part.told["architectures"].([]any)
			if len(list) > 0 {
				part.class, _ = list[0].(string)
			}
		}
		if part.class != "" {
			part.class = mainName(part.class)
		}
		return part, err
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, dir)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	found, err := component.Detect(ck, supported)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("%s: expected one component, found %s and %s", ck.Dir, found[0].Class.Name, found[1].Class.Name)
	}
	known, err := infer(ck, found[0])
	if err != nil {
		return nil, err
	}
	part.class, part.config, part.told = known.class, known.config, known.told
	return part, nil
}

// looseFiles are the files of a folder, without those in folders below.
func looseFiles(fsys fs.FS, dir string) (*loose, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", checkpoint.FullName(fsys, dir), err)
	}
	part := &loose{from: checkpoint.FullName(fsys, dir), files: map[string]overlayFile{}}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if info, err := fs.Stat(fsys, name); err != nil || !info.IsDir() { // a link to nothing is missed when it is read
			part.files[e.Name()] = overlayFile{fsys: fsys, path: name}
		}
	}
	return part, nil
}

// infer makes a component of a part of a checkpoint.
func infer(ck *checkpoint.Checkpoint, p component.Part) (*loose, error) {
	config, err := p.Infer(ck)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ck.Dir, err)
	}
	return &loose{class: p.Class.Name, from: ck.Dir, files: map[string]overlayFile{}, config: &config, told: config.Told}, nil
}

// mainName is the name that tables list a class under, for any of its names. A
// class that is not known keeps its own.
func mainName(class string) string {
	if c := component.Find(class); c != nil {
		return c.Name
	}
	return class
}

// describe lists components.
func describe(parts map[string]*loose) string {
	var list []string
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		if parts[dir].class != "" {
			list = append(list, fmt.Sprintf("%s (%s)", dir, parts[dir].class))
		}
	}
	return strings.Join(list, ", ")
}
