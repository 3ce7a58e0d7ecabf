package gomflux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"io/fs"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/textgen"
)

// LanguageOptions are the options of a language model that rewrites prompts or describes images. The
// zero value is useful.
type LanguageOptions struct {
	// Model is the name of the language model: one that [Find] accepts, whose text encoder then writes,
	// or the folder of a language model. "" stands for the text encoder of the model that draws.
	Model string
	// Seed makes the text the same on the same device.
	Seed uint64
	// MaxTokens limits the text. 0 stands for the default of the model's family.
	MaxTokens int
	// Height and Width are those of the image, which the prompt enhancers of some models are told. 0 stands
	// for 1024.
	Height, Width int
	// Thinking is the largest number of tokens that the language model thinks before it rewrites a prompt, in
	// addition to MaxTokens. 0 stands for no thinking, except if the model's family has its own value.
	Thinking int
	// Boxes place elements of the image in a rewritten prompt for FLUX.3.
	Boxes []Box
	// Quantize is as in [OpenOptions].
	Quantize Quantization
	// Device and Dtype are as in [OpenOptions].
	Device Device
	Dtype  Dtype
	// Text, if set, is called on the caller's goroutine with each part of the text as it is written. If a
	// prompt is rewritten a second time, the text begins again.
	Text func(text string, thinking bool)
	// Sampling is how the next words of an answer are chosen; nil always chooses the most likely ones. The
	// families have values of their own for rewriting.
	Sampling *Sampling
	// Stop are texts that end an answer, which does not have them.
	Stop []string
	// Progress, if set, is called on the caller's goroutine while the language model is loaded.
	Progress func(Progress)
	// MakeRoom, if set, is called on the caller's goroutine before the language model is loaded, if it needs
	// more memory than is free.
	MakeRoom func()
	// Warn, if set, is called if the language model needs more memory than is free, and if it lost a
	// quoted text twice, so that the prompt stays as it is.
	Warn func(string)
}

// A Box places an element that a prompt names in the image. Its fields are named in JSON as in diffusers. Boxes
// have four numbers, y_min, x_min, y_max and x_max, from 0 to 1.
type Box struct {
	// ID is a word by which the rewritten prompt cites the element; "" stands for obj_ and a number.
	ID string `json:"id"`
	// Desc is what it looks like. The language model describes it if it is empty.
	Desc string `json:"desc"`
	// BBox is its place in an image from a prompt alone. Edits have the other fields.
	BBox []float64 `json:"bbox"`
	// From is the reference image with the element, from ref_image_0 on, or target for a new element.
	From string `json:"from"`
	// Source is its place there, nil for a new element, and Target that in the result, nil if it is removed.
	Source []float64 `json:"src_bbox"`
	Target []float64 `json:"tgt_bbox"`
}

// Sampling is how a language model chooses its next word. The fields have the names of OpenAI's API and of
// transformers. Those with the value zero have no effect, but a Temperature of zero always chooses the most
// likely word.
type Sampling struct {
	Temperature                                          float64
	TopK                                                 int
	TopP, MinP                                           float64
	RepetitionPenalty, PresencePenalty, FrequencyPenalty float64
}

// An Enhanced is a prompt that was rewritten.
type Enhanced struct {
	Prompt   string // the rewritten prompt
	Original string // the prompt before
	Model    string // the language model
	Thinking string // what the language model wrote before the prompt
	Tokens   int    // that the language model wrote
	Whole    bool   // false if the text was ended by a limit of tokens
	Source   string // where the system prompt is from, with its licence
}

// A LanguageModel is a loaded language model. Its methods can be called from several goroutines.
type LanguageModel struct {
	model *models.LanguageModel
	name  string
}

