// Package publishedtest makes small models of the small files that published models have: their
// configs with fewer layers and channels, and everything else as it is.
//
// published.json has the facts: which file of another model a model has too, the values of files that
// are not had and who else states them, hashes in public manifests, and the layout of the weights.
package publishedtest

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/index"
)

// Env names the folder of the published files.
const Env = "GOMFLUX_REAL"

// Root returns the folder of the published files: that of [Env], or ../shared/real next to the
// repository, whose path is given.
func Root(repository string) string {
	if root := os.Getenv(Env); root != "" {
		return root
	}
	return filepath.Join(repository, "..", "shared", "real")
}

// facts are what published.json has about a model.
type facts struct {
	Like    string                    // the model whose files and layout of weights this one has, except for what follows
	From    map[string][]string       // by a folder of the model, patterns of files in the root, later ones first
	Set     map[string]map[string]any // by file, values over those of the files above, or of a file that is not had
	None    []string                  // published files of which nothing but the name is known
	StandIn map[string]string         // by a folder of such files, one of models/testdata with others in their place
	Sources map[string][]string       // by file or folder, who states what is not proved by a hash
	SHA256  map[string]string         // by file, the first digits of the published file's hash
	Single  []string                  // names of files of the transformer alone, by its makers and by ComfyUI
	Layout
}

// A Layout is how the weights of a model are published.
type Layout struct {
	Shards map[string]int              // files, by component; one if it is left out
	Dtypes map[string]checkpoint.Dtype // by component; bfloat16 if it is left out
	Bytes  map[string]int64            // of all files together with their headers, by component
	Counts map[string]int              // of tensors, by component, for components of which somebody has counted them
}

// table is published.json.
var table struct {
	Models map[string]*facts           // by name
	Names  map[string][][2]string      // by class, what names begin with here and as published
	More   map[string]map[string][]any // by class, shapes of tensors that gomflux does not declare
	Small  map[string]map[string]any   // by class, keys of configs for small dimensions
}

//go:embed published.json
var tableText []byte

func init() {
	d := json.NewDecoder(bytes.NewReader(tableText))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(&table); err != nil {
		panic(err)
	}
}

// A Model is a published model.
type Model struct {
	Name    string            // owner/name
	Files   map[string]string // paths of the published files, by their names in the model's folder
	Filled  map[string][]byte // files that are not had, made from facts
	Single  []string          // names, without an extension, of files of the transformer alone, by its makers and by ComfyUI
	StandIn map[string]string // folders of models/testdata, by those of the model whose files could not be had
	Layout
}

// Models lists the published models, whose files are in root.
func Models(root string) (models []*Model, err error) {
	for _, name := range slices.Sorted(maps.Keys(table.Models)) {
		m, err := open(root, name)
		if err != nil {
			return nil, err
		}
		models = append(models, m)
	}
	folders, err := filepath.Glob(filepath.Join(root, "*__*"))
	for _, folder := range folders {
		if name := strings.Replace(filepath.Base(folder), "__", "/", 1); err == nil && table.Models[name] == nil {
			err = fmt.Errorf("%s: the model is not in published.json", folder)
		}
	}
	return models, err
}

// open lists the files of a model.
func open(root, name string) (*Model, error) {
	of := table.Models[name]
	m := &Model{Files: map[string]string{}, Filled: map[string][]byte{},
		Layout: Layout{Shards: map[string]int{}, Dtypes: map[string]checkpoint.Dtype{}}}
	if of.Like != "" {
		var err error
		if m, err = open(root, of.Like); err != nil {
			return nil, err
		}
	}
	m.Name, m.Bytes, m.Single, m.Counts = name, of.Bytes, of.Single, of.Counts
	if of.StandIn != nil {
		m.StandIn = of.StandIn
	}
	maps.Copy(m.Shards, of.Shards)
	maps.Copy(m.Dtypes, of.Dtypes)
	for dir, patterns := range of.From {
		for _, pattern := range patterns {
			files, err := filepath.Glob(filepath.Join(root, pattern))
			if err != nil || len(files) == 0 {
				return nil, fmt.Errorf("%s: no such file (%v)", filepath.Join(root, pattern), err)
			}
			for _, file := range files {
				m.has(path.Join(dir, filepath.Base(file)), file)
			}
		}
	}
	folder := filepath.Join(root, strings.Replace(name, "/", "__", 1))
	err := fs.WalkDir(os.DirFS(folder), ".", func(file string, d fs.DirEntry, err error) error {
		if file == "." && os.IsNotExist(err) {
			return nil
		}
		if err == nil && !d.IsDir() {
			m.has(file, filepath.Join(folder, filepath.FromSlash(file)))
		}
		return err
	})
	for file, values := range of.Set {
		if err == nil {
			err = m.set(file, values)
		}
	}
	return m, err
}

// has adds a file.
func (m *Model) has(file, from string) {
	m.Files[file] = from
	delete(m.Filled, file)
}

// set changes values of a JSON file, or adds it.
func (m *Model) set(file string, values map[string]any) error {
	config := map[string]any{}
	if m.Files[file] != "" || m.Filled[file] != nil {
		text, err := m.Read(file)
		if err == nil {
			config, err = parse(text)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", m.Name, file, err)
		}
	}
	modeltest.Merge(config, values)
	text, err := json.MarshalIndent(config, "", "  ")
	m.Filled[file] = append(text, '\n') // as transformers and diffusers write it
	delete(m.Files, file)
	return err
}

