package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
)

const (
	// textPause is the time between events about a text, whose words come faster.
	textPause = 50 * time.Millisecond
	// eventBytes is about what an event takes in memory.
	eventBytes = 512
)

// A text is what a language model writes for a job.
type text struct {
	began, shown time.Time
	pending      string // not published yet
	thinking     bool   // pending is not part of the answer
	events       int
}

// errSkipped is the cause of the end of a rewriting, after which the job goes on.
var errSkipped = errors.New("the rewriting was skipped")

// languageKey is the key of a language model in the queue.
func languageKey(name string) string { return fmt.Sprintf("language %q", name) }

// key returns the key of the model that a request needs at last.
func (r *Request) key() string {
	if r.Upscale != nil {
		return fmt.Sprintf("upscaler %q", r.Upscale.Upscaler)
	}
	if len(r.Seeds) == 0 {
		return languageKey(r.Language.Model)
	}
	return keyOf(r.Model, r.LoRAs)
}

// checkLanguage names the language model of a request in full.
func (e *Engine) checkLanguage(r *Request) error {
	if r.Language == nil {
		return nil
	}
	if e.c.OpenLanguage == nil {
		return errs.Requestf("this server has no language models")
	}
	info, err := e.Model(cmp.Or(r.Language.Model, r.Model), true)
	if err != nil {
		return err
	}
	isImage := func(p gomflux.Part) bool { return p.Image != nil }
	shown := slices.ContainsFunc(r.Messages, func(m gomflux.Message) bool { return slices.ContainsFunc(m.Parts, isImage) })
	if shown && info.Writes && !info.Sees {
		return errs.Requestf("the language model of %s cannot see images", info.Name)
	}
	language := *r.Language
	language.Model, r.Language = info.Name, &language
	return nil
}

// inMemory returns the key of the model that was loaded last, "" without one.
func (e *Engine) inMemory() string {
	if e.language != nil {
		return languageKey(e.languageName)
	}
	return e.key
}

// loads returns the name under which the time of loading is kept.
func (j *Job) loads() string {
	if j.request.Language != nil && (j.images == 0 || j.answer == nil) {
		return languageKey(j.request.Language.Model)
	}
	return j.model
}

// takes estimates how long the job takes without loading, 0 if nothing is known. Engine.mu must be held.
func (j *Job) takes() time.Duration {
	s := &j.engine.speeds
	d := s.images(j.model, j.work, j.images)
	if l := j.request.Language; l != nil && j.answer == nil {
		d += s.text.of(languageKey(l.Model))
	}
	return d
}

// Skip ends the rewriting of the job's prompt: its images are generated with the prompt as it was typed. A
// job without images is canceled.
func (j *Job) Skip() {
	if j.images == 0 {
		j.Cancel()
		return
	}
	j.skip(errSkipped)
}

// write lets the language model of a job write.
func (e *Engine) write(j *Job, r *Request) error {
	if r.Language == nil {
		return nil
	}
	if j.images > 0 && e.key != j.key {
		e.freeModel() // it would be freed later
	}
	err := e.loadLanguage(j, r.Language.Model)
	if err == nil {
		err = j.protect(func() error { return e.answer(j, r) })
		e.brokenBy(err)
	}
	if err != nil && j.ctx.Err() == nil && context.Cause(j.writes) == errSkipped {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.written(j, &gomflux.Answer{Text: r.Options.Prompt})
		return nil
	}
	return err
}

// loadLanguage loads a language model if it is not in memory. Another one is freed before, and the model for
// images if there is not enough memory.
func (e *Engine) loadLanguage(j *Job, name string) error {
	if e.language != nil && e.languageName == name {
		return nil
	}
	e.freeLanguage()
	m, err := open(j.writes, e, j, name, languageKey(name), func() (LanguageModel, error) {
		return e.c.OpenLanguage(j.writes, name, &gomflux.LanguageOptions{
			Progress: func(p gomflux.Progress) { e.progress(j, p) }, MakeRoom: e.freeModel,
		})
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.language, e.languageName = m, name
	return nil
}

// freeLanguage frees the language model.
func (e *Engine) freeLanguage() {
	e.mu.Lock()
	m := e.language
	e.language, e.languageName = nil, ""
	e.mu.Unlock()
	e.close(m)
}

// answer lets the language model answer the messages of a job, or rewrite its prompt.
func (e *Engine) answer(j *Job, r *Request) error {
	e.mu.Lock()
	began := e.now()
	j.state, j.text.began = Writing, began
	e.mu.Unlock()
	o := *r.Language
	o.Text = func(text string, thinking bool) { e.piece(j, text, thinking) }
	o.Warn = func(message string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		j.request.Warnings = append(j.request.Warnings, message)
	}
	var a *gomflux.Answer
	var err error
	if r.Messages != nil {
		a, err = e.language.Chat(j.writes, r.Messages, &o)
	} else {
		var made *gomflux.Enhanced
		if made, err = e.language.Enhance(j.writes, r.Model, r.Options.Prompt, r.Options.References, &o); err == nil {
			r.Options.Use(made)
			a = &gomflux.Answer{Text: made.Prompt, Model: made.Model, Tokens: made.Tokens, Whole: made.Whole}
		}
	}
	if errors.Is(err, gomflux.ErrUnsupported) {
		return unusable(o.Model, err)
	} else if err != nil {
		return err
	}
	a.Model = o.Model // which clients know
	e.mu.Lock()
	defer e.mu.Unlock()
	e.speeds.text.add(languageKey(o.Model), e.now().Sub(began))
	e.written(j, a)
	return nil
}

// piece publishes a part of a text, now and then.
func (e *Engine) piece(j *Job, text string, thinking bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if thinking != j.text.thinking {
		j.publishText()
	}
	j.text.pending, j.text.thinking = j.text.pending+text, thinking
	if e.now().Sub(j.text.shown) >= textPause {
		j.publishText()
	}
}

// publishText publishes what was not yet. Engine.mu must be held.
func (j *Job) publishText() {
	if t := &j.text; t.pending != "" {
		event := Event{Kind: EventText, Text: t.pending, Thinking: t.thinking}
		t.pending, t.shown = "", j.engine.now()
		t.events++
		j.publish(event)
	}
}

// written publishes that a text is complete. Engine.mu must be held.
func (e *Engine) written(j *Job, a *gomflux.Answer) {
	j.publishText()
	j.answer = a
	j.publish(Event{Kind: EventWritten})
}
