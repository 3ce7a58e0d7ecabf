package hub

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// indexName is the file that describes a pipeline of diffusers, and modularName that of a modular one.
const (
	indexName   = "model_index.json"
	modularName = "modular_model_index.json"
)

// isIndex reports whether a file of a repository describes a pipeline.
func isIndex(name string) bool { return name == indexName || name == modularName }

// ErrSeveral is wrapped by errors about repositories with several models, if the
// user has to choose one.
var ErrSeveral = errors.New("the repository has several models")

// ErrFormat is wrapped by errors about file formats that are not supported.
var ErrFormat = errors.New("not supported")

// adapters are the names that diffusers and PEFT give to the files of LoRAs.
var adapters = []string{"pytorch_lora_weights.safetensors", "adapter_model.safetensors"}

// adapterConfig is the config that PEFT writes next to a LoRA.
const adapterConfig = "adapter_config.json"

// needed chooses the files that a pipeline is loaded from: model_index.json,
// model card and licence, and for each component its configs, its tokenizer and
// one set of safetensors files.
//
// In a repository without model_index.json (index is nil) it chooses a LoRA with
// one of the names in adapters or else, from each folder, all configs and one
// set of safetensors files. If these are several models, it returns ErrSeveral.
func needed(files []File, index []byte) ([]File, error) {
	if index == nil {
		for _, name := range adapters {
			if slices.ContainsFunc(files, func(f File) bool { return f.Path == name }) {
				return named(files, []string{name})
			}
		}
	}
	byFolder := map[string][]File{}
	for _, f := range files {
		dir := path.Dir(f.Path)
		byFolder[dir] = append(byFolder[dir], f)
	}
	folders := slices.Sorted(maps.Keys(byFolder))
	if index != nil {
		var err error
		if folders, err = components(index); err != nil {
			return nil, err
		}
		slices.Sort(folders)
	}
	var chosen []File
	for _, f := range byFolder["."] {
		if isCard(f.Path) || isIndex(f.Path) {
			chosen = append(chosen, f)
		}
	}
	for _, dir := range folders {
		found, err := neededOf(dir, byFolder[dir])
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if dir != "." || !isCard(f.Path) {
				chosen = append(chosen, f)
			}
		}
	}
	if !slices.ContainsFunc(chosen, func(f File) bool { return strings.HasSuffix(f.Path, suffix) }) {
		return nil, fmt.Errorf("%w: no %s files, and gomflux reads no other weights", ErrFormat, suffix)
	}
	if index == nil {
		if several := standalone(chosen, files); len(several) > 1 {
			return nil, fmt.Errorf("%w: choose one of %s", ErrSeveral, someOf(several))
		}
	}
	slices.SortFunc(chosen, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return chosen, nil
}

