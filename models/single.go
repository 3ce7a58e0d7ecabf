package models

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/internal/hub"
)

// What is not a whole model in diffusers' layout is made one: a file with one or
// all of the components, as ComfyUI and the models' makers have it, a transformer's
// own folder, and a folder that mflux saved, which has no configs. What a config
// says is found out by the tensors' shapes, as far as they tell, and where they do
// not, it is that of the base model or, without one, of what is published. All
// components that are missing are the base model's.

// published is published.json.
var published = func() (p struct {
	Pipelines  map[string]map[string][2]string // their components by name: library and class
	Schedulers map[string]map[string]any
	Processor  map[string]any
	Models     map[string]publishedModel // by preset
}) {
	d := json.NewDecoder(bytes.NewReader(publishedJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		panic("models: published.json: " + err.Error())
	}
	return p
}()

//go:embed published.json
var publishedJSON []byte

// publishedModel is what is published of a preset's model, as far as it tells it
// from others.
type publishedModel struct {
	Pipeline  string
	Scheduler string         // one of the schedulers
	Index     map[string]any // further keys of model_index.json
	// Transformer are keys of its config.json.
	Transformer map[string]any
}

// transformerDir is the folder of the component that a model is known by.
const transformerDir = "transformer"

// A component that was found outside of a model folder.
type loose struct {
	class string
	from  string                 // where, for messages
	files map[string]overlayFile // by their names in the component's folder
	// config is what its tensors tell, nil where a config.json is among the files.
	config *layout.Config
	told   map[string]any // of its config, wherever it is
}

// FindWith is Find for a model that is not whole, a single file for one: what it
// does not have is taken from another, by its name, which may be "" where the
// published model that it is made from can be told by the names of file and
// tensors, and is on this machine. A base for a whole model is an error.
func FindWith(name, base string) (*Source, error) {
	s, err := find(name)
	if err != nil {
		return nil, err
	}
	made, err := s.assemble(base)
	switch info, statErr := os.Stat(s.Folder); {
	case err == nil && !made && base != "" && !whole(s.FS):
		return nil, requestErrorf("--base-model %s: %s has no transformer that could be completed, and no %s", base, name, indexFile)
	case err == nil && !made && base != "":
		return nil, requestErrorf("--base-model %s: %s is whole, and takes nothing from another model", base, name)
	case err != nil && base == "" && statErr == nil && info.IsDir():
		s.FS = unfinished{s.FS.(checkpoint.Folder), err} // parts of it can be looked at and used all the same
	case err != nil:
		return nil, err
	}
	return s, nil
}

// unfinished is a folder that is no whole model, and cannot be made one.
type unfinished struct {
	checkpoint.Folder
	err error
}

// openSource opens what is at a path: a folder or a safetensors file.
func openSource(name string) (fs.FS, error) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return checkpoint.OpenFolder(name)
	}
	switch ext := strings.ToLower(filepath.Ext(name)); {
	case ext == safetensors || ext == ".sft":
		dir, _ := filepath.Split(name)
		return checkpoint.Folder{FS: os.DirFS(filepath.Join(dir, ".")), Name: dir}, nil
	case ext == ".gguf":
		return nil, fmt.Errorf("%w: %s: is a GGUF file: MLX cannot read all of its quantizations (not Q3_K, Q5_0, Q5_1, Q5_K and the IQ ones), and most others only "+
			"as float16 and all at once; take the safetensors of the same model, and --quantize", ErrUnsupported, name)
	case checkpoint.IsPickle(name):
		return nil, fmt.Errorf("%w: %s: is a pickle file, which can run any code: take the safetensors of the same model", ErrUnsupported, name)
	}
	return checkpoint.OpenFolder(name)
}

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
	} else if !whole(s.FS) {
		if parts, err = looseFolder(s.FS); base == "" {
			base = savedFrom(s.FS)
		}
	}
	if err != nil || parts == nil {
		return false, err
	}
	return true, s.complete(parts, base)
}

