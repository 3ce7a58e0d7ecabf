package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	maxTokens   = 8192 // of an answer
	usualTokens = 1024
	maxStops    = 16
	maxMessages = 1000
	// The sampling of requests that leave it out.
	usualTemperature, usualTopP = 0.7, 0.95

	messagesField = "messages"
)

// chat answers a conversation. Fields that have no effect here are ignored, since chat clients send many.
func (h *Handler) chat(w http.ResponseWriter, r *http.Request) error {
	f, err := h.read(w, r, h.config.MaxBody, false, nil)
	if err != nil {
		return err
	}
	x, err := h.chatRequest(f)
	if err != nil {
		return err
	}
	var options struct {
		Usage bool `json:"include_usage"`
	}
	_ = json.Unmarshal([]byte(f.values["stream_options"]), &options) // false if it fails
	id, created := "chatcmpl-"+engine.NewID(), h.config.Now().Unix()
	// completion returns OpenAI's ChatCompletion or, in a stream, ChatCompletionChunk
	completion := func(object string, usage map[string]int, choices ...map[string]any) map[string]any {
		c := map[string]any{"id": id, "object": object, "created": created, "model": x.job.Model, "choices": choices}
		if choices == nil {
			c["choices"] = []any{}
		}
		if usage != nil {
			c["usage"] = usage
		}
		return c
	}
	role := "assistant"
	chunk := func(s *api.Stream, delta map[string]string, finish any) error {
		if role != "" { // only the first one has it
			delta["role"], role = role, ""
		}
		return s.Event(0, "", completion("chat.completion.chunk", nil,
			map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}))
	}
	event := func(s *api.Stream, e engine.Event) error {
		switch a := e.Status.Answer; {
		case e.Kind == engine.EventText && !e.Thinking:
			return chunk(s, map[string]string{"content": e.Text}, nil)
		case e.Kind == engine.EventWritten:
			finish, usage := finished(a)
			if err := chunk(s, map[string]string{}, finish); err != nil || !options.Usage {
				return err
			}
			return s.Event(0, "", completion("chat.completion.chunk", usage))
		}
		return ended(s, e)
	}
	return h.run(w, r, x, event, func(job api.Job) (any, error) {
		a := job.Status().Answer
		finish, usage := finished(a)
		message := map[string]string{"role": role, "content": a.Text}
		return completion("chat.completion", usage,
			map[string]any{"index": 0, "message": message, "logprobs": nil, "finish_reason": finish}), nil
	})
}

// finished returns why an answer has ended, and its usage.
func finished(a *gomflux.Answer) (reason string, usage map[string]int) {
	if reason = "length"; a.Whole {
		reason = "stop"
	}
	return reason, map[string]int{
		"prompt_tokens": a.PromptTokens, "completion_tokens": a.Tokens, "total_tokens": a.PromptTokens + a.Tokens,
	}
}

// chatRequest reads a request.
func (h *Handler) chatRequest(f *form) (*exchange, error) {
	x := &exchange{stream: f.bool("stream")}
	x.job.Language = chatOptions(f)
	name := f.string("model")
	raw, ok := f.take(messagesField)
	switch {
	case f.err != nil:
		return nil, f.err
	case !ok:
		return nil, invalid(messagesField, "is missing")
	}
	var err error
	if x.job.Messages, err = f.messages(raw); err != nil {
		return nil, err
	}
	if err := x.chooseModel(h.engine.Models(), name, len(f.images) > 0); err != nil {
		return nil, err
	}
	images, _, err := f.decode(api.InputPixels(h.config.MaxPixels))
	for _, message := range x.job.Messages {
		for i, p := range message.Parts {
			if p.Text == "" && len(images) > 0 {
				message.Parts[i].Image, images = images[0].Pixels(), images[1:]
			}
		}
	}
	return x, err
}

// theirChat matches the names of OpenAI's models.
var theirChat = regexp.MustCompile(`^(gpt-|chatgpt-|o\d)`)

// chooseModel chooses the model of a name. The names of OpenAI's models, and no name, stand for the default
// model, or for the first one that can answer.
func (x *exchange) chooseModel(models []engine.ModelInfo, name string, sees bool) error {
	if name != "" && !theirChat.MatchString(name) {
		m, _, err := named(models, name, false, true)
		if err == nil {
			x.job.Model = m.Name
		}
		return err
	}
	m, ok := api.LanguageModel(models, "", sees)
	if !ok {
		return unknownModel("no model of this server has a language model%s", map[bool]string{true: " that sees images"}[sees])
	}
	if x.job.Model = m; name != "" {
		x.warnings = append(x.warnings, m+" was used, since "+name+" is a model of OpenAI")
	}
	return nil
}

