package engine

import (
	"context"
	"errors"
	"image"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
)

// A writer is a language model that writes a word each second.
type writer struct {
	world  *world
	name   string
	err    error
	tokens int
}

func (l *writer) write(ctx context.Context, what string, o *gomflux.LanguageOptions) error {
	l.world.add("write %s %s", l.name, what)
	o.Text("hm ", true)
	for range l.tokens {
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		o.Text("word ", false)
	}
	o.Text("end", false)
	return l.err
}

func (l *writer) Enhance(ctx context.Context, model, prompt string, _ []image.Image, o *gomflux.LanguageOptions,
) (*gomflux.Enhanced, error) {
	if err := l.write(ctx, prompt+" for "+model, o); err != nil {
		return nil, err
	}
	o.Warn("warned")
	return &gomflux.Enhanced{Prompt: "better " + prompt, Original: prompt, Model: l.name, Tokens: l.tokens}, nil
}

func (l *writer) Chat(ctx context.Context, messages []gomflux.Message, o *gomflux.LanguageOptions) (*gomflux.Answer, error) {
	if err := l.write(ctx, messages[0].Parts[0].Text, o); err != nil {
		return nil, err
	}
	return &gomflux.Answer{Text: "an answer", Model: l.name, PromptTokens: 3, Tokens: l.tokens}, nil
}

func (l *writer) Close() error {
	l.world.add("close %s", l.name)
	return nil
}

// inTextBubble is inBubble with language models. Those whose name is "b" need the memory of the model for
// images.
func inTextBubble(t *testing.T, l *writer, f func(t *testing.T, w *world, e *Engine)) {
	t.Helper()
	inBubble(t, func(w *world, c *Config) {
		c.OpenLanguage = func(ctx context.Context, name string, o *gomflux.LanguageOptions) (LanguageModel, error) {
			w.add("open language %s", name)
			if name == "b" {
				o.MakeRoom()
			}
			o.Progress(gomflux.Progress{Phase: gomflux.PhaseLoad, Bytes: 1, TotalBytes: 2})
			if err := sleep(ctx, w.loading); err != nil {
				return nil, err
			}
			if name == "c" {
				return nil, errors.New("no head")
			}
			opened := *l
			opened.world, opened.name = w, "language "+name
			return &opened, nil
		}
	}, f)
}

