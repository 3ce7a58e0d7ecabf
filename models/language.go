package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/textgen"
)

// A LanguageModel writes text, and may see images: the text encoder of a pipeline with its head, or a
// model in a folder of its own.
type LanguageModel struct {
	model     *textenc.CausalLM
	pipeline  *Pipeline // that has only this component
	loadable  *loadable
	tokenizer *tokenizer.Tokenizer
	template  *textgen.Template
	processor *textenc.Qwen2VLImageProcessor
	blind     error // why the model cannot see images, nil if it can
	rewrites  bool  // as languageFolder's
	context   int
	stop      []int32
}

// A languageFolder is where the parts of a language model are in a model folder.
type languageFolder struct {
	weights, tokenizer string
	processors         []string
	rewrites           bool // it is the component that rewrites prompts (see family.Rewriter)
}

// findLanguage finds the language model in a model folder.
func findLanguage(fsys fs.FS) (l languageFolder, err error) {
	if !index.Exists(fsys) {
		return languageFolder{weights: ".", tokenizer: "."}, nil
	}
	x, err := index.Read(fsys)
	if err != nil {
		return l, err
	}
	if own := family.RewriterFor(x.Class).Component; own != "" && x.Components[own] != "" {
		return languageFolder{weights: own, tokenizer: own + "_tokenizer", rewrites: true}, nil
	}
	var encoders []string
	for dir, name := range x.Components {
		switch c := component.Find(name); {
		case c == nil || c.Role != component.TextEncoder:
		case c.LanguageModel == nil:
			encoders = append(encoders, name)
		default:
			l.weights = dir
		}
		if _, err := fs.Stat(fsys, dir); err == nil && dir == "processor" {
			l.processors = append(l.processors, dir)
		}
	}
	if l.weights == "" {
		slices.Sort(encoders)
		return l, fmt.Errorf("%s: its text encoders (%s) cannot write text: %w (name a language model, or a model with one)",
			checkpoint.FullName(fsys, ""), strings.Join(encoders, ", "), errs.ErrUnsupported)
	}
	l.tokenizer = "tokenizer"
	if _, err := fs.Stat(fsys, l.tokenizer); err != nil {
		l.tokenizer = "processor"
	}
	return l, nil
}

// HasLanguageModel reports whether a model folder has a language model, and whether that sees images. It reads
// no weights.
func HasLanguageModel(fsys fs.FS) (writes, sees bool) {
	at, err := findLanguage(fsys)
	if err != nil {
		return false, false
	}
	f := component.Folder{FS: fsys, Points: &hooks.Points{}}
	_, m, err := f.LanguageModel("language_model", at.weights)
	return err == nil, err == nil && m.Images() != nil
}

// LoadLanguageModel reads the language model in a model folder, or in a folder of its own. Of the
// options it uses Device, Dtype, Quantize, Random, Progress and Warn. With random weights it has no files
// but the config, and can only be measured. It must run on the MLX thread.
// Callers must close the model.
func LoadLanguageModel(fsys fs.FS, o LoadOptions) (*LanguageModel, error) {
	at, err := findLanguage(fsys)
	if err != nil {
		return nil, err
	}
	p := &Pipeline{Autoencoder: &Autoencoder{}, loadables: map[string]*loadable{}, notLoaded: map[string]bool{}, random: o.Random}
	if err := p.chooseDevice(o); err != nil {
		return nil, err
	}
	p.loader = &component.Loader{
		Folder:   component.Folder{FS: fsys, Points: &p.points, Dtype: p.dtype, Random: o.Random != nil},
		Quantize: o.Quantize, ReadAhead: readAhead,
	}
	m, complete := &LanguageModel{pipeline: p, rewrites: at.rewrites}, false
	defer closeUnless(&complete, m.Close)
	var c component.Component
	if c, m.model, err = p.loader.LanguageModel("language_model", at.weights); err != nil {
		return nil, err
	}
	if o.Random == nil {
		err = m.readFiles(fsys, at, c.Class)
	} else {
		c.Random = o.Random.Dtype
	}
	if err != nil {
		return nil, err
	}
	if err := m.load(c, o); err != nil {
		return nil, err
	}
	complete = true
	return m, nil
}

// Pipeline returns the pipeline that has the model as its only component, and generates nothing.
func (m *LanguageModel) Pipeline() *Pipeline { return m.pipeline }

// Class returns the model's class in transformers.
func (m *LanguageModel) Class() string { return m.loadable.Class.Name }

// Memory returns the size of the weights, and of the cache of a number of tokens.
func (m *LanguageModel) Memory(tokens int) int64 {
	return m.pipeline.weightsMemory(m.loadable, m.pipeline.loader.Quantize, false).bytes + m.model.CacheBytes(tokens)
}

