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
)

// indexName is the file that makes a repository a pipeline of diffusers.
const indexName = "model_index.json"

// ErrSeveral is wrapped by the errors about repositories that have several
// models, of which one has to be named.
var ErrSeveral = errors.New("has several models")

// ErrFormat is wrapped by the errors about files that are not read.
var ErrFormat = errors.New("not supported")

// adapters are the names that the files of LoRAs have by the libraries that
// write them, diffusers and PEFT, and the config of the latter's.
var adapters = []string{"pytorch_lora_weights.safetensors", "adapter_model.safetensors"}

const adapterConfig = "adapter_config.json"

// needed chooses the files that a pipeline is loaded from: model_index.json,
// card and licence, and of each component the configs, the tokenizer and one
// set of safetensors files. Of a repository without model_index.json (nil) these
// are a LoRA of one of the usual names, or all configs and one set of
// safetensors files in each folder. Where that is several models, and nothing
// tells which is meant, it is an ErrSeveral.
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
		if about(f.Path) || f.Path == indexName {
			chosen = append(chosen, f)
		}
	}
	for _, dir := range folders {
		found, err := neededOf(dir, byFolder[dir])
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if dir != "." || !about(f.Path) {
				chosen = append(chosen, f)
			}
		}
	}
	if !slices.ContainsFunc(chosen, func(f File) bool { return strings.HasSuffix(f.Path, suffix) }) {
		return nil, fmt.Errorf("%w: has no %s files: others are not read", ErrFormat, suffix)
	}
	if index == nil {
		if several := alone(chosen, files); len(several) > 1 {
			return nil, fmt.Errorf("%w: give one of %s", ErrSeveral, someOf(several))
		}
	}
	slices.SortFunc(chosen, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return chosen, nil
}

// named chooses files by their names, and with them card and licence and, of the
// folders that they are in, the configs of models and adapters.
func named(files []File, names []string) (chosen []File, err error) {
	folders := map[string]bool{}
	for _, name := range names {
		if foreign.MatchString(name) {
			return nil, fmt.Errorf("%w: %s is no %s file: others are not read", ErrFormat, name, suffix)
		}
		if !slices.ContainsFunc(files, func(f File) bool { return f.Path == name }) {
			var there []string
			for _, f := range files {
				if strings.HasSuffix(f.Path, suffix) {
					there = append(there, f.Path)
				}
			}
			return nil, fmt.Errorf("%w: there is no file %s (there is %s)", ErrNoAccess, name, cmp.Or(someOf(there), "no "+suffix+" file"))
		}
		folders[path.Dir(name)] = true
	}
	for _, f := range files {
		beside := folders[path.Dir(f.Path)] && slices.Contains([]string{"config.json", adapterConfig}, path.Base(f.Path))
		if slices.Contains(names, f.Path) || beside || about(f.Path) {
			chosen = append(chosen, f)
		}
	}
	slices.SortFunc(chosen, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return chosen, nil
}

// alone are the chosen safetensors files that nothing beside them says to be a
// part of something: no config, no index, no other shard.
func alone(chosen, files []File) (names []string) {
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

// someOf is a list of names for a message.
func someOf(names []string) string {
	slices.Sort(names)
	const most = 8
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// about says whether a file at the top tells what the model is and what it may
// be used for.
func about(name string) bool {
	stem, _, _ := strings.Cut(strings.ToUpper(name), ".")
	ext := path.Ext(name)
	return name == "README.md" || slices.Contains([]string{"", ".md", ".txt"}, ext) && slices.Contains([]string{"LICENSE", "LICENCE", "NOTICE"}, stem)
}

const suffix = ".safetensors"

// configs are the extensions of what lies beside weights: configs,
// vocabularies, merges, sentencepiece models and templates.
var configs = []string{".json", ".txt", ".model", ".jinja"}

var (
	indexOfShards = regexp.MustCompile(`^(.+)\.safetensors\.index(\.\w+)?\.json$`)
	shard         = regexp.MustCompile(`-\d{5}-of-\d{5}`)
	foreign       = regexp.MustCompile(`\.(bin|pt|pth|ckpt|msgpack|h5|onnx|gguf)$`)
)

// A checkpoint is a set of safetensors files.
type checkpoint struct {
	index, single, shards []File
}

// neededOf chooses among the files of one folder. Of the weights in several
// forms it takes those under the library's own name that are not a variant
// (fp16 and the like), in shards where there are both.
func neededOf(dir string, files []File) (chosen []File, err error) {
	sets := map[string]*checkpoint{} // by name without numbers, with the variant at its end
	set := func(name string) *checkpoint {
		if sets[name] == nil {
			sets[name] = &checkpoint{}
		}
		return sets[name]
	}
	var others []string
	for _, f := range files {
		name := path.Base(f.Path)
		switch m := indexOfShards.FindStringSubmatch(name); {
		case strings.HasPrefix(name, "."):
		case m != nil:
			s := set(m[1] + m[2])
			s.index = append(s.index, f)
		case strings.HasSuffix(name, suffix):
			stem := strings.TrimSuffix(name, suffix)
			if s := set(shard.ReplaceAllString(stem, "")); shard.MatchString(stem) {
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
		return nil, fmt.Errorf("%w: has no %s files in %s, only %s, which are not read", ErrFormat, suffix, dir, strings.Join(others[:min(len(others), 3)], ", "))
	}
	for name, s := range sets {
		// mflux numbers its shards, and has an index of the library's name
		if len(s.single)+len(s.shards) == 0 && len(sets) > 1 {
			chosen = append(chosen, s.index...)
			delete(sets, name)
		}
	}
	names := slices.Sorted(maps.Keys(sets))
	own := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		stem, _, _ := strings.Cut(name, ".")
		return stem != "diffusion_pytorch_model" && stem != "model"
	})
	if len(own) > 0 {
		names = own
	}
	plain := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return variant(name) != "" })
	switch {
	case len(plain) > 0:
		names = plain
	case len(own) > 0:
		// the one that is named bf16 has the range of float32
		slices.SortStableFunc(names, func(a, b string) int { return rank(variant(a)) - rank(variant(b)) })
		names = names[:1]
	}
	for _, name := range names {
		s := sets[name]
		if len(s.index) > 0 && len(s.shards) > 0 {
			chosen = append(append(chosen, s.index...), s.shards...)
		} else {
			chosen = append(append(chosen, s.single...), s.shards...)
		}
	}
	return chosen, nil
}

// variant is what a checkpoint's name has after its stem.
func variant(name string) string {
	_, v, _ := strings.Cut(name, ".")
	return v
}

func rank(variant string) int {
	if i := slices.Index([]string{"bf16", "fp16"}, variant); i >= 0 {
		return i
	}
	return 2
}
