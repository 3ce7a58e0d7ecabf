package models

import (
	"errors"
	"fmt"
	"image"
	"regexp"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/textgen"
)

// An Enhanced is a prompt that a language model rewrote.
type Enhanced struct {
	textgen.Text
	// Lost is a text in quotation marks that the language model changed twice, so that Text is the prompt as it was typed.
	Lost string
	// Source is where the system prompt is from.
	Source string
}

// Enhance rewrites a prompt for a family. images are those that an edit starts from, which a language
// model without vision does not see. The model is asked a second time if it changes a quoted text in the
// prompt, and then the prompt stays as it is, or if it writes nothing or repeats itself endlessly. size is that of the
// image, which only some language models are told. It must run on the MLX thread.
func (m *LanguageModel) Enhance(prompt string, images []image.Image, size image.Point, r family.Rewriter, seed uint64,
	piece func(textgen.Piece),
) (e Enhanced, err error) {
	if strings.TrimSpace(prompt) == "" {
		return e, errs.Request(errors.New("the prompt is empty: there is nothing to rewrite"))
	}
	edit := len(images) > 0
	if m.blind != nil {
		images = nil
	}
	messages, err := m.request(prompt, images, edit, size, r)
	if err != nil {
		return e, errs.Request(err)
	}
	o := textgen.Options{Sampling: r.SamplingFor(edit), MaxTokens: r.MaxTokens, ThinkingBudget: r.ThinkingBudget}
	for try := range uint64(2) {
		o.Seed = seed + try
		e.Text, err = m.Write(messages, r.Thinking, o, piece)
		if err == nil {
			if e.Lost = lostQuote(prompt, e.Text.Text); e.Lost == "" {
				break
			}
			if !m.rewrites { // which knows no other messages
				messages = append(messages[:2:2], textgen.TextMessage("assistant", e.Text.Text),
					textgen.TextMessage("user", fmt.Sprintf("The text “%s” is missing. Write the prompt again, with it.", e.Lost)))
			}
		} else if !errors.Is(err, textgen.ErrLoop) && !errors.Is(err, textgen.ErrNothing) {
			break
		}
		if piece != nil {
			piece(textgen.Piece{Text: "\n"})
		}
	}
	if err != nil {
		return e, fmt.Errorf("rewriting the prompt: %w", err)
	}
	if e.Source = r.Source; m.rewrites {
		e.Source = "the model's own " + r.Component
	}
	if e.Lost != "" {
		e.Text.Text = prompt
	}
	e.Text.Text = r.Place(e.Text.Text)
	return e, nil
}

// request returns the messages that ask for a prompt to be rewritten.
func (m *LanguageModel) request(prompt string, images []image.Image, edit bool, size image.Point, r family.Rewriter,
) ([]textgen.Message, error) {
	if m.rewrites {
		message, err := r.Message(prompt, size.X, size.Y)
		return []textgen.Message{textgen.TextMessage("user", message)}, err
	}
	user := textgen.Message{Role: "user"}
	for _, img := range images {
		user.Content = append(user.Content, textgen.Content{Image: img})
	}
	user.Content = append(user.Content, textgen.Content{Text: r.Request(prompt, edit)})
	return []textgen.Message{textgen.TextMessage("system", r.System(edit)), user}, nil
}

// estimateRewriting returns the peak of rewriting the prompt of a run with the language model of its own model, 0
// without one. Images that it may see are left out.
func (r *Run) estimateRewriting(o LoadOptions) int64 {
	m, err := LoadLanguageModel(r.loader.FS, o)
	if err != nil {
		return 0
	}
	defer m.Close()
	rewriter := family.RewriterFor(r.Class)
	messages, err := m.request(r.Prompt, nil, len(r.References) > 0, image.Pt(r.Width, r.Height), rewriter)
	if err == nil {
		var ids []int32
		if ids, err = m.encode(messages, rewriter.Thinking); err == nil {
			return m.Peak(len(ids), rewriter.MaxTokens)
		}
	}
	return 0
}

// Caption describes an image for a model that splits it into layers, which sees it in a size.
func (m *LanguageModel) Caption(img image.Image, size image.Point) (textgen.Text, error) {
	user := textgen.Message{Role: "user", Content: []textgen.Content{{Text: family.Caption}, {Image: family.OpaqueCopy(img, size)}}}
	o := textgen.Options{Sampling: textgen.Sampling{RepetitionPenalty: 1.05}, MaxTokens: 512}
	return m.Write([]textgen.Message{textgen.TextMessage("system", "You are a helpful assistant."), user}, false, o, nil)
}

// quotes are the quotation marks whose text must stay. Single ones may be apostrophes.
var quotes = regexp.MustCompile(`"([^"]+)"|“([^”]+)”|„([^“”]+)[“”]|«([^»]+)»|「([^」]+)」|『([^』]+)』`)

// lostQuote returns a text in quotation marks that a rewritten prompt lacks, "" if it has all.
func lostQuote(prompt, rewritten string) string {
	for _, m := range quotes.FindAllStringSubmatch(prompt, -1) {
		if text := strings.Join(m[1:], ""); !strings.Contains(rewritten, text) {
			return text
		}
	}
	return ""
}
