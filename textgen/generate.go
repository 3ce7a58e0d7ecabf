// Package textgen generates text with language models: it renders chat templates, draws tokens, and
// turns them into text. The networks are in package textenc.
package textgen

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// Forward appends ids, int32 [1, T], to what a language model has seen, and returns the logits of the
// next token, float32 [1, vocabulary].
type Forward func(ids *mlx.Array) *mlx.Array

// Options are the options of [Generate].
type Options struct {
	Sampling
	// Seed makes the text the same on the same device.
	Seed uint64
	// MaxTokens is the largest number of tokens of the text, with those of its thinking.
	MaxTokens int
	// Stop has the tokens that end the text.
	Stop []int32
	// StopTexts end the answer too, which does not have them.
	StopTexts []string
	// ThinkingBudget is the number of tokens after which thinking is ended, 0 for no limit.
	ThinkingBudget int
}

// A Piece is a part of a text, as it is generated. It has whole characters.
type Piece struct {
	Text     string
	Thinking bool // Text is not part of the answer
}

// A Text is a generated text.
type Text struct {
	Text     string
	Thinking string
	Prompt   int  // number of tokens of the prompt, with those of images
	Tokens   int  // number of generated tokens
	Whole    bool // the model ended the text
}

// ErrLoop is the error of a text that repeats one token endlessly, and ErrNothing that of an empty one.
var (
	ErrLoop    = errors.New("the language model repeats one token endlessly")
	ErrNothing = errors.New("the language model wrote nothing")
)

// maxRepeats is how often a token may follow itself. Rulers of dashes are shorter.
const maxRepeats = 100

// Generate generates a text after the ids of a prompt. piece, if set, is called with each new part. It
// must run on the MLX thread, and stops if the job's context is done. A text that begins with a stop text may be empty.
func Generate(forward Forward, t *tokenizer.Tokenizer, prompt []int32, o Options, piece func(Piece)) (Text, error) {
	if err := o.Validate(); err != nil {
		return Text{}, err
	}
	if len(prompt) == 0 {
		return Text{}, errors.New("the prompt has no tokens")
	}
	g := &generation{forward: forward, prompt: prompt, text: newWriter(t, prompt, piece), o: o, last: -1}
	g.text.Prompt, g.text.stops = len(prompt), o.StopTexts
	if err := g.loop(g.next); err != nil {
		return Text{}, err
	}
	made := g.text.finish()
	switch {
	case made.Text != "" || g.text.stopped:
		return made, nil
	case made.Thinking != "":
		return made, fmt.Errorf("%w but thoughts, of %d tokens", ErrNothing, made.Tokens)
	}
	return made, ErrNothing
}

// A generation is a text that is being generated.
type generation struct {
	forward Forward
	prompt  []int32
	o       Options
	sampler *sampler
	text    *writer

	drawn         *mlx.Array // the next token, see step; nil if it is not begun
	last          int32      // token
	repeats       int        // of it
	thinkingSoFar int        // tokens
}

// loop has next read the tokens, up to the limit, and return the ids that the model must see next, if that has not begun.
func (g *generation) loop(next func() ([]int32, error)) (err error) {
	defer g.close()
	ids := g.prompt
	for err == nil && !g.text.Whole && g.text.Tokens < g.o.MaxTokens {
		mlx.WithScope(func() {
			if g.drawn == nil {
				g.step(mlx.FromInt32(ids, 1, len(ids)))
			}
			ids, err = next()
		})
		mlx.StopPoint()
	}
	return err
}

func (g *generation) close() {
	if g.sampler != nil {
		g.sampler.close()
	}
	g.free()
}

// read returns the id that was drawn, and whether the logits are finite; see step.
func (g *generation) read() []int32 {
	drawn := g.drawn
	g.drawn = nil
	defer drawn.Free()
	// A GPU computes the token after this one while this one is read. A CPU would not gain anything.
	if mlx.CurrentDevice() != mlx.CPU && g.text.Tokens+1 < g.o.MaxTokens {
		g.step(drawn.Slice(-1, 0, 1))
	}
	return drawn.Int32s()
}

// next reads the token that was drawn. It returns the ids that the model must see next, if that has not
// begun.
func (g *generation) next() (ids []int32, err error) {
	read := g.read()
	id := read[0]
	switch {
	case read[1] == 0:
		return nil, errors.New("the language model computed NaN or infinite values")
	case slices.Contains(g.o.Stop, id):
		g.text.Whole = true
		return nil, nil
	}
	if g.repeats++; id != g.last {
		g.last, g.repeats = id, 1
	}
	if g.repeats > maxRepeats {
		return nil, fmt.Errorf("%w (token %d, %d times)", ErrLoop, id, g.repeats)
	}
	if err := g.text.add(id); err != nil || !g.text.thinking {
		return []int32{id}, err
	}
	if g.thinkingSoFar++; g.thinkingSoFar != g.o.ThinkingBudget {
		return []int32{id}, nil
	}
	end, err := g.text.endThinking()
	if g.drawn == nil {
		return append([]int32{id}, end...), err
	}
	g.free()
	return end, err
}

