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
	// Quantize is as in [OpenOptions].
	Quantize Quantization
	// Device and Dtype are as in [OpenOptions].
	Device Device
	Dtype  Dtype
	// Text, if set, is called on the caller's goroutine with each part of the text as it is written. If a
	// prompt is rewritten a second time, the text begins again.
	Text func(text string, thinking bool)
	// Progress, if set, is called on the caller's goroutine while the language model is loaded.
	Progress func(Progress)
	// Warn, if set, is called if the language model needs more memory than is free, and if it lost a
	// quoted text twice, so that the prompt stays as it is.
	Warn func(string)
}

// An Enhanced is a prompt that was rewritten.
type Enhanced struct {
	Prompt   string // the rewritten prompt
	Original string // the prompt before
	Model    string // the language model
	Thinking string // what the language model wrote before the prompt
	Tokens   int    // that the language model wrote
	Source   string // where the system prompt is from, with its licence
}

// Enhance rewrites a prompt with the system prompt of the model's family, and returns it. For edits,
// references are the reference images, which language models with vision see. Texts in quotation marks
// stay as they are. The language model is loaded for this, and freed before Enhance returns.
func (s *Source) Enhance(ctx context.Context, prompt string, references []image.Image, o *LanguageOptions) (*Enhanced, error) {
	o = cmp.Or(o, &LanguageOptions{})
	class, err := s.class()
	if err != nil {
		return nil, err
	}
	rewriter := family.RewriterFor(class)
	rewriter.MaxTokens = cmp.Or(o.MaxTokens, rewriter.MaxTokens)
	if o.Thinking > 0 {
		rewriter.Thinking, rewriter.ThinkingBudget = true, o.Thinking
		rewriter.MaxTokens += o.Thinking
	}
	var made models.Enhanced
	name, err := s.withLanguage(ctx, o, func(m *models.LanguageModel) (err error) {
		size := image.Pt(cmp.Or(o.Width, 1024), cmp.Or(o.Height, 1024))
		made, err = m.Enhance(prompt, references, len(references) > 0, size, rewriter, o.Seed, o.piece())
		return err
	})
	if err != nil {
		return nil, err
	}
	e := &Enhanced{
		Prompt: made.Text.Text, Original: prompt, Model: name, Thinking: made.Thinking, Tokens: made.Tokens, Source: rewriter.Source,
	}
	if made.Own {
		e.Source = "the model's own " + rewriter.Component
	}
	if made.Lost != "" && o.Warn != nil {
		o.Warn(fmt.Sprintf("the language model changed the quoted text %q twice: the prompt stays as it was typed", made.Lost))
	}
	return e, nil
}

// A Description is what a language model says about an image.
type Description struct {
	Text   string
	Model  string // the language model
	Tokens int    // that it wrote
	Whole  bool   // false if the text was ended by a limit of tokens
}

// Describe answers a question about an image. Without one, it returns a prompt that would draw the image
// again. The language model is loaded for this, and freed before Describe returns.
func (s *Source) Describe(ctx context.Context, img image.Image, question string, o *LanguageOptions) (*Description, error) {
	o = cmp.Or(o, &LanguageOptions{})
	var t textgen.Text
	name, err := s.withLanguage(ctx, o, func(m *models.LanguageModel) (err error) {
		t, err = m.Describe(img, question, textgen.Options{
			Sampling: textgen.Sampling{Seed: o.Seed}, MaxTokens: cmp.Or(o.MaxTokens, 512),
		}, o.piece())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Description{Text: t.Text, Model: name, Tokens: t.Tokens, Whole: t.Whole}, nil
}

// Describe is [Source.Describe] with the model's own text encoder, unless o names another one. Where
// memory is short, the model's weights are freed first, and read again when they are needed.
func (m *Model) Describe(ctx context.Context, img image.Image, question string, o *LanguageOptions) (*Description, error) {
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
		o.use(e)
	}
	return err
}

// use sets the prompt to a rewritten one, which Settings record with the original.
func (o *Options) use(e *Enhanced) {
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

// class returns the pipeline class of the source.
func (s *Source) class() (string, error) {
	x, err := s.found.Index()
	if err != nil {
		return "", err
	}
	c, err := family.Of(s.found.FS, x)
	if err != nil {
		return "", err
	}
	return c.Name, nil
}

// withLanguage loads a language model, calls f with it on the MLX thread, and frees it.
func (s *Source) withLanguage(ctx context.Context, o *LanguageOptions, f func(*models.LanguageModel) error) (name string, err error) {
	found := &s.found
	if o.Model != "" {
		if found, err = catalog.Find(o.Model); err != nil {
			return "", err
		}
	}
	open := &OpenOptions{Device: o.Device, Dtype: o.Dtype, Quantize: o.Quantize, Progress: o.Progress, Warn: o.Warn}
	load, err := open.load()
	if err != nil {
		return "", err
	}
	err = mlx.Do(ctx, func() error {
		m, err := models.LoadLanguageModel(found.FS, load)
		if err != nil {
			return err
		}
		defer m.Close()
		defer mlx.ClearCache()
		return f(m)
	})
	if errors.Is(err, fs.ErrNotExist) && found.Err != nil && !index.Exists(found.FS) {
		err = found.Err
	}
	return catalog.TildePath(found.Name), public(err)
}
