package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
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
	context   int
	stop      []int32
}

// A languageFolder is where the parts of a language model are in a model folder.
type languageFolder struct {
	weights, tokenizer string
	processors         []string
}

// findLanguage finds the language model in a model folder.
func findLanguage(fsys fs.FS) (l languageFolder, err error) {
	if !index.Exists(fsys) {
		return languageFolder{".", ".", nil}, nil
	}
	x, err := index.Read(fsys)
	if err != nil {
		return l, err
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

// LoadLanguageModel reads the language model in a model folder, or in a folder of its own. Of the
// options it uses Device, Dtype, Quantize, Random, Progress and Warn. It must run on the MLX thread.
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
		Folder:   component.Folder{FS: fsys, Points: &p.points, Dtype: p.dtype},
		Quantize: o.Quantize, ReadAhead: readAhead,
	}
	m, complete := &LanguageModel{pipeline: p}, false
	defer func() { // also after a panic, by which a job is interrupted
		if !complete {
			m.Close()
		}
	}()
	var c component.Component
	if c, m.model, err = p.loader.LanguageModel("language_model", at.weights); err != nil {
		return nil, err
	}
	if o.Random != nil {
		c.Random = o.Random.Dtype
	}
	if err := m.readFiles(fsys, at, c.Class); err != nil {
		return nil, err
	}
	if err := m.load(c, o); err != nil {
		return nil, err
	}
	complete = true
	return m, nil
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
	if err := checkpoint.ReadJSON(fsys, path.Join(dir, component.ConfigFile), &c); err != nil {
		return err
	}
	m.context = cmp.Or(c.Text.Positions, c.Positions)
	name := path.Join(dir, "generation_config.json")
	var g config
	if err := checkpoint.ReadJSON(fsys, name, &g); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, raw := range []json.RawMessage{g.EOS, c.EOS, c.Text.EOS} {
		var one *int32
		var list []int32
		if len(raw) > 0 && json.Unmarshal(raw, &one) != nil && json.Unmarshal(raw, &list) != nil {
			return fmt.Errorf("%s: eos_token_id: expected a number or a list of numbers, found %.40s", checkpoint.FullName(fsys, name), raw)
		}
		if one != nil {
			list = append(list, *one)
		}
		m.stop = append(m.stop, list...)
	}
	for _, token := range []string{"<|im_end|>", "<|endoftext|>"} { // of Qwen; the configs of some encoders have others
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
	if free := p.available(); free > 0 && o.Warn != nil {
		if needed := p.weightsMemory(m.loadable, o.Quantize).bytes + m.model.CacheBytes(usualTokens); needed > free {
			o.Warn(fmt.Sprintf("the language model needs %s of memory, and %s are free (--quantize reduces it)",
				units.Bytes(needed), units.Bytes(free)))
		}
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

// Pipeline returns a pipeline that has the model as its only component, and generates nothing.
func (m *LanguageModel) Pipeline() *Pipeline { return m.pipeline }

// Observe has a hook see the outputs of the model's modules, whose names begin with language_model; nil ends that.
func (m *LanguageModel) Observe(hook hooks.Func) {
	m.pipeline.points = hooks.Points{Func: hook, Step: -1, Parameters: m.pipeline.parameters}
}

// usualTokens is for how many tokens a cache has memory at first.
const usualTokens = 4096

// maxSeen is the largest number of pixels of an image that a language model sees: larger ones are scaled
// down, since they would take thousands of tokens.
const maxSeen = 1 << 20

// Write writes the answer to a conversation. images are those of the messages, in order. It must run on
// the MLX thread.
func (m *LanguageModel) Write(messages []textgen.Message, images []image.Image, thinking bool, o textgen.Options,
	piece func(textgen.Piece),
) (t textgen.Text, err error) {
	if len(images) > 0 && m.blind != nil {
		return t, errs.Request(m.blind)
	}
	parts, err := m.template.Render(messages, thinking)
	if err != nil {
		return t, err
	}
	ids, err := m.tokenizer.EncodeParts(parts)
	if err != nil {
		return t, errs.Request(err)
	}
	var inputs []textenc.VisionInput
	for _, img := range images {
		in, err := m.see(img)
		if err != nil {
			return t, errs.Request(err)
		}
		inputs = append(inputs, in)
	}
	if len(inputs) > 0 {
		if ids, err = m.model.Images().ExpandImages(ids, inputs); err != nil {
			return t, err
		}
	}
	o.Context, o.Stop = m.context, m.stop
	capacity := len(ids) + o.MaxTokens
	if m.context > 0 {
		capacity = min(capacity, m.context)
	}
	cache := m.model.NewCache(1, min(capacity, len(ids)+usualTokens))
	defer cache.Close()
	return textgen.Generate(func(ids *mlx.Array) *mlx.Array {
		seen := inputs
		inputs = nil // they are in the prompt
		return m.model.Forward(ids, seen, cache)
	}, m.tokenizer, ids, o, piece)
}

// see prepares an image for the vision encoder.
func (m *LanguageModel) see(img image.Image) (in textenc.VisionInput, err error) {
	p := *m.processor
	if p.MaxPixels == nil || *p.MaxPixels > maxSeen {
		most := maxSeen
		p.MaxPixels = &most
	}
	fit, err := p.Resized(img.Bounds().Size())
	if err != nil {
		return in, err
	}
	return p.Process(picture.ResizeBicubic(picture.Opaque(img), fit.X, fit.Y))
}