// Peak estimates the memory of reading a prompt of some tokens and writing others.
func (m *LanguageModel) Peak(prompt, tokens int) int64 {
	p := m.pipeline
	read := pass{blocks: p.blocksOf(m.loadable.Component), tokens: prompt, rows: 1}
	read.weightsMemory = p.weightsMemory(m.loadable, p.loader.Quantize, false)
	return m.Memory(m.capacity(prompt, tokens)) + p.memoryModel().estimate(read)
}

// A Speed is how fast a language model is.
type Speed struct {
	Read       time.Duration   // the prompt, and drawing the first token
	Tokens     []time.Duration // of each token after the first
	Operations int             // arrays in the graph of the last token that gomflux makes, not MLX
	Compiled   bool
}

// Measure reads a prompt of random ids and draws a number of tokens greedily. It must run on the MLX thread.
func (m *LanguageModel) Measure(prompt, tokens int) (s Speed) {
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(rand.N(m.model.VocabSize()))
	}
	cache := m.newCache(prompt + tokens)
	defer cache.Close()
	s.Compiled = cache.Compiled()
	last, made := time.Now(), 0
	textgen.Draw(m.forward(cache, nil), ids, tokens, func() {
		took := time.Since(last)
		if last = time.Now(); s.Read == 0 {
			s.Read = took
		} else {
			s.Tokens = append(s.Tokens, took)
		}
		s.Operations, made = mlx.Made()-made, mlx.Made()
	})
	return s
}

// newCache returns a cache for the running job.
func (m *LanguageModel) newCache(tokens int) *textenc.Cache {
	cache := m.model.NewCache(1, tokens)
	if !m.pipeline.points.Active() {
		cache.Compile(tuning.Compile(m.pipeline.device))
	}
	return cache
}

// forward sees images in the first ids, which are those of the prompt.
func (m *LanguageModel) forward(cache *textenc.Cache, images []textenc.VisionInput) textgen.Forward {
	return func(ids *mlx.Array) *mlx.Array {
		seen := images
		images = nil
		return m.model.Forward(ids, seen, cache)
	}
}

// readFiles reads all files of the model but its weights.
func (m *LanguageModel) readFiles(fsys fs.FS, at languageFolder, class *component.Class) (err error) {
	if m.tokenizer, err = tokenizer.Load(fsys, at.tokenizer); err != nil {
		return err
	}
	if m.template, err = textgen.ReadTemplate(fsys, m.tokenizer, append(at.processors, at.tokenizer)...); err != nil {
		return err
	}
	if sees := m.model.Images(); sees == nil {
		m.blind = fmt.Errorf("%s: has no vision encoder: the language model cannot see images", checkpoint.FullName(fsys, at.weights))
	} else if err := m.readProcessor(fsys, append(at.processors, at.tokenizer), class); err != nil {
		return err
	} else {
		m.blind = m.processor.Fits(sees)
	}
	return m.readStops(fsys, at.weights)
}