// named chooses files by their names, together with model card and licence and
// the configs of models and LoRAs in the same folders.
func named(files []File, names []string) (chosen []File, err error) {
	folders := map[string]bool{}
	for _, name := range names {
		if foreign.MatchString(name) {
			return nil, fmt.Errorf("%w: %s is not a %s file, and gomflux reads no other weights", ErrFormat, name, suffix)
		}
		if !slices.ContainsFunc(files, func(f File) bool { return f.Path == name }) {
			var found []string
			for _, f := range files {
				if strings.HasSuffix(f.Path, suffix) {
					found = append(found, f.Path)
				}
			}
			return nil, fmt.Errorf("%w: no file %s (the repository has %s)",
				ErrNoAccess, name, cmp.Or(someOf(found), "no "+suffix+" file"))
		}
		folders[path.Dir(name)] = true
	}
	for _, f := range files {
		config := folders[path.Dir(f.Path)] && slices.Contains([]string{"config.json", adapterConfig}, path.Base(f.Path))
		if slices.Contains(names, f.Path) || config || isCard(f.Path) {
			chosen = append(chosen, f)
		}
	}
	slices.SortFunc(chosen, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return chosen, nil
}

// standalone returns the chosen safetensors files that are not part of a larger
// model: those without a config, an index or other shards in their folder.
func standalone(chosen, files []File) (names []string) {
	known := map[string]bool{}
	for _, f := range files {
		if name := path.Base(f.Path); name == "config.json" || indexOfShards.MatchString(name) {
			known[path.Dir(f.Path)] = true
		}
	}
	for _, f := range chosen {
		if strings.HasSuffix(f.Path, suffix) && !known[path.Dir(f.Path)] && !shard.MatchString(f.Path) {
			names = append(names, f.Path)
		}
	}
	return names
}

// someOf lists at most eight names for a message.
func someOf(names []string) string {
	slices.Sort(names)
	return quote.List(names, 8)
}

// isCard reports whether a file at the top of a repository is the model card, a
// licence or a notice.
func isCard(name string) bool {
	stem, _, _ := strings.Cut(strings.ToUpper(name), ".")
	return name == "README.md" ||
		slices.Contains([]string{"", ".md", ".txt"}, path.Ext(name)) &&
			slices.Contains([]string{"LICENSE", "LICENCE", "NOTICE"}, stem)
}

const suffix = ".safetensors"

// configs are the extensions of the files next to weights: configs,
// vocabularies, merges, SentencePiece models and templates.
var configs = []string{".json", ".txt", ".model", ".jinja"}

var (
	indexOfShards = regexp.MustCompile(`^(.+)\.safetensors\.index(\.\w+)?\.json$`)
	shard         = regexp.MustCompile(`-\d{5}-of-\d{5}`)
	foreign       = regexp.MustCompile(`\.(bin|pt|pth|ckpt|msgpack|h5|onnx|gguf)$`)
)

// A checkpoint is a set of safetensors files with the same parameters: one file,
// or an index and its shards, or both.
type checkpoint struct {
	index, single, shards []File
}

// checkpoints maps names without shard numbers, with the variant as their
// extension, to checkpoints.
type checkpoints map[string]*checkpoint

func (c checkpoints) at(name string) *checkpoint {
	if c[name] == nil {
		c[name] = &checkpoint{}
	}
	return c[name]
}

// neededOf chooses among the files of one folder. If it has the weights in
// several forms, neededOf prefers the standard name of diffusers and
// transformers, without a variant such as fp16, and shards to a single file.
func neededOf(dir string, files []File) (chosen []File, err error) {
	sets := checkpoints{}
	var others []string
	for _, f := range files {
		name := path.Base(f.Path)
		switch m := indexOfShards.FindStringSubmatch(name); {
		case strings.HasPrefix(name, "."):
		case m != nil:
			s := sets.at(m[1] + m[2])
			s.index = append(s.index, f)
		case strings.HasSuffix(name, suffix):
			stem := strings.TrimSuffix(name, suffix)
			if s := sets.at(shard.ReplaceAllString(stem, "")); shard.MatchString(stem) {
				s.shards = append(s.shards, f)
			} else {
				s.single = append(s.single, f)
			}
		case slices.Contains(configs, path.Ext(name)):
			chosen = append(chosen, f)
		case foreign.MatchString(name):
			others = append(others, name)
		}
	}
	if len(sets) == 0 && len(others) > 0 && dir != "." {
		return nil, fmt.Errorf("%w: no %s files in %s, only %s, which gomflux does not read",
			ErrFormat, suffix, dir, strings.Join(others[:min(len(others), 3)], ", "))
	}
	for name, s := range sets {
		// mflux's index has the standard name, its shards have only numbers
		if len(s.single)+len(s.shards) == 0 && len(sets) > 1 {
			chosen = append(chosen, s.index...)
			delete(sets, name)
		}
	}
	for _, name := range sets.preferred() {
		s := sets[name]
		if len(s.index) > 0 && len(s.shards) > 0 {
			chosen = append(append(chosen, s.index...), s.shards...)
		} else {
			chosen = append(append(chosen, s.single...), s.shards...)
		}
	}
	return chosen, nil
}

// preferred returns the names of the checkpoints to load, sorted.
func (c checkpoints) preferred() []string {
	names := slices.Sorted(maps.Keys(c))
	standard := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		stem, _, _ := strings.Cut(name, ".")
		return stem != "diffusion_pytorch_model" && stem != "model"
	})
	if len(standard) > 0 {
		names = standard
	}
	plain := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return variant(name) != "" })
	switch {
	case len(plain) > 0:
		names = plain
	case len(standard) > 0:
		for _, v := range []string{"bf16", "fp16"} { // bf16 has the range of float32
			if i := slices.IndexFunc(names, func(name string) bool { return variant(name) == v }); i >= 0 {
				return names[i : i+1]
			}
		}
		return names[:1]
	}
	return names
}

// variant returns the part of a checkpoint's name after the first period, such
// as fp16.
func variant(name string) string {
	_, v, _ := strings.Cut(name, ".")
	return v
}
