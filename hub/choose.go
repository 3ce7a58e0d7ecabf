package hub

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// indexName is the file that makes a repository a pipeline of diffusers.
const indexName = "model_index.json"

// needed chooses the files that a pipeline is loaded from: model_index.json,
// card and licence, and of each component the configs, the tokenizer and one
// set of safetensors files. Of a repository without model_index.json (nil) these
// are all configs and one set of safetensors files in each folder.
func needed(files []File, index []byte) ([]File, error) {
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
		return nil, fmt.Errorf("has no %s files: others are not read", suffix)
	}
	slices.SortFunc(chosen, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return chosen, nil
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
		return nil, fmt.Errorf("has no %s files in %s, only %s, which are not read", suffix, dir, strings.Join(others[:min(len(others), 3)], ", "))
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