// readProcessor reads the image processor from the first folder that has one.
func (m *LanguageModel) readProcessor(fsys fs.FS, dirs []string, class *component.Class) (err error) {
	for _, dir := range dirs {
		if m.processor, err = textenc.LoadQwen2VLImageProcessor(fsys, dir); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	p := textenc.DefaultQwen2VLImageProcessor()
	if class.Processor != nil {
		class.Processor(&p)
	}
	m.processor = &p
	return nil
}

// readStops reads the number of tokens that the model can see, and the tokens that end a text.
func (m *LanguageModel) readStops(fsys fs.FS, dir string) error {
	type config struct {
		EOS       json.RawMessage `json:"eos_token_id"`
		Positions int             `json:"max_position_embeddings"`
	}
	var c struct {
		config
		Text config `json:"text_config"`
	}
	configName := path.Join(dir, component.ConfigFile)
	if err := checkpoint.ReadJSON(fsys, configName, &c); err != nil {
		return err
	}
	m.context = cmp.Or(c.Text.Positions, c.Positions)
	name := path.Join(dir, "generation_config.json")
	var g config
	if err := checkpoint.ReadJSON(fsys, name, &g); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, field := range []struct {
		file, name string
		raw        json.RawMessage
	}{{name, "eos_token_id", g.EOS}, {configName, "eos_token_id", c.EOS}, {configName, "text_config: eos_token_id", c.Text.EOS}} {
		var one *int32
		var list []int32
		if raw := field.raw; len(raw) > 0 && json.Unmarshal(raw, &one) != nil && json.Unmarshal(raw, &list) != nil {
			return fmt.Errorf("%s: %s: expected a number or a list of numbers, found %.40s", checkpoint.FullName(fsys, field.file),
				field.name, raw)
		}
		if one != nil {
			list = append(list, *one)
		}
		m.stop = append(m.stop, list...)
	}
	// of Qwen and Mistral; the configs of some encoders have others, or none
	for _, token := range []string{"<|im_end|>", "<|endoftext|>", "</s>"} {
		if id, ok := m.tokenizer.ID(token); ok && !slices.Contains(m.stop, id) {
			m.stop = append(m.stop, id)
		}
	}
	return nil
}

// load reads the weights.
func (m *LanguageModel) load(c component.Component, o LoadOptions) error {
	p := m.pipeline
	ck, err := c.Open(p.loader.FS)
	if err != nil {
		return err
	}
	m.loadable, err = newLoadable(c, ck)
	if err = errors.Join(err, ck.Close()); err != nil {
		return err
	}
	p.loadables[c.Dir] = m.loadable
	if err := p.checkQuantizations(); err != nil {
		return err
	}
	if o.headersOnly {
		return nil
	}
	needed := m.Memory(usualTokens)
	short := func() bool { free := p.available(); return free > 0 && needed > free }
	if short() && o.MakeRoom != nil {
		o.MakeRoom()
	}
	if free := p.available(); short() && o.Warn != nil {
		o.Warn(fmt.Sprintf("the language model needs %s of memory, and %s are free (--quantize reduces it)",
			units.Bytes(needed), units.Bytes(free)))
	}
	return p.ensureLoaded(c.Dir, nil, o.Progress)
}

// Close frees the memory of the model. It must run on the MLX thread.
func (m *LanguageModel) Close() {
	if m.tokenizer != nil {
		m.tokenizer.Close()
		m.tokenizer = nil
	}
	if m.loadable != nil && m.loadable.loaded {
		m.pipeline.free(m.loadable)
	}
}

// Model returns the model itself, to compute logits. It belongs to the MLX thread.
func (m *LanguageModel) Model() *textenc.CausalLM { return m.model }

// Observe has a hook see the outputs of the model's modules, whose names begin with language_model; nil ends that.
func (m *LanguageModel) Observe(hook hooks.Func) {
	m.pipeline.points = hooks.Points{Func: hook, Step: -1, Parameters: m.pipeline.parameters}
}

// usualTokens is for how many tokens after a prompt a cache has memory at first.
const usualTokens = 4096

// maxSeen is the largest number of pixels of an image that a language model sees: larger ones are scaled
// down, since they would take thousands of tokens.
const maxSeen = 1 << 20

// Write writes the answer to a conversation. It must run on the MLX thread.
func (m *LanguageModel) Write(messages []textgen.Message, thinking bool, o textgen.Options, piece func(textgen.Piece),
) (t textgen.Text, err error) {
	if m.tokenizer == nil {
		return t, ErrClosed
	}
	var inputs []textenc.VisionInput
	for _, message := range messages {
		for _, c := range message.Content {
			if c.Image == nil {
				continue
			}
			in, err := m.see(c.Image)
			if err != nil {
				return t, errs.Request(err)
			}
			inputs = append(inputs, in)
		}
	}
	ids, err := m.encode(messages, thinking)
	if err != nil {
		return t, err
	}
	if len(inputs) > 0 {
		if ids, err = m.model.Images().ExpandImages(ids, inputs); err != nil {
			return t, err
		}
	}
	if o.Stop = m.stop; m.context > 0 {
		if len(ids) >= m.context {
			return t, errs.Requestf("the prompt has %d tokens: the language model can see %d, with those of the text", len(ids), m.context)
		}
		o.MaxTokens = min(o.MaxTokens, m.context-len(ids))
	}
	cache := m.newCache(m.capacity(len(ids), o.MaxTokens))
	defer cache.Close()
	return textgen.Generate(m.forward(cache, inputs), m.tokenizer, ids, o, piece)
}

// capacity returns for how many tokens a cache has memory at first, for a prompt and a limit of others.
func (m *LanguageModel) capacity(prompt, tokens int) int {
	n := prompt + min(tokens, usualTokens)
	if m.context > 0 {
		n = min(n, m.context)
	}
	return n
}

// encode returns the ids of a conversation. For a model that rewrites prompts, the template ends with the
// message, and the tokenizer adds its special tokens, as in diffusers' pipelines.
func (m *LanguageModel) encode(messages []textgen.Message, thinking bool) ([]int32, error) {
	parts, err := m.template.Render(messages, thinking, !m.rewrites)
	if errors.Is(err, textgen.ErrRefused) {
		err = errs.Request(err)
	}
	if err != nil {
		return nil, errs.Unsupported(err)
	}
	ids, err := m.tokenizer.EncodeParts(parts)
	if err == nil && m.rewrites {
		var special []int32
		special, err = m.tokenizer.EncodeSpecial("")
		ids = append(special, ids...)
	}
	if err != nil {
		return nil, errs.Request(err)
	}
	return ids, nil
}

// see prepares an image for the vision encoder.
func (m *LanguageModel) see(img image.Image) (in textenc.VisionInput, err error) {
	if m.blind != nil {
		return in, m.blind
	}
	p := m.processor.AtMost(maxSeen)
	fit, err := p.Resized(img.Bounds().Size())
	if err != nil {
		return in, err
	}
	return p.Process(picture.ResizeBicubic(picture.Opaque(img), fit.X, fit.Y))
}