// OpenLanguageModel loads a language model: the one that o names, and otherwise the source's text encoder.
// Callers must close it.
func (s *Source) OpenLanguageModel(ctx context.Context, o *LanguageOptions) (*LanguageModel, error) {
	o = cmp.Or(o, &LanguageOptions{})
	found := &s.found
	var err error
	if o.Model != "" {
		if found, err = catalog.Find(o.Model); err != nil {
			return nil, err
		}
	}
	open := &OpenOptions{Device: o.Device, Dtype: o.Dtype, Quantize: o.Quantize, Progress: o.Progress, Warn: o.Warn}
	load, err := open.load()
	if err != nil {
		return nil, err
	}
	if o.MakeRoom != nil {
		load.MakeRoom = func() { mlx.Call(o.MakeRoom) }
	}
	m, err := onMLX(ctx, func() (*models.LanguageModel, error) { return models.LoadLanguageModel(found.FS, load) })
	if errors.Is(err, fs.ErrNotExist) && found.Err != nil && !index.Exists(found.FS) {
		err = found.Err
	}
	if err != nil {
		return nil, err
	}
	return &LanguageModel{m, catalog.TildePath(found.Name)}, nil
}

// Close frees the memory of the model.
func (m *LanguageModel) Close() error {
	return mlx.Finish(func() {
		m.model.Close()
		mlx.ClearCache()
	})
}

// Enhance rewrites a prompt with the system prompt of the family of s, and returns it. For edits,
// references are the reference images, which language models with vision see. Texts in quotation marks
// stay as they are. Of the options it uses Boxes, Seed, MaxTokens, Thinking, Height, Width, Text
// and Warn.
func (m *LanguageModel) Enhance(ctx context.Context, s *Source, prompt string, references []image.Image, o *LanguageOptions,
) (*Enhanced, error) {
	o = cmp.Or(o, &LanguageOptions{})
	x, err := s.found.Index()
	if err != nil {
		return nil, err
	}
	class, err := family.Of(s.found.FS, x)
	if err != nil {
		return nil, err
	}
	var boxes []family.Box
	for _, b := range o.Boxes {
		boxes = append(boxes, family.Box(b))
	}
	rewriter, err := family.RewriterFor(class.Name).WithBoxes(boxes)
	if err != nil {
		return nil, public(err)
	}
	rewriter.MaxTokens = cmp.Or(o.MaxTokens, rewriter.MaxTokens)
	if o.Thinking > 0 {
		rewriter.Thinking, rewriter.ThinkingBudget = true, o.Thinking
		rewriter.MaxTokens += o.Thinking
	}
	size := image.Pt(cmp.Or(o.Width, 1024), cmp.Or(o.Height, 1024))
	made, err := onMLX(ctx, func() (models.Enhanced, error) {
		return m.model.Enhance(prompt, references, size, rewriter, o.Seed, o.piece())
	})
	if err != nil {
		return nil, err
	}
	if made.Lost != "" && o.Warn != nil {
		o.Warn(fmt.Sprintf("the language model changed the quoted text %q, twice: the prompt stays as it was typed", made.Lost))
	}
	return &Enhanced{made.Text.Text, prompt, m.name, made.Thinking, made.Tokens, made.Whole, made.Source}, nil
}

// Enhance is [LanguageModel.Enhance] for the model's own family, with a language model that is loaded for
// this, and freed before Enhance returns.
func (s *Source) Enhance(ctx context.Context, prompt string, references []image.Image, o *LanguageOptions) (*Enhanced, error) {
	return withLanguage(ctx, s, o, func(m *LanguageModel) (*Enhanced, error) { return m.Enhance(ctx, s, prompt, references, o) })
}

// A Message is a turn of a conversation with a language model.
type Message struct {
	Role  string // system, user or assistant
	Parts []Part // in order
}

// A Part is a part of a message: an image, or a text.
type Part struct {
	Text  string
	Image image.Image
}

// An Answer is what a language model says in a conversation, or about an image.
type Answer struct {
	Text         string `json:"text"`
	Model        string `json:"model,omitempty"`         // the language model
	PromptTokens int    `json:"prompt_tokens,omitempty"` // of the conversation, with its images
	Tokens       int    `json:"tokens"`                  // that the model wrote
	Whole        bool   `json:"whole"`                   // false if the text was ended by a limit of tokens
}

