package generate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	o.enhanceThinking = cli.Count("tokens")
	f.StringVar(&o.boxes, "boxes", "", "let the language model place the elements that a JSON `FILE` lists")
	f.Var(&o.enhanceThinking, "enhance-thinking", "let the language model think first, for at most so many tokens (default: no thinking)")
}

// A rewritten is where a prompt is from: the original prompt and the language model, both "" for a prompt
// as it was typed.
type rewritten struct{ Original, By string }

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

// enhancePrompts rewrites the prompts, before the model is loaded. Of several processes rank 0 does so for all.
func (g *generation) enhancePrompts(ctx context.Context, source *gomflux.Source) error {
	if g.enhance == "" {
		return nil
	}
	if g.group.Rank() == 0 {
		if err := g.enhanceHere(ctx, source); err != nil || g.group.Size() == 1 {
			return err
		}
		g.chooseTyped()
	}
	type rewriting struct {
		Prompts   []string
		Rewritten []rewritten
	}
	all, err := cli.Share(ctx, g.group, rewriting{g.allPrompts, g.rewritten})
	g.allPrompts, g.rewritten = all.Prompts, all.Rewritten
	return err
}

// enhanceHere rewrites the prompts in this process.
func (g *generation) enhanceHere(ctx context.Context, source *gomflux.Source) error {
	if len(g.rewritten) > 0 && g.rewritten[0].Original != "" {
		g.out.Note("%s has a prompt that %s rewrote: it is used again", g.config, g.rewritten[0].By)
		return nil
	}
	boxes, err := readBoxes(g.boxes)
	if err != nil {
		return cli.Coded(cli.ExitUsage, fmt.Errorf("--boxes: %w", err))
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	g.typed = &typedPrompt{}
	g.typed.end = cli.SkipOnInterrupt(func() {
		g.typed.asked.Store(true)
		cancel()
	})
	defer time.AfterFunc(reaction, g.typed.end)
	g.allPrompts, g.rewritten = slices.Clone(g.allPrompts), make([]rewritten, len(g.allPrompts))
	err = g.rewritePrompts(own, source, boxes)
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		g.out.Note("%s", asTyped)
		return nil
	}
	if err != nil {
		return cli.Coded(cli.ExitModel, cli.ModelError(fmt.Errorf("--enhance: %w", err)))
	}
	return nil
}

// readBoxes reads the boxes in a file, if there is a name.
func readBoxes(name string) (boxes []gomflux.Box, err error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err = d.Decode(&boxes); err != nil {
		err = fmt.Errorf("%s: expected a list of boxes: %w", name, err)
	}
	return boxes, err
}

const asTyped = "the prompt stays as it was typed"

// reaction is how long after the last word Ctrl-C means the rewriting.
const reaction = time.Second

// A typedPrompt is how Ctrl-C keeps the last prompt as it was typed, while it is rewritten and shortly after.
type typedPrompt struct {
	asked atomic.Bool
	end   func() // makes Ctrl-C end the command again
}

// chooseTyped puts the prompt back that Ctrl-C was for, before the first image.
func (g *generation) chooseTyped() {
	if g.typed == nil {
		return
	}
	g.typed.end()
	if last := len(g.rewritten) - 1; g.typed.asked.Load() && g.rewritten[last].Original != "" {
		g.out.Note("%s", asTyped)
		g.allPrompts[last], g.rewritten[last] = g.rewritten[last].Original, rewritten{}
	}
	g.typed = nil
}

// rewritePrompts rewrites the prompts with a language model that is loaded once, and shows the text as it is
// written.
func (g *generation) rewritePrompts(ctx context.Context, source *gomflux.Source, boxes []gomflux.Box) error {
	writer := g.out.Stream()
	defer writer.End()
	g.report.begin(ctx, nil)
	endReport := sync.OnceFunc(g.report.end)
	defer endReport()
	i := 0
	open := g.OpenOptions()
	g.WeightFlags.Open(open)
	o := &gomflux.LanguageOptions{
		Boxes: boxes, Thinking: g.enhanceThinking.OrZero(), Height: g.options.Height, Width: g.options.Width,
		Device: open.Device, Dtype: open.Dtype, Quantize: open.Quantize, Progress: g.options.Progress,
		Warn: func(message string) {
			writer.End()
			g.out.Warn("%s", message)
		},
		Text: func(text string, thinking bool) {
			endReport()
			g.out.Event(jsonEnhance{"enhance", text, thinking, i})
			writer.Write(text)
		},
	}
	if g.enhance != ownRewriter {
		o.Model = g.enhance
	}
	m, err := source.OpenLanguageModel(ctx, o)
	if err != nil {
		return err
	}
	defer m.Close()
	for ; i < len(g.allPrompts); i++ {
		o.Seed = g.seed(i * g.each)
		e, err := m.Enhance(ctx, source, g.allPrompts[i], g.options.References, o)
		writer.End()
		if err == nil && g.typed.asked.Load() {
			err = context.Canceled
		}
		if err != nil {
			return err
		}
		if g.allPrompts[i] = e.Prompt; e.Prompt != e.Original {
			g.rewritten[i] = rewritten{e.Original, e.Model}
		}
		if g.out.Verbose {
			g.out.Say("rewritten by %s, %s, with a system prompt: %s", e.Model, ui.Plural(e.Tokens, "token"), e.Source)
		}
		g.out.Event(jsonEnhanced{"enhanced", e.Prompt, e.Original, e.Model, e.Tokens})
	}
	return nil
}