// whole says whether a folder is a model's, by its model_index.json.
func whole(fsys fs.FS) bool {
	_, err := fs.Lstat(fsys, indexFile)
	return !errors.Is(err, fs.ErrNotExist)
}

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
	found, err := layout.Detect(ck)
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
		parts[dirOf(p.Class)] = part
	}
	if parts[transformerDir] == nil {
		return nil, fmt.Errorf("%s: holds %s, and no transformer: a model is known by that one", f.Name, describe(parts))
	}
	return parts, nil
}

// looseFolder finds the components in a folder: its own files, if it is a
// transformer's, or those of the folders in it. It returns none where there is no
// transformer.
func looseFolder(fsys fs.FS) (map[string]*loose, error) {
	parts := map[string]*loose{}
	dirs, err := foldersWithWeights(fsys)
	if err != nil || len(dirs) == 0 {
		return nil, err
	}
	if dirs[0] != "." && !slices.Contains(dirs, transformerDir) {
		return nil, nil
	}
	for _, dir := range dirs {
		if _, err := fs.Stat(fsys, path.Join(dir, modelConfig)); err == nil && len(dirs) > 1 {
			return nil, nil // diffusers' folder without its model_index.json, which did not arrive
		}
		part, err := looseComponent(fsys, dir)
		if err != nil {
			if dir == "." { // it may be something else altogether, as an autoencoder's folder
				return nil, nil
			}
			return nil, err
		}
		if dir == "." {
			dir = dirOf(part.class)
		}
		parts[dir] = part
	}
	if parts[transformerDir] == nil {
		return nil, nil
	}
	// what has no weights: tokenizers, the scheduler
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil || dirs[0] == "." {
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

// looseComponent is a component with weights in a folder.
func looseComponent(fsys fs.FS, dir string) (*loose, error) {
	part, err := looseFiles(fsys, dir)
	if err != nil {
		return nil, err
	}
	if _, ok := part.files[modelConfig]; ok {
		err = checkpoint.ReadJSON(fsys, path.Join(dir, modelConfig), &part.told)
		if part.class, _ = part.told["_class_name"].(string); part.class == "" {
			list, _ := part.told["architectures"].([]any)
			if len(list) > 0 {
				part.class, _ = list[0].(string)
			}
		}
		if part.class != "" {
			part.class = layout.Class(part.class)
		}
		return part, err
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, dir)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	found, err := layout.Detect(ck)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("%s: expected one component, found %s and %s", ck.Dir, found[0].Class, found[1].Class)
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
func infer(ck *checkpoint.Checkpoint, p layout.Part) (*loose, error) {
	config, err := layout.Infer(p.Class, layout.Shapes(ck, p))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ck.Dir, err)
	}
	return &loose{class: p.Class, from: ck.Dir, files: map[string]overlayFile{}, config: &config, told: config.Told}, nil
}

// dirOf is the folder that a component of a class has in a pipeline.
func dirOf(class string) string {
	switch {
	case strings.Contains(class, "Transformer2DModel"):
		return transformerDir
	case strings.HasPrefix(class, "AutoencoderKL"):
		return autoencoderDir
	case class == "T5EncoderModel":
		return "text_encoder_2"
	}
	return "text_encoder"
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

// complete makes a model of components, with what another one has.
func (s *Source) complete(parts map[string]*loose, base string) error {
	o := &overlay{name: s.Folder, hidden: map[string]bool{}, files: map[string]overlayFile{}}
	like, preset, err := s.baseOf(parts, base)
	if err != nil {
		return err
	}
	var x index
	var name, of string // of is where configs say what shapes do not
	var defaults *Defaults
	if like != nil {
		name, defaults, o.under, of = like.Name, like.Defaults, like.FS, "the config of "+like.Name
		x, err = readIndex(like.FS)
	} else {
		name, defaults, of = preset.Name, preset.Defaults, "what is published of "+preset.Name
		x, err = o.writePublished(preset.Name, parts)
	}
	if err != nil {
		return fmt.Errorf("%s: its base model: %w", s.Folder, err)
	}
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		part, own := parts[dir], x.components[dir]
		switch {
		case own == "" && part.class == "":
			continue // a folder of something else
		case own == "":
			return fmt.Errorf("%s: has a %s, and the base model, %s, has none (--base-model names another)", part.from, part.class, name)
		case part.class != "" && part.class != layout.Class(own):
			return fmt.Errorf("%s: has a %s, and the base model, %s, a %s (--base-model names another)", part.from, part.class, name, own)
		}
		o.hidden[dir] = true
		for file, f := range part.files {
			o.files[path.Join(dir, file)] = f
		}
		if part.config == nil {
			continue
		}
		config, err := part.merge(like, preset, dir)
		if err == nil {
			err = o.write(path.Join(dir, modelConfig), "the shapes of its tensors and "+of, config)
		}
		if err != nil {
			return err
		}
	}
	s.Base, s.Defaults, s.FS = name, defaults, o
	return nil
}

// writePublished makes what the components of a preset's model lack.
func (o *overlay) writePublished(preset string, parts map[string]*loose) (index, error) {
	facts := published.Models[preset]
	x := index{class: facts.Pipeline, components: map[string]string{}}
	members := map[string]any{"_class_name": facts.Pipeline}
	maps.Copy(members, facts.Index)
	for name, pair := range published.Pipelines[facts.Pipeline] {
		members[name], x.components[name] = pair, pair[1]
	}
	scheduler := map[string]any{"_class_name": x.components["scheduler"]}
	maps.Copy(scheduler, published.Schedulers[facts.Scheduler])
	files := map[string]any{indexFile: members}
	for name, text := range map[string]any{"scheduler/scheduler_config.json": scheduler, "processor/preprocessor_config.json": published.Processor} {
		if dir := path.Dir(name); parts[dir] == nil && x.components[dir] != "" {
			files[name] = text
		}
	}
	for name, text := range files {
		if err := o.write(name, "what is published of "+preset, text); err != nil {
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

// merge is the config of a component without one: what its tensors tell, over the
// base model's or what is published.
func (l *loose) merge(like *Source, preset *Preset, dir string) (map[string]any, error) {
	config := map[string]any{}
	if like != nil {
		if err := checkpoint.ReadJSON(like.FS, path.Join(dir, modelConfig), &config); err != nil {
			return nil, fmt.Errorf("base model %s: %w", like.Name, err)
		}
	} else {
		maps.Copy(config, l.config.Published)
		if dir == transformerDir {
			maps.Copy(config, published.Models[preset.Name].Transformer)
		}
	}
	if dir == transformerDir || dir == autoencoderDir {
		config["_class_name"] = l.class
	}
	maps.Copy(config, l.config.Told)
	if text, ok := config["text_config"].(map[string]any); ok { // where newer files have it
		maps.Copy(text, l.config.Told)
	}
	return config, nil
}

// baseOf finds the model that components are completed by: either one on this
// machine, or a published one of which no files are needed.
func (s *Source) baseOf(parts map[string]*loose, base string) (*Source, *Preset, error) {
	transformer := parts[transformerDir]
	what := fmt.Sprintf("%s: has %s", s.Folder, describe(parts))
	if base != "" {
		preset, known := findNamed(base)
		if known && wholeWithout(parts, preset.Name) {
			return nil, &preset, nil
		}
		like, err := find(base)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: its base model: %w", s.Folder, err)
		}
		if !whole(like.FS) {
			return nil, nil, fmt.Errorf("%s: its base model, %s, is no whole model in diffusers' layout (it has no %s)", s.Folder, base, indexFile)
		}
		return like, nil, nil
	}
	candidates := basesOf(transformer, s.word())
	if len(candidates) == 0 {
		return nil, nil, fmt.Errorf("%s; it is made from no model that is known by name: --base-model NAME says what to take the rest from", what)
	}
	var complete, cached []Preset
	for _, name := range candidates {
		preset, _ := findNamed(name)
		if wholeWithout(parts, name) {
			complete = append(complete, preset)
		}
		if folder, err := hub.Find(preset.Repo, ""); err == nil && whole(os.DirFS(folder)) {
			cached = append(cached, preset)
		}
	}
	if len(complete) == len(candidates) {
		cached = complete
	}
	switch {
	case len(cached) == 0:
		return nil, nil, notFound{fmt.Errorf("%s, and takes the rest from a model that is not on this machine: gomflux pull %s, or --base-model NAME", what, candidates[0])}
	case slices.ContainsFunc(cached[1:], func(p Preset) bool { return !alike(p.Name, cached[0].Name) }):
		return nil, nil, requestErrorf("%s; its tensors do not tell which of %s it is made from: --base-model NAME does", what, strings.Join(candidates, ", "))
	case len(complete) == len(candidates):
		return nil, &cached[0], nil
	}
	like, err := find(cached[0].Repo)
	return like, nil, err
}

// savedFrom is the name of the model that mflux saved a folder of, by the file that
// it puts there, "" for none that is known.
func savedFrom(fsys fs.FS) string {
	var saved struct {
		Model    string `json:"model_name"`
		Base     string `json:"base_model"`
		Upstream *struct {
			Repo string `json:"repo_id"`
		} `json:"upstream"`
	}
	if checkpoint.ReadJSON(fsys, "mflux_model.json", &saved) != nil {
		return ""
	}
	names := []string{saved.Model, saved.Base}
	if saved.Upstream != nil {
		names = append(names, saved.Upstream.Repo)
	}
	for _, name := range names {
		if p, ok := findNamed(name); ok {
			return p.Name
		}
	}
	return ""
}

// wholeWithout says whether components and what is published make a whole model
// like a preset's: whether it has all but the settings of scheduler and processor.
func wholeWithout(parts map[string]*loose, preset string) bool {
	facts, ok := published.Models[preset]
	if !ok {
		return false
	}
	for name := range published.Pipelines[facts.Pipeline] {
		if parts[name] == nil && name != "scheduler" && name != "processor" {
			return false
		}
	}
	return true
}

// alike says whether a component of one preset can be completed by either.
func alike(a, b string) bool {
	x, _ := json.Marshal(published.Models[a])
	y, _ := json.Marshal(published.Models[b])
	return bytes.Equal(x, y)
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
func basesOf(transformer *loose, name string) (names []string) {
	best := 0
	words := wordsOf(name)
	for _, preset := range Presets {
		facts := published.Models[preset.Name]
		if published.Pipelines[facts.Pipeline][transformerDir][1] != transformer.class || !transformer.fits(facts) {
			continue
		}
		_, repo, _ := strings.Cut(preset.Repo, "/")
		score := 0
		for _, own := range append([]string{preset.Name, repo}, preset.Aliases...) {
			if list := wordsOf(own); len(list) > score && !slices.ContainsFunc(list, func(w string) bool { return !slices.Contains(words, w) }) {
				score = len(list)
			}
		}
		switch {
		case score > best:
			best, names = score, []string{preset.Name}
		case score == best:
			names = append(names, preset.Name)
		}
	}
	return names
}

// fits compares what the transformer's tensors tell with what is published.
func (l *loose) fits(facts publishedModel) bool {
	for key, want := range facts.Transformer {
		if told, ok := l.told[key]; ok && fmt.Sprint(told) != fmt.Sprint(want) {
			return false
		}
	}
	return true
}

// wordsOf takes a name apart.
func wordsOf(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}