// Chat answers the last message of a conversation. Of the options it uses Seed, MaxTokens, Sampling, Stop
// and Text.
func (m *LanguageModel) Chat(ctx context.Context, messages []Message, o *LanguageOptions) (*Answer, error) {
	o = cmp.Or(o, &LanguageOptions{})
	turns := make([]textgen.Message, len(messages))
	for i, message := range messages {
		turns[i].Role = message.Role
		for _, p := range message.Parts {
			turns[i].Content = append(turns[i].Content, textgen.Content(p))
		}
	}
	to := textgen.Options{
		Sampling: textgen.Sampling(*cmp.Or(o.Sampling, &Sampling{})), Seed: o.Seed, MaxTokens: cmp.Or(o.MaxTokens, 512), StopTexts: o.Stop,
	}
	if err := to.Validate(); err != nil {
		return nil, public(errs.Request(err))
	}
	return m.answer(ctx, func() (textgen.Text, error) { return m.model.Write(turns, false, to, o.piece()) })
}

// answer returns what f writes on the MLX thread.
func (m *LanguageModel) answer(ctx context.Context, f func() (textgen.Text, error)) (*Answer, error) {
	t, err := onMLX(ctx, f)
	if err != nil {
		return nil, err
	}
	return &Answer{Text: t.Text, Model: m.name, PromptTokens: t.Prompt, Tokens: t.Tokens, Whole: t.Whole}, nil
}

// Describe answers a question about an image. Without one, it returns a prompt that would draw the image
// again. The options are those of [LanguageModel.Chat]. The language model is loaded for this, and freed before
// Describe returns.
func (s *Source) Describe(ctx context.Context, img image.Image, question string, o *LanguageOptions) (*Answer, error) {
	return withLanguage(ctx, s, o, func(m *LanguageModel) (*Answer, error) { return m.Chat(ctx, Question(img, question), o) })
}

// Question returns the conversation of [Source.Describe].
func Question(img image.Image, question string) []Message {
	return []Message{{Role: "user", Parts: []Part{{Image: img}, {Text: cmp.Or(question, family.Describe)}}}}
}

// Describe is [Source.Describe] with the model's own text encoder, unless o names another one. Where
// memory is short, the model's weights are freed first, and read again when they are needed.
func (m *Model) Describe(ctx context.Context, img image.Image, question string, o *LanguageOptions) (*Answer, error) {
	if err := m.makeRoom(ctx); err != nil {
		return nil, err
	}
	return m.source.Describe(ctx, img, question, o)
}

// enhance rewrites the prompt of options, as they ask for.
func (m *Model) enhance(ctx context.Context, o *Options) error {
	if err := m.makeRoom(ctx); err != nil {
		return err
	}
	language := *o.Enhance
	language.Height, language.Width = cmp.Or(language.Height, o.Height), cmp.Or(language.Width, o.Width)
	e, err := m.source.Enhance(ctx, o.Prompt, o.References, &language)
	if err == nil {
		o.Use(e)
	}
	return err
}

// Use sets the prompt to a rewritten one, which Settings record with the original.
func (o *Options) Use(e *Enhanced) {
	o.Enhance = nil
	if o.Prompt = e.Prompt; e.Prompt != e.Original {
		o.OriginalPrompt, o.EnhancedBy = e.Original, e.Model
	}
}

// makeRoom frees weights for a language model if memory is short.
func (m *Model) makeRoom(ctx context.Context) error {
	return public(mlx.Do(ctx, func() error { return m.pipeline.MakeRoom() }))
}

// piece converts Text.
func (o *LanguageOptions) piece() func(textgen.Piece) {
	if o.Text == nil {
		return nil
	}
	return func(p textgen.Piece) { mlx.Call(func() { o.Text(p.Text, p.Thinking) }) }
}

// withLanguage loads a language model, calls f, and frees it.
func withLanguage[T any](ctx context.Context, s *Source, o *LanguageOptions, f func(*LanguageModel) (*T, error)) (*T, error) {
	m, err := s.OpenLanguageModel(ctx, o)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return f(m)
}
