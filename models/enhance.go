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
	// Kept is the reason why Text is the prompt as it was typed, "" if it was rewritten.
	Kept string
	// Own reports that the language model is the component of the pipeline for this.
	Own bool
}

var errNothing = errors.New("the language model wrote nothing")

// Enhance rewrites a prompt for a family. images are those that an edit starts from, which a language
// model without vision does not see. The model is asked a second time if it changes a quoted text in the
// prompt, writes nothing, or repeats itself endlessly; then the prompt stays as it is. size is that of the
// image, which only some language models are told. It must run on the MLX thread.
func (m *LanguageModel) Enhance(prompt string, images []image.Image, edit bool, size image.Point, r family.Rewriter, seed uint64,
	piece func(textgen.Piece),
) (e Enhanced, err error) {
	if strings.TrimSpace(prompt) == "" {
		return e, errs.Request(errors.New("the prompt is empty: there is nothing to rewrite"))
	}
	if m.blind != nil {
		images = nil
	}
	e.Own = m.rewrites
	messages, err := m.request(prompt, len(images), edit, size, r)
	if err != nil {
		return e, errs.Request(err)
	}
	o := textgen.Options{Sampling: r.SamplingFor(edit), MaxTokens: r.MaxTokens, ThinkingBudget: r.ThinkingBudget}
	for try := range uint64(2) {
		o.Seed = seed + try
		e.Text, err = m.Write(messages, images, r.Thinking, o, piece)
		lost := lostQuote(prompt, e.Text.Text)
		switch {
		case errors.Is(err, textgen.ErrLoop):
			e.Kept = textgen.ErrLoop.Error()
		case err != nil:
			return e, fmt.Errorf("rewriting the prompt: %w", err)
		case e.Text.Text == "":
			e.Kept = errNothing.Error()
		case lost == "":
			e.Kept, e.Text.Text = "", r.Place(e.Text.Text)
			return e, nil
		default:
			e.Kept = fmt.Sprintf("the language model changed the quoted text %q", lost)
			if !e.Own { // which knows no other messages
				messages = append(messages[:2:2], textgen.TextMessage("assistant", e.Text.Text),
					textgen.TextMessage("user", fmt.Sprintf("The text “%s” is missing. Write the prompt again, with it.", lost)))
			}
		}
		if piece != nil {
			piece(textgen.Piece{Text: "\n"})
		}
	}
	e.Text.Text = r.Place(prompt)
	return e, nil
}

// request returns the messages that ask for a prompt to be rewritten.
func (m *LanguageModel) request(prompt string, images int, edit bool, size image.Point, r family.Rewriter) ([]textgen.Message, error) {
	if m.rewrites {
		message, err := r.Message(prompt, size.X, size.Y)
		return []textgen.Message{textgen.TextMessage("user", message)}, err
	}
	user := textgen.Message{Role: "user"}
	for range images {
		user.Content = append(user.Content, textgen.Content{Image: true})
	}
	user.Content = append(user.Content, textgen.Content{Text: r.Request(prompt, edit)})
	return []textgen.Message{textgen.TextMessage("system", r.System(edit)), user}, nil
}

// estimateRewriting returns the peak of rewriting the prompt of a run with the language model of its own model, 0
// without one. Images that it may see are left out.
func (r *Run) estimateRewriting(o LoadOptions) int64 {
	if writes, _ := HasLanguageModel(r.loader.FS); !writes {
		return 0
	}
	m, err := LoadLanguageModel(r.loader.FS, o)
	if err != nil {
		return 0
	}
	defer m.Close()
	rewriter := family.RewriterFor(r.Class)
	messages, err := m.request(r.Prompt, 0, len(r.References) > 0, image.Pt(r.Width, r.Height), rewriter)
	if err != nil {
		return 0
	}
	ids, err := m.encode(messages, rewriter.Thinking)
	if err != nil {
		return 0
	}
	return m.Peak(len(ids), rewriter.MaxTokens)
}

// Describe answers a question about an image; "" asks for a prompt that would draw it again.
func (m *LanguageModel) Describe(img image.Image, question string, o textgen.Options, piece func(textgen.Piece)) (textgen.Text, error) {
	if question == "" {
		question = family.Describe
	}
	user := textgen.Message{Role: "user", Content: []textgen.Content{{Image: true}, {Text: question}}}
	return m.say([]textgen.Message{user}, img, o, piece)
}

// Caption describes an image for a model that splits it into layers, which sees it in a size.
func (m *LanguageModel) Caption(img image.Image, size image.Point) (textgen.Text, error) {
	seen := family.OpaqueCopy(img, size)
	user := textgen.Message{Role: "user", Content: []textgen.Content{{Text: family.Caption}, {Image: true}}}
	o := textgen.Options{Sampling: textgen.Sampling{RepetitionPenalty: 1.05}, MaxTokens: 512}
	messages := []textgen.Message{textgen.TextMessage("system", "You are a helpful assistant."), user}
	return m.say(messages, seen, o, nil)
}

// say is Write about an image, of which nothing is an error.
func (m *LanguageModel) say(
	messages []textgen.Message, img image.Image, o textgen.Options, piece func(textgen.Piece),
) (textgen.Text, error) {
	t, err := m.Write(messages, []image.Image{img}, false, o, piece)
	if err == nil && t.Text == "" {
		err = errNothing
	}
	return t, err
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
