package catalog

import (
	"cmp"
	"errors"
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

// A bareComponent is a component without a model around it: from a single file, or a
// folder without a model_index.json.
type bareComponent struct {
	class    string                 // the main name of its class, "" if unknown
	from     string                 // the file or folder, for messages
	files    map[string]overlayFile // by name in the component's folder
	inferred *layout.Config         // the config inferred from its tensors, nil if there is a config.json
	known    map[string]any         // the known config values, from config.json or inferred
	weights  string                 // the file or folder that its config is inferred from
}

// supported is the end of the error of [component.Detect] about unknown files.
var supported = "supported are the transformers of " + family.And(family.Names()) + ", their autoencoders and text encoders, " +
	"with tensor names as in diffusers, ComfyUI, mflux or the original checkpoints, and the networks " +
	family.And(component.Names(component.Upscaler)) + " that enlarge images"

var shard = regexp.MustCompile(`-\d+-of-\d+\.safetensors$`)

// modelOfFile finds the components in a file, one of which must be a transformer, by their folders.
func modelOfFile(fsys fs.FS, name string) (map[string]*bareComponent, error) {
	parts, err := componentsOfFile(fsys, name)
	if err == nil && parts[component.Transformers] == nil {
		err = fmt.Errorf("%s: expected a transformer, found only %s", checkpoint.FullName(fsys, name), describe(parts))
	}
	return parts, err
}

// componentsOfFile finds the components in a file by their folders.
func componentsOfFile(fsys fs.FS, name string) (map[string]*bareComponent, error) {
	if shard.MatchString(name) {
		return nil, fmt.Errorf("%s: is one of several files of a component: name the folder that contains them",
			checkpoint.FullName(fsys, name))
	}
	ck, err := openWeights(fsys, name)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	found, err := component.Detect(ck, supported)
	if err != nil {
		return nil, err
	}
	parts := map[string]*bareComponent{}
	for _, p := range found {
		part, err := infer(ck, p)
		if err != nil {
			return nil, err
		}
		part.files["model"+safetensors], part.weights = overlayFile{fsys: fsys, path: name}, name
		parts[p.Class.Folder] = part
	}
	return parts, addTekken(parts, ck)
}

// tekkenFolder and tekkenName are where the tokenizer of a Mistral belongs that ComfyUI's files of text encoders have as a tensor.
const tekkenFolder, tekkenName = "tokenizer", "tekken.json"

func addTekken(parts map[string]*bareComponent, ck *checkpoint.Checkpoint) error {
	data, err := ck.ReadText("tekken_model", 1<<26) // published ones have 19 MB
	if data != nil {
		file := overlayFile{text: data, origin: "its tensor tekken_model"}
		parts[tekkenFolder] = &bareComponent{from: ck.Dir, files: map[string]overlayFile{tekkenName: file}}
	}
	return err
}

// componentsOfFolder finds the components in a folder: the folder itself, if it is a
// transformer's, or the folders in it. It returns nil if there is no transformer.
func componentsOfFolder(fsys fs.FS) (map[string]*bareComponent, error) {
	dirs, err := checkpoint.WeightFolders(fsys)
	switch {
	case err != nil || len(dirs) == 0:
		return nil, err
	case dirs[0] == ".":
		return transformerFolder(fsys)
	case !slices.Contains(dirs, component.Transformers):
		return nil, nil
	}
	parts := map[string]*bareComponent{}
	for _, dir := range dirs {
		if _, err := fs.Stat(fsys, path.Join(dir, component.ConfigFile)); err == nil && len(dirs) > 1 {
			return nil, nil // diffusers' layout with a missing model_index.json: an incomplete download
		}
		found, err := readComponents(fsys, dir)
		if err != nil {
			return nil, err
		}
		maps.Copy(parts, found)
	}
	// add folders without weights: tokenizers, the scheduler
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return parts, err
	}
	for _, e := range entries {
		info, err := fs.Stat(fsys, e.Name())
		known := parts[e.Name()] != nil && parts[e.Name()].files[tekkenName].text == nil
		if err != nil || !info.IsDir() || known || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if parts[e.Name()], err = listFiles(fsys, e.Name()); err != nil {
			return nil, err
		}
	}
	moveFromMFlux(parts)
	return parts, nil
}

// moveFromMFlux gives tokenizers in folders with a name of mflux's that of the transformer's pipeline. Other components
// in the folder of another one were found there by their tensors.
func moveFromMFlux(parts map[string]*bareComponent) {
	for _, f := range family.All {
		for _, c := range f.Pipelines {
			if t, _ := c.Member(component.Transformers); t.Class.Name != parts[component.Transformers].class {
				continue
			}
			for _, m := range c.Components {
				p := parts[m.MFluxFolder]
				if p == nil || parts[m.Folder] != nil || p.files["tokenizer.json"].fsys == nil || !m.Class.Tokenizes() {
					continue
				}
				files := maps.Clone(p.files)
				maps.DeleteFunc(files, func(name string, _ overlayFile) bool { return strings.Contains(name, safetensors) })
				parts[m.Folder] = &bareComponent{from: p.from, files: files}
				if p.class == "" {
					delete(parts, m.MFluxFolder)
				}
			}
		}
	}
}

