package component

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/textenc"
)

// LanguageModelOptions are the options of Class.LanguageModel.
type LanguageModelOptions struct {
	Dtype  mlx.Dtype
	Vision bool // with the vision encoder, if the config has one
	// HiddenStates are those that the model returns as a text encoder too.
	HiddenStates []int
}

// A LanguageModelFunc declares a language model. It calls read with the default config.
type LanguageModelFunc func(read func(Config) error, o LanguageModelOptions) (*textenc.CausalLM, error)

// newLanguageModel returns the LanguageModel of a class, from its default config and its constructor.
func newLanguageModel[C any, P interface {
	*C
	Config
}](defaults func() C, declare func(C, LanguageModelOptions) *textenc.CausalLM) LanguageModelFunc {
	return func(read func(Config) error, o LanguageModelOptions) (*textenc.CausalLM, error) {
		c := defaults()
		if err := read(P(&c)); err != nil {
			return nil, err
		}
		return declare(c, o), nil
	}
}

// decoderTables are the layouts of files of a language model whose names begin with any of the prefixes, given ComfyUI's
// names for it and a tensor of the first layer that tells it from others.
func decoderTables(tensor string, names []string, prefixes ...string) (tables []*layout.Table) {
	for _, prefix := range prefixes {
		tables = append(tables, &layout.Table{Prefixes: textPrefixes(names...), Signature: []string{
			prefix + "embed_tokens.weight", prefix + "layers.0." + tensor, prefix + "layers.0.mlp.gate_proj.weight",
		}})
	}
	return tables
}

// languageRoot returns the name of the language model in a model that sees images, with a dot; "" for some
// files without the vision encoder.
func languageRoot(s *layout.Sizes) string {
	const root = "language_model."
	if s.Has(root + "embed_tokens.weight") {
		return root
	}
	return ""
}

// languageSizes infers the sizes of a language model whose names begin with root, given the size of a head.
func languageSizes(s *layout.Sizes, root string, head int) map[string]any {
	first := root + "layers.0."
	return map[string]any{
		"vocab_size": s.Dim(root+"embed_tokens.weight", 0), "hidden_size": s.Dim(root+"embed_tokens.weight", 1),
		"intermediate_size": s.Dim(first+"mlp.gate_proj.weight", 0), "num_hidden_layers": s.Count(root + "layers"),
		"head_dim":            head,
		"num_attention_heads": s.Divide("the queries' width", s.Dim(first+"self_attn.q_proj.weight", 0), head),
		"num_key_value_heads": s.Divide("the keys' width", s.Dim(first+"self_attn.k_proj.weight", 0), head),
	}
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
		Dtype: f.Dtype, HiddenStates: hiddenStates,
		Vision: names == nil || slices.ContainsFunc(names, isVisual),
	}
	m, err := class.LanguageModel(func(c Config) error { return f.Config(dir, c) }, o)
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