func submitText(t *testing.T, e *Engine, r Request) *Job {
	t.Helper()
	if r.Language == nil {
		r.Language = &gomflux.LanguageOptions{}
	}
	if r.Messages == nil {
		r.Options.Prompt = "p"
	}
	j, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func question(text string) []gomflux.Message {
	return []gomflux.Message{{Role: "user", Parts: []gomflux.Part{{Text: text}}}}
}

// TestText: the language model stays for the next text, next to the model for images, until this generates.
func TestText(t *testing.T) {
	inTextBubble(t, &writer{tokens: 3}, func(t *testing.T, w *world, e *Engine) {
		submit(t, e, "A", "a", "1").Wait(t.Context())
		w.take()
		j := submitText(t, e, Request{Messages: question("q1")})
		var text, thinking strings.Builder
		var kinds []Kind
		for event := range j.Events(t.Context(), 0) {
			kinds = append(kinds, event.Kind)
			if event.Thinking {
				thinking.WriteString(event.Text)
			} else {
				text.WriteString(event.Text)
			}
			if event.Kind == EventText && event.Status.State != Writing {
				t.Errorf("state %s", event.Status.State)
			}
		}
		if text.String() != "word word word end" || thinking.String() != "hm " || kinds[len(kinds)-2] != EventWritten {
			t.Errorf("text %q, thinking %q, events %v", text.String(), thinking.String(), kinds)
		}
		s := j.Status()
		if a := s.Answer; s.State != Done || a == nil || a.Text != "an answer" || a.PromptTokens != 3 || j.submitted().Messages != nil {
			t.Errorf("status %+v, answer %+v", s, s.Answer)
		}
		// a rewriting alone, and an image with one: the estimate knows both
		waits := submitText(t, e, Request{Language: &gomflux.LanguageOptions{Model: "a"}, Seeds: []uint64{1}, Model: "a"})
		other := submitText(t, e, Request{})
		time.Sleep(time.Second)
		if left := waits.Status().Left; left != 9*time.Second { // 2 of the other text, 3 of its own, 4 of the image
			t.Errorf("%v left", left)
		}
		if waits.Wait(t.Context()) != nil || other.Wait(t.Context()) != nil {
			t.Error("the jobs failed")
		}
		if a := other.Status().Answer; a == nil || a.Text != "better p" || len(waits.Status().Warnings) != 1 {
			t.Errorf("answer %+v, warnings %v", a, waits.Status().Warnings)
		}
		o := w.asked[len(w.asked)-1]
		if o.Prompt != "better p" || o.OriginalPrompt != "p" || o.EnhancedBy != "language a" {
			t.Errorf("options %+v", o)
		}
		// texts are first while the language model is there
		expectLog(t, w, "open language a", "write language a q1", "write language a p for a", "write language a p for a",
			"close language a", "run a better p")
	})
}

// TestTextMemory: a language model that does not fit takes the place of the other one, and goes with it.
func TestTextMemory(t *testing.T) {
	inTextBubble(t, &writer{tokens: 1}, func(t *testing.T, w *world, e *Engine) {
		submit(t, e, "A", "a", "1").Wait(t.Context())
		submitText(t, e, Request{Language: &gomflux.LanguageOptions{Model: "b"}, Seeds: []uint64{1}}).Wait(t.Context())
		submitText(t, e, Request{Model: "a", Language: &gomflux.LanguageOptions{Model: "b"}}).Wait(t.Context())
		time.Sleep(2 * time.Minute) // KeepAlive
		expectLog(t, w, "open a", "run a 1", "open language b", "close a", "write language b p for a", "close language b", "open a",
			"run a better p", "open language b", "close a", "write language b p for a", "close language b")
		submitText(t, e, Request{Messages: question("q")}).Wait(t.Context())
		w.take()
		e.Unload()
		expectLog(t, w, "close language a")
	})
}

// TestOnlyWrites: a model that has nothing but a language model answers and rewrites prompts for others.
func TestOnlyWrites(t *testing.T) {
	inTextBubble(t, &writer{tokens: 1}, func(t *testing.T, w *world, e *Engine) {
		words := &gomflux.LanguageOptions{Model: "words"}
		submitText(t, e, Request{Model: "words", Messages: question("q")}).Wait(t.Context())
		submitText(t, e, Request{Language: words, Seeds: []uint64{1}}).Wait(t.Context())
		expectLog(t, w, "open language words", "write language words q", "write language words p for a", "close language words", "open a",
			"run a better p")
		for name, r := range map[string]Request{
			"images": {Model: "words", Seeds: []uint64{1}}, "rewriting": {Model: "words", Language: words},
			"a model that is not here": {Model: "away", Messages: question("q"), Language: &gomflux.LanguageOptions{}},
		} {
			if _, err := e.Submit(t.Context(), r); !errors.Is(err, gomflux.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestTextEnds cancels and skips texts while the model is loaded and while it writes.
func TestTextEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		after  time.Duration
		images int
		skip   bool
		state  State
		prompt string // of the image
	}{
		{"cancel a text that waits", 0, 0, false, Canceled, ""},
		{"cancel a text", 12 * time.Second, 0, false, Canceled, ""},
		{"skip a text", 12 * time.Second, 0, true, Canceled, ""},
		{"cancel an image", 12 * time.Second, 1, false, Canceled, ""},
		{"skip while loading", 5 * time.Second, 1, true, Done, "p"},
		{"skip before it starts", 0, 1, true, Done, "p"},
		{"skip while writing", 12 * time.Second, 1, true, Done, "p"},
		{"skip later", 24 * time.Second, 1, true, Done, "better p"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inTextBubble(t, &writer{tokens: 5}, func(t *testing.T, w *world, e *Engine) {
				j := submitText(t, e, Request{Seeds: make([]uint64, test.images)})
				time.Sleep(test.after)
				if test.skip {
					j.Skip()
				} else {
					j.Cancel()
				}
				err := j.Wait(t.Context())
				if s := j.Status(); s.State != test.state || (err == nil) != (test.state == Done) {
					t.Errorf("status %+v, %v", s, err)
				}
				got := ""
				if len(w.asked) > 0 {
					got = w.asked[0].Prompt
				}
				if got != test.prompt {
					t.Errorf("an image for %q, expected %q", got, test.prompt)
				}
			})
		})
	}
}

// TestTextFails: without a rewritten prompt there is no image, unless the user wants it.
func TestTextFails(t *testing.T) {
	inTextBubble(t, &writer{err: errors.New("NaN")}, func(t *testing.T, w *world, e *Engine) {
		for name, r := range map[string]Request{
			"NaN":     {Seeds: []uint64{1}},
			"no head": {Seeds: []uint64{1}, Language: &gomflux.LanguageOptions{Model: "c"}},
		} {
			if err := submitText(t, e, r).Wait(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(w.asked) > 0 {
			t.Errorf("images were generated: %+v", w.asked)
		}
		_, err := e.Submit(t.Context(), Request{Seeds: []uint64{1}, Language: &gomflux.LanguageOptions{Model: "away"}})
		if !errors.Is(err, gomflux.ErrNotFound) {
			t.Errorf("a language model that is not here: %v", err)
		}
		shown := []gomflux.Message{{Role: "user", Parts: []gomflux.Part{{Text: "q"}, {Image: image.NewGray(image.Rect(0, 0, 1, 1))}}}}
		_, err = e.Submit(t.Context(), Request{Model: "words", Messages: shown, Language: &gomflux.LanguageOptions{}})
		if !errors.Is(err, gomflux.ErrRequest) || err.Error() != "the language model of words cannot see images" {
			t.Errorf("an image for a language model without vision: %v", err)
		}
		if _, err := e.Submit(t.Context(), Request{}); !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("neither text nor images: %v", err)
		}
	})
	inTextBubble(t, &writer{err: errs.Unsupported(errors.New("a template"))}, func(t *testing.T, w *world, e *Engine) {
		for _, r := range []Request{{Seeds: []uint64{1}}, {}, {Messages: question("q")}} {
			err := submitText(t, e, r).Wait(t.Context())
			if !errors.Is(err, gomflux.ErrNotFound) || err.Error() != "model a: a template" || len(w.asked) > 0 {
				t.Errorf("a model that is not supported: %v, images %+v", err, w.asked)
			}
		}
	})
	inBubble(t, nil, func(t *testing.T, _ *world, e *Engine) {
		if _, err := e.Submit(t.Context(), Request{Language: &gomflux.LanguageOptions{}}); !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("without language models: %v", err)
		}
	})
}