// fromRoot returns a model's folder with the transformer in its usual place, if it is one of those that
// mflux saves at the top of the folder, and otherwise the folder itself.
func fromRoot(fsys fs.FS, name string) fs.FS {
	dirs, err := checkpoint.WeightFolders(fsys)
	if err != nil || len(dirs) == 0 || dirs[0] == "." || slices.Contains(dirs, component.Transformers) {
		return fsys
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, ".")
	if err != nil {
		return fsys
	}
	defer ck.Close()
	found, err := component.Detect(ck, supported)
	if err != nil || len(found) != 1 || !found[0].Class.MFluxAtRoot {
		return fsys
	}
	root, err := listFiles(fsys, ".")
	if err != nil {
		return fsys
	}
	o := &overlay{name: name, lower: fsys, hidden: map[string]bool{}, files: map[string]overlayFile{}}
	for file, f := range root.files {
		if file == component.ConfigFile || strings.Contains(file, safetensors) {
			o.files[path.Join(found[0].Class.Folder, file)] = f
		}
	}
	return o
}

// transformerFolder returns the transformer whose own folder this is, nil if it is not
// a transformer's. The error is about weights in a format that is not supported.
func transformerFolder(fsys fs.FS) (map[string]*bareComponent, error) {
	parts, err := readComponents(fsys, ".")
	part := cmp.Or(parts["."], parts[component.Transformers]) // several have the names of their folders
	if err == nil && part != nil && part.class == "" {        // such as of DFloat11
		var ck *checkpoint.Checkpoint
		if ck, err = checkpoint.OpenCheckpoint(fsys, "."); err == nil {
			ck.Close()
		}
	}
	if errors.Is(err, checkpoint.ErrUnsupported) {
		return nil, err
	}
	if err != nil || part == nil {
		return nil, nil
	}
	if class := component.Find(part.class); class == nil || class.Role != component.Transformer {
		return nil, nil
	}
	delete(parts, ".")
	parts[component.Transformers] = part
	return parts, nil
}

// readComponents reads the component with weights in a folder. mflux saves Anima's text conditioner with the
// transformer: several components have the names of their own folders.
func readComponents(fsys fs.FS, dir string) (map[string]*bareComponent, error) {
	part, err := listFiles(fsys, dir)
	if err != nil {
		return nil, err
	}
	if _, ok := part.files[component.ConfigFile]; ok {
		err = checkpoint.ReadJSON(fsys, path.Join(dir, component.ConfigFile), &part.known)
		if part.class, _ = part.known["_class_name"].(string); part.class == "" {
			list, _ := part.known["architectures"].([]any)
			if len(list) > 0 {
				part.class, _ = list[0].(string)
			}
		}
		if part.class != "" {
			part.class = mainName(part.class)
		}
		return map[string]*bareComponent{dir: part}, err
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
	parts := map[string]*bareComponent{}
	for _, f := range found {
		folder := dir
		if len(found) > 1 {
			folder = f.Class.Folder
		}
		if parts[folder] != nil {
			return nil, fmt.Errorf("%s: expected one component, found %s and %s", ck.Dir, found[0].Class.Name, f.Class.Name)
		}
		if parts[folder], err = infer(ck, f); err != nil {
			return nil, err
		}
		parts[folder].from, parts[folder].files, parts[folder].weights = part.from, part.files, dir
	}
	return parts, addTekken(parts, ck)
}

// openWeights opens a safetensors file, or those in a folder.
func openWeights(fsys fs.FS, name string) (*checkpoint.Checkpoint, error) {
	if !strings.HasSuffix(name, safetensors) {
		return checkpoint.OpenCheckpoint(fsys, name)
	}
	f, err := checkpoint.Open(fsys, name)
	if err != nil {
		return nil, err
	}
	ck, err := checkpoint.NewCheckpoint(f)
	if err != nil {
		f.Close()
	}
	return ck, err
}

// as reads the component again as one of another class, if the names of its tensors are those of both.
func (b *bareComponent) as(fsys fs.FS, class *component.Class) {
	if b.weights == "" || class == nil {
		return
	}
	ck, err := openWeights(fsys, b.weights)
	if err != nil {
		return
	}
	defer ck.Close()
	found, ok := component.DetectAs(ck, class)
	if !ok {
		return
	}
	if other, err := infer(ck, found); err == nil {
		b.class, b.inferred, b.known = other.class, other.inferred, other.known
	}
}

// listFiles returns a component with the files of a folder, without subfolders.
func listFiles(fsys fs.FS, dir string) (*bareComponent, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", checkpoint.FullName(fsys, dir), err)
	}
	part := &bareComponent{from: checkpoint.FullName(fsys, dir), files: map[string]overlayFile{}}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if info, err := fs.Stat(fsys, name); err != nil || !info.IsDir() { // a dangling link is an error when it is read
			part.files[e.Name()] = overlayFile{fsys: fsys, path: name}
		}
	}
	return part, nil
}

// infer returns a detected component with its inferred config.
func infer(ck *checkpoint.Checkpoint, p component.Detected) (*bareComponent, error) {
	config, err := p.Infer(ck)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ck.Dir, err)
	}
	return &bareComponent{class: p.Class.Name, from: ck.Dir, files: map[string]overlayFile{}, inferred: &config,
		known: config.Inferred}, nil
}

// mainName returns the main name of a class for its name or an alias. An unknown class
// keeps its name.
func mainName(class string) string {
	if c := component.Find(class); c != nil {
		return c.Name
	}
	return class
}

// describe lists components for messages, such as "transformer (FluxTransformer2DModel)".
func describe(parts map[string]*bareComponent) string {
	var list []string
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		if parts[dir].class != "" {
			list = append(list, fmt.Sprintf("%s (%s)", dir, parts[dir].class))
		}
	}
	return strings.Join(list, ", ")
}