// chatOptions reads the options of the answer.
func chatOptions(f *form) *gomflux.LanguageOptions {
	const most = 1 << 30
	s := &gomflux.Sampling{Temperature: usualTemperature, TopP: usualTopP}
	o := &gomflux.LanguageOptions{Sampling: s, Seed: uint64(rand.Uint32()), MaxTokens: usualTokens}
	for name, to := range map[string]*float64{
		"temperature": &s.Temperature, "top_p": &s.TopP, "min_p": &s.MinP, "repetition_penalty": &s.RepetitionPenalty,
		"presence_penalty": &s.PresencePenalty, "frequency_penalty": &s.FrequencyPenalty,
	} {
		if v, ok := f.float(name); ok {
			*to = v
		}
	}
	k, _ := f.int("top_k", -1, most)
	s.TopK = max(0, k)
	for _, name := range []string{"max_tokens", "max_completion_tokens"} { // the newer one counts
		if n, _ := f.int(name, -1, most); n > 0 {
			o.MaxTokens = min(n, maxTokens)
		}
	}
	if !strings.HasPrefix(f.values["seed"], "-") { // which is a random one for many programs
		if seed := f.seed("seed"); seed != nil {
			o.Seed = *seed
		}
	}
	if n, _ := f.int("n", 1, most); n > 1 {
		f.fail(unsupported("n", "this server writes one answer at a time (expected 1)"))
	}
	var format struct{ Type string }
	if v, ok := f.values["response_format"]; ok && json.Unmarshal([]byte(v), &format) == nil && format.Type != "text" {
		f.fail(unsupported("response_format", "this server writes plain text (expected the type text)"))
	}
	if v, ok := f.values["stop"]; ok {
		o.Stop = make([]string, 1)
		if json.Unmarshal([]byte(v), &o.Stop[0]) != nil && json.Unmarshal([]byte(v), &o.Stop) != nil {
			f.invalid("stop", "expected a string or an array of strings")
		}
	}
	if len(o.Stop) > maxStops {
		f.invalid("stop", "expected at most %d texts, found %d", maxStops, len(o.Stop))
	}
	o.Stop = slices.DeleteFunc(o.Stop, func(s string) bool { return s == "" })
	return o
}

// roles are those of messages, and what they are for the language model. Those of tools are there if a chat goes on in
// which another model called some.
var roles = map[string]string{"system": "system", "developer": "system", "user": "user", "tool": "user", "assistant": "assistant"}

// messages reads the messages of a conversation, and adds their images to the form. The parts of these are
// empty.
func (f *form) messages(text string) (messages []gomflux.Message, err error) {
	var all []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal([]byte(text), &all) != nil {
		return nil, invalid(messagesField, "expected an array of objects with content and a role, which is a string")
	}
	if len(all) == 0 || len(all) > maxMessages {
		return nil, invalid(messagesField, "expected 1 to %d messages, found %d", maxMessages, len(all))
	}
	for i, each := range all {
		name := fmt.Sprintf("%s[%d]", messagesField, i)
		m := gomflux.Message{Role: roles[each.Role]}
		if m.Role == "" {
			return nil, unsupported(name+".role", "expected system, user, assistant or tool, found %s", quoted(each.Role))
		}
		if m.Parts, err = f.parts(name+".content", each.Content); err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// parts reads the content of a message: a text, or parts.
func (f *form) parts(name string, raw json.RawMessage) (parts []gomflux.Part, err error) {
	var text *string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		if text == nil || *text == "" {
			return nil, nil
		}
		return []gomflux.Part{{Text: *text}}, nil
	}
	var all []struct {
		Type  string          `json:"type"`
		Text  string          `json:"text"`
		Image json.RawMessage `json:"image_url"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, invalid(name, "expected a string or an array of parts")
	}
	for i, p := range all {
		at := fmt.Sprintf("%s[%d]", name, i)
		switch p.Type {
		case "text":
			if p.Text != "" { // an empty part stands for an image
				parts = append(parts, gomflux.Part{Text: p.Text})
			}
		case "image_url":
			var image struct {
				URL string `json:"url"`
			}
			if json.Unmarshal(p.Image, &image) != nil && json.Unmarshal(p.Image, &image.URL) != nil {
				return nil, invalid(at, "image_url: expected an object with url")
			}
			if err := f.addURL(at+".image_url", image.URL); err != nil {
				return nil, err
			}
			parts = append(parts, gomflux.Part{})
		default:
			return nil, unsupported(at+".type", "expected text or image_url, found %s", quoted(p.Type))
		}
	}
	return parts, nil
}
