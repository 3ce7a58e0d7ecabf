package component

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/textenc"
)

// LanguageModelOptions are the options of Class.LanguageModel.
type LanguageModelOptions struct {
	// Read overrides a config with that of the model, and validates it.
	Read   func(c interface{ Validate() error }) error
	Dtype  mlx.Dtype
	Vision bool // with the vision encoder, if the config has one
	// HiddenStates are those that the model returns as a text encoder too.
	HiddenStates []int
}

// LanguageModel declares the model in a folder, of the class that its config names, with its head, as a
// component with a name. It sees images if the class and the files have a vision encoder. It is an error
// that says where to get the whole model if the files are those of a text encoder without a head.
func (f *Folder) LanguageModel(name, dir string, hiddenStates ...int) (Component, *textenc.CausalLM, error) {
	file := path.Join(dir, ConfigFile)
	var config struct {
		Architectures []string `json:"architectures"`
		ClassName     string   `json:"_class_name"` // of built-in configs
	}
	if err := checkpoint.ReadJSON(f.FS, file, &config); err != nil {
		return Component{}, nil, err
	}
	class := Find(cmp.Or(append(config.Architectures, config.ClassName)...))
	if class == nil || class.LanguageModel == nil {
		return Component{}, nil, fmt.Errorf("%w: %s: architectures %q, expected a language model (%s)", errs.ErrUnsupported,
			checkpoint.FullName(f.FS, file), config.Architectures, strings.Join(languageModels(), ", "))
	}
	whole := *class
	c := Component{Class: &whole, Name: name, Dir: dir}
	if class.Prefix != "" {
		c.Prefixes = []string{class.Prefix}
	}
	names, err := f.tensorNames(dir)
	if err != nil {
		return Component{}, nil, err
	}
	o := LanguageModelOptions{
		Read: func(c interface{ Validate() error }) error { return f.Config(dir, c) }, Dtype: f.Dtype, HiddenStates: hiddenStates,
		Vision: names == nil || slices.ContainsFunc(names, isVisual),
	}
	m, err := class.LanguageModel(o)
	if err != nil {
		return Component{}, nil, err
	}
	if names != nil && !m.Tied() && !slices.ContainsFunc(names, isHead) {
		return Component{}, nil, fmt.Errorf("%s: lacks lm_head.weight: these are the files of a text encoder, which cannot write text "+
			"(get the whole model, such as %s)", checkpoint.FullName(f.FS, dir), class.Whole)
	}
	c.Model, c.Ignore = m, m.Unused()
	whole.Blocks = func(any) BlockMemory { return class.Blocks(m.Model) }
	return c, m, nil
}

// isVisual reports whether a tensor is that of a vision encoder.
func isVisual(name string) bool { return strings.Contains("."+name, ".visual.") }

// isHead reports whether a tensor is that of a language model's head.
func isHead(name string) bool { return strings.HasSuffix("."+name, ".lm_head.weight") }

// languageModels lists the names of the classes of language models.
func languageModels() (names []string) {
	for _, c := range All {
		if c.LanguageModel != nil {
			names = append(names, c.Name)
		}
	}
	return names
}

// tensorNames returns the names of a component's tensors, nil if it has no files, as with random weights.
func (f *Folder) tensorNames(dir string) (names []string, err error) {
	folders, err := checkpoint.WeightFolders(f.FS)
	if err != nil || f.Random || !slices.Contains(folders, dir) {
		return nil, err
	}
	ck, err := checkpoint.OpenCheckpoint(f.FS, dir)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	for name := range ck.Tensors {
		names = append(names, name)
	}
	return names, nil
}
