package generate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// ownRewriter, as the value of --enhance, is the text encoder of the model.
const ownRewriter = "own"

func addEnhance(f *pflag.FlagSet, o *promptFlags) {
	f.StringVar(&o.enhance, "enhance", "",
		"let a language model rewrite the prompt first: the text encoder of the model, or =`MODEL`; Ctrl-C once keeps the prompt as typed")
	f.Lookup("enhance").NoOptDefVal = ownRewriter
}

// A rewritten is where a prompt is from: the original prompt and the language model, both "" for a prompt
// as it was typed.
type rewritten struct{ original, by string }

// The lines of --json for a prompt that is rewritten.
type (
	jsonEnhance struct {
		MessageType string `json:"message_type"` // enhance
		Text        string `json:"text"`         // a part of the text, as it is written
		Thinking    bool   `json:"thinking,omitempty"`
		Prompt      int    `json:"prompt"` // number of the prompt, from 0
	}
	jsonEnhanced struct {
		MessageType string `json:"message_type"` // enhanced
		Prompt      string `json:"prompt"`
		Original    string `json:"original_prompt"`
		By          string `json:"enhanced_by"`
		Tokens      int    `json:"tokens"`
	}
)

// enhancePrompts rewrites the prompts, before the model is loaded.
func (g *generation) enhancePrompts(ctx context.Context, source *gomflux.Source) error {
	if g.enhance == "" {
		return nil
	}
	if len(g.rewritten) > 0 && g.rewritten[0].original != "" {
		g.out.Note("%s has a prompt that %s rewrote: it is used again", g.config, g.rewritten[0].by)
		return nil
	}
	g.allPrompts, g.rewritten = slices.Clone(g.allPrompts), make([]rewritten, len(g.allPrompts))
	for i, prompt := range g.allPrompts {
		e, err := g.enhancePrompt(ctx, source, i, prompt)
		switch {
		case ctx.Err() == nil && errors.Is(err, context.Canceled):
			g.out.Note("the prompt stays as it was typed")
			continue
		case err != nil:
			return cli.Coded(cli.ExitModel, cli.ModelError(fmt.Errorf("--enhance: %w", err)))
		}
		if g.allPrompts[i] = e.Prompt; e.Prompt != prompt {
			g.rewritten[i] = rewritten{prompt, e.Model}
		}
		if g.out.Verbose {
			g.out.Say("rewritten by %s, %s, with a system prompt: %s", e.Model, ui.Plural(e.Tokens, "token"), e.Source)
		}
		if g.out.Format == ui.JSONLines {
			g.out.Event(jsonEnhanced{"enhanced", e.Prompt, e.Original, e.Model, e.Tokens})
		}
	}
	return nil
}

// enhancePrompt rewrites a prompt, and shows the text as it is written.
func (g *generation) enhancePrompt(ctx context.Context, source *gomflux.Source, i int, prompt string) (*gomflux.Enhanced, error) {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	defer cli.SkipOnInterrupt(cancel)()
	g.report.begin(ctx, nil)
	loading := true
	writer := g.out.Stream()
	end := func() {
		if loading {
			g.report.end()
			loading = false
		}
	}
	defer func() {
		end()
		writer.End()
	}()
	open := g.OpenOptions()
	g.WeightFlags.Open(open)
	o := &gomflux.LanguageOptions{
		Seed: g.seed(i * g.each), Height: g.options.Height, Width: g.options.Width,
		Device: open.Device, Dtype: open.Dtype, Quantize: open.Quantize,
		Progress: g.options.Progress, Warn: func(message string) {
			writer.End()
			g.out.Warn("%s", message)
		},
		Text: func(text string, thinking bool) {
			end()
			if g.out.Format == ui.JSONLines {
				g.out.Event(jsonEnhance{"enhance", text, thinking, i})
				return
			}
			writer.Write(text)
		},
	}
	if g.enhance != ownRewriter {
		o.Model = g.enhance
	}
	return source.Enhance(own, prompt, g.options.References, o)
}