// Read reads a file of the model.
func (m *Model) Read(file string) ([]byte, error) {
	if text, ok := m.Filled[file]; ok {
		return text, nil
	}
	return os.ReadFile(m.Files[file])
}

// A File is a small file of a published model.
type File struct {
	Name string
	// Status is have, if a public manifest has the file's hash; agreed, if several sources state the
	// contents; guessed, if one does or they are those of another model; none, if they are unknown.
	Status  string
	SHA256  string   // of the contents
	Sources []string // of contents without a hash
}

// List describes the small files of the model.
func (m *Model) List() (list []File, err error) {
	known := table.Models[m.Name]
	add := func(file, sum string) {
		f := File{Name: file, SHA256: sum, Status: "guessed", Sources: m.sources(file)}
		switch hash := known.SHA256[file]; {
		case hash != "" && strings.HasPrefix(sum, hash):
			f.Status, f.Sources = "have", nil
		case slices.Contains(known.None, file):
			f.Status, f.Sources, f.SHA256 = "none", nil, hash
		case len(f.Sources) > 1 && sum != "":
			f.Status = "agreed"
		}
		list = append(list, f)
	}
	for _, file := range slices.Concat(slices.Collect(maps.Keys(m.Files)), slices.Collect(maps.Keys(m.Filled))) {
		text, err := m.Read(file)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		add(file, hex.EncodeToString(sum[:]))
	}
	for dir, n := range m.Shards {
		if file := path.Join(dir, weightsName(dir)+indexSuffix); n > 1 && m.Files[file] == "" {
			add(file, "") // made of the names of the tensors, and guessed but for them and the number of files
		}
	}
	for _, file := range known.None {
		if m.Files[file] == "" {
			add(file, "")
		}
	}
	slices.SortFunc(list, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// sources are those of the longest part of a file's name that has some.
func (m *Model) sources(file string) []string {
	of := table.Models[m.Name].Sources
	for ; of[file] == nil && file != ""; file = strings.TrimSuffix(path.Dir(file), ".") {
	}
	return of[file]
}

// indexSuffix is the end of the names of indexes of weights.
const indexSuffix = ".safetensors.index.json"

// Write writes the model's files to a folder, with small dimensions if small is set. Files that stay
// as they are become links. There are no weights and no indexes of them: see [Model.WriteWeights].
func (m *Model) Write(folder string, small bool) error {
	same := map[string]string{}
	for file, from := range m.Files {
		if !m.changes(file) && !strings.HasSuffix(file, indexSuffix) {
			same[file] = from
		}
	}
	if err := m.standIns(same); err != nil {
		return err
	}
	for file, from := range same {
		to := filepath.Join(folder, filepath.FromSlash(file))
		from, err := filepath.Abs(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o777)
		}
		if err == nil {
			err = os.Symlink(from, to)
		}
		if err != nil {
			return err
		}
	}
	classes, err := m.classes()
	if err != nil {
		return err
	}
	changed := slices.Collect(maps.Keys(m.Filled))
	for file := range m.Files {
		if m.changes(file) {
			changed = append(changed, file)
		}
	}
	for _, file := range changed {
		text, err := m.Read(file)
		if err == nil && small && m.changes(file) {
			text, err = reduce(text, classes[path.Dir(file)])
		}
		to := filepath.Join(folder, filepath.FromSlash(file))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o777)
		}
		if err == nil {
			err = os.WriteFile(to, text, 0o666)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", m.Name, file, err)
		}
	}
	return nil
}

// standIns adds the files that stand for those that could not be had.
func (m *Model) standIns(files map[string]string) error {
	for dir, from := range m.StandIn {
		testdata, err := modeltest.Testdata()
		if err != nil {
			return err
		}
		list, err := filepath.Glob(filepath.Join(testdata, filepath.FromSlash(from), "*"))
		if err != nil || len(list) == 0 {
			return fmt.Errorf("%s: no files in %s (%v)", m.Name, from, err)
		}
		for _, file := range list {
			files[path.Join(dir, filepath.Base(file))] = file
		}
	}
	return nil
}

// changes reports whether a file has dimensions.
func (m *Model) changes(file string) bool {
	return path.Base(file) == component.ConfigFile || file == index.File || file == index.ModularFile
}

// classes returns the classes of the components by folder, and the pipeline's for ".".
func (m *Model) classes() (map[string]string, error) {
	file := index.File
	if m.Filled[index.ModularFile] != nil {
		file = index.ModularFile
	}
	text, err := m.Read(file)
	if err != nil {
		return nil, err
	}
	members, err := parse(text)
	classes := map[string]string{}
	for name, value := range members {
		if parts, ok := value.([]any); ok && len(parts) > 1 {
			classes[name], _ = parts[1].(string) // null for a component that is left out
		}
	}
	classes["."], _ = members["_class_name"].(string)
	return classes, err
}

// reduce gives a config the small dimensions of its class.
func reduce(text []byte, class string) ([]byte, error) {
	small, ok := table.Small[class]
	if !ok {
		return text, nil
	}
	config, err := parse(text)
	if err != nil {
		return nil, err
	}
	modeltest.Merge(config, small)
	return json.MarshalIndent(config, "", "  ")
}

// parse reads a JSON object, in which 1.0 stays a float, for Python.
func parse(text []byte) (object map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&object) // before object is returned
	return object, err
}