func (g *generation) free() {
	if g.drawn != nil {
		g.drawn.Free()
		g.drawn = nil
	}
}

// step appends ids [1, T] to what the model has seen and begins to draw the next token. drawn gets its id
// and whether the logits are finite, int32 [1, 2].
func (g *generation) step(ids *mlx.Array) {
	g.drawn = mlx.Scope(func() *mlx.Array {
		if g.sampler != nil { // not the prompt
			for i := range ids.Dim(1) {
				g.sampler.count(ids.Slice(1, i, i+1))
			}
		}
		logits := g.forward(ids)
		if g.sampler == nil {
			g.sampler = newSampler(g.o.Sampling, g.o.Seed, logits.Dim(-1), g.prompt)
		}
		return mlx.Concat(-1, g.sampler.draw(logits), logits.Sum(-1).IsFinite().AsType(mlx.Int32))
	})
	mlx.Keep(g.drawn)
	mlx.AsyncEval(g.drawn)
}

// Draw draws a number of tokens after the ids of a prompt, as [Generate] does, whatever they are. drawn is
// called after each. It must run on the MLX thread.
func Draw(forward Forward, prompt []int32, tokens int, drawn func()) {
	g := &generation{forward: forward, prompt: prompt, o: Options{MaxTokens: tokens}, text: &writer{}}
	g.loop(func() ([]int32, error) {
		ids := g.read()[:1]
		g.text.Tokens++
		drawn()
		return ids, nil
	})
}

// A writer turns tokens into text.
type writer struct {
	Text
	t           *tokenizer.Tokenizer
	piece       func(Piece)
	open, close int32 // <think> and </think>, -1 without them
	thinking    bool
	rest        []byte // the beginning of a character
	begun       bool   // the text has something else than spaces
	stops       []string
	held        string // with which one of stops could begin
	stopped     bool   // by one of them
}

func newWriter(t *tokenizer.Tokenizer, prompt []int32, piece func(Piece)) *writer {
	w := &writer{t: t, piece: piece, open: -1, close: -1}
	open, opens := t.ID("<think>")
	end, closes := t.ID("</think>")
	if opens && closes {
		w.open, w.close = open, end
	}
	for _, id := range prompt {
		w.switched(id)
	}
	return w
}

// switched reports whether a token begins or ends thinking, which is noted.
func (w *writer) switched(id int32) bool {
	if id < 0 || id != w.open && id != w.close {
		return false
	}
	w.thinking, w.begun = id == w.open, false
	return true
}

// add adds a token to the text.
func (w *writer) add(id int32) error {
	w.Tokens++
	if w.switched(id) {
		w.flush()
		return nil
	}
	b, err := w.t.Bytes(id)
	if err != nil {
		return err
	}
	w.rest = append(w.rest, b...)
	n := len(w.rest)
	for i := 1; i <= min(utf8.UTFMax-1, n); i++ { // a character that is not complete
		if c := w.rest[n-i:]; utf8.RuneStart(c[0]) {
			if !utf8.FullRune(c) {
				n -= i
			}
			break
		}
	}
	w.write(string(w.rest[:n]))
	w.rest = append([]byte(nil), w.rest[n:]...)
	return nil
}

// write adds text, without the spaces that it begins with.
func (w *writer) write(text string) {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "") // a NUL is in no prompt
	if !w.begun {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	if text == "" {
		return
	}
	w.begun = true
	if !w.thinking {
		text = w.untilStop(text)
	}
	w.emit(text)
}

// untilStop returns what of the answer comes before a stop text, without a beginning of one.
func (w *writer) untilStop(text string) string {
	text, w.held = w.held+text, ""
	end := len(text)
	for _, s := range w.stops {
		if i := strings.Index(text[:end], s); i >= 0 {
			end, w.stopped, w.Whole = i, true, true
		}
	}
	if w.stopped {
		return text[:end]
	}
	for i := range text {
		if slices.ContainsFunc(w.stops, func(s string) bool { return strings.HasPrefix(s, text[i:]) }) {
			w.held = text[i:]
			return text[:i]
		}
	}
	return text
}

func (w *writer) emit(text string) {
	if text == "" {
		return
	}
	if w.thinking {
		w.Thinking += text
	} else {
		w.Text.Text += text
	}
	if w.piece != nil {
		w.piece(Piece{Text: text, Thinking: w.thinking})
	}
}

func (w *writer) flush() {
	w.write(string(w.rest))
	w.rest = nil
}

// endThinking ends thinking, and returns the tokens that tell the model so.
func (w *writer) endThinking() ([]int32, error) {
	before, err := w.t.Encode("\n")
	if err != nil {
		return nil, err
	}
	after, err := w.t.Encode("\n\n")
	w.flush()
	w.switched(w.close)
	return slices.Concat(before, []int32{w.close}, after), err
}

// finish returns the text.
func (w *writer) finish() Text {
	if !w.stopped {
		w.flush()
		w.emit(w.held)
	}
	w.Text.Text = strings.TrimRightFunc(w.Text.Text, unicode.IsSpace)
	w.Thinking = strings.TrimRightFunc(w.Thinking, unicode.IsSpace)
	return w.Text
}
