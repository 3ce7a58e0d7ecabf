package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
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
)

const messagesField = "messages"

// A chatRequest is a request for a chat completion. Fields that have no effect here are ignored, since chat
// clients send many.
type chatRequest struct {
	job          engine.Request
	stream       bool
	includeUsage bool
	warning      string
}

// A completion is OpenAI's ChatCompletion or, in a stream, ChatCompletionChunk.
type completion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *chatUsage   `json:"usage,omitempty"`
}

type chatChoice struct {
	Index        int          `json:"index"`
	Message      *chatMessage `json:"message,omitempty"`
	Delta        *chatMessage `json:"delta,omitempty"`
	LogProbs     *struct{}    `json:"logprobs"`
	FinishReason *string      `json:"finish_reason"`
}

type chatMessage struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// chat answers a conversation. The job is canceled when the client goes away.
func (h *Handler) chat(w http.ResponseWriter, r *http.Request) {
	req, err := h.chatRequest(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	job, ok := h.submit(w, r, req.job)
	if !ok {
		return
	}
	defer job.Cancel() // no effect on a job that has ended
	if req.warning != "" {
		w.Header().Set("X-Gomflux-Warning", ascii(req.warning))
	}
	c := completion{ID: "chatcmpl-" + engine.NewID(), Object: "chat.completion", Created: h.config.Now().Unix(), Model: req.job.Model}
	if req.stream {
		c.Object += ".chunk"
		h.streamChat(w, r, req, job, c)
		return
	}
	if !wait(w, r, job) {
		return
	}
	a := job.Status().Answer
	c.Choices = []chatChoice{{Message: &chatMessage{"assistant", &a.Text}, FinishReason: finishReason(a)}}
	c.Usage = usageOfText(a)
	writeJSON(w, http.StatusOK, c)
}

func finishReason(a *gomflux.Answer) *string {
	reason := "length"
	if a.Whole {
		reason = "stop"
	}
	return &reason
}

func usageOfText(a *gomflux.Answer) *chatUsage {
	return &chatUsage{a.PromptTokens, a.Tokens, a.PromptTokens + a.Tokens}
}

// streamChat answers with the text as it is written.
func (h *Handler) streamChat(w http.ResponseWriter, r *http.Request, req *chatRequest, job Job, c completion) {
	chunk := func(s *stream, role string, text *string, finish *string) error {
		c.Choices = []chatChoice{{Delta: &chatMessage{role, text}, FinishReason: finish}}
		return s.sendJSON("", c)
	}
	role := "assistant"
	h.follow(w, r, job, func(s *stream, e engine.Event) (done bool, err error) {
		switch a := e.Status.Answer; {
		case e.Kind == engine.EventText && !e.Thinking:
			err = chunk(s, role, &e.Text, nil)
			role = ""
		case e.Kind == engine.EventWritten:
			if err = chunk(s, role, nil, finishReason(a)); err == nil && req.includeUsage {
				c.Choices, c.Usage = []chatChoice{}, usageOfText(a)
				err = s.sendJSON("", c)
			}
		default:
			return ended(s, e)
		}
		return false, err
	})
}

// chatRequest reads a request.
func (h *Handler) chatRequest(w http.ResponseWriter, r *http.Request) (*chatRequest, error) {
	f, err := h.read(w, r, h.config.MaxBody, func(body io.Reader, kind, _ string) (*form, error) {
		return readFields(body, kind, "application/json", nil)
	})
	if err != nil {
		return nil, err
	}
	req := &chatRequest{}
	if err := req.parseOptions(f.fields); err != nil {
		return nil, err
	}
	raw, ok := f.fields[messagesField]
	if !ok {
		return nil, invalid(messagesField, "is missing")
	}
	delete(f.fields, messagesField)
	if req.job.Messages, err = f.messages(raw.text); err != nil {
		return nil, err
	}
	name, err := f.fields.string("model")
	if err != nil {
		return nil, err
	}
	if err := req.chooseModel(h.engine.Models(), name, len(f.images) > 0); err != nil {
		return nil, err
	}
	images, _, err := f.decode(h.config.MaxInputPixels)
	placeImages(req.job.Messages, images)
	return req, err
}

// placeImages gives the parts of messages that are no text their images, in order.
func placeImages(messages []gomflux.Message, images []*picture.Picture) {
	for _, message := range messages {
		for i, p := range message.Parts {
			if p == (gomflux.Part{}) && len(images) > 0 {
				message.Parts[i].Image, images = images[0].Pixels(), images[1:]
			}
		}
	}
}

// theirChat matches the names of OpenAI's models.
var theirChat = regexp.MustCompile(`^(gpt-|chatgpt-|o\d)`)

// chooseModel chooses the model of a name. The names of OpenAI's models, and no name, stand for the default
// model, or for the first one that can answer.
func (r *chatRequest) chooseModel(models []engine.ModelInfo, name string, sees bool) error {
	if name != "" && !theirChat.MatchString(name) {
		m, err := onlyWriter(models, name), error(nil)
		if m == nil {
			m, _, err = named(models, name, false)
		}
		if err == nil {
			r.job.Model = m.Name
		}
		return err
	}
	m, ok := api.LanguageModel(models, "", sees)
	if !ok {
		return unknownModel("no model of this server has a language model%s", map[bool]string{true: " that sees images"}[sees])
	}
	if r.job.Model = m; name != "" {
		r.warning = m + " was used, since " + name + " is a model of OpenAI"
	}
	return nil
}

// onlyWriter returns the model of a name if that has nothing but a language model, else nil.
func onlyWriter(models []engine.ModelInfo, name string) *engine.ModelInfo {
	if i := slices.IndexFunc(models, func(m engine.ModelInfo) bool { return m.Is(name) && m.OnlyWrites }); i >= 0 {
		return &models[i]
	}
	return nil
}

// parseOptions reads the options of the answer.
func (r *chatRequest) parseOptions(f fields) (err error) {
	s := &gomflux.Sampling{Temperature: usualTemperature, TopP: usualTopP}
	for name, to := range map[string]*float64{
		"temperature": &s.Temperature, "top_p": &s.TopP, "min_p": &s.MinP, "repetition_penalty": &s.RepetitionPenalty,
		"presence_penalty": &s.PresencePenalty, "frequency_penalty": &s.FrequencyPenalty,
	} {
		v, ok, err := f.float(name)
		if err != nil {
			return err
		}
		if ok {
			*to = v
		}
	}
	const most = 1 << 30
	if s.TopK, _, err = f.int("top_k", -1, most); err != nil {
		return err
	}
	s.TopK = max(0, s.TopK)
	o := &gomflux.LanguageOptions{Sampling: s, Seed: uint64(rand.Uint32())}
	r.job.Language = o
	for _, name := range []string{"max_tokens", "max_completion_tokens"} { // the newer one counts
		n, _, err := f.int(name, -1, most)
		if err != nil {
			return err
		}
		if n > 0 {
			o.MaxTokens = min(n, maxTokens)
		}
	}
	o.MaxTokens = cmp.Or(o.MaxTokens, usualTokens)
	if v, ok := f["seed"]; ok && !strings.HasPrefix(v.text, "-") { // which is a random one for many programs
		seed, err := f.seed("seed")
		if err != nil {
			return err
		}
		o.Seed = *seed
	}
	if n, _, err := f.int("n", 1, most); err != nil {
		return err
	} else if n > 1 {
		return unsupported("n", "this server writes one answer at a time (expected 1)")
	}
	if o.Stop, err = f.stops(); err != nil {
		return err
	}
	if r.stream, err = f.bool("stream"); err != nil {
		return err
	}
	var format, stream struct {
		Type  string `json:"type"`
		Usage bool   `json:"include_usage"`
	}
	if v, ok := f["response_format"]; ok && json.Unmarshal([]byte(v.text), &format) == nil && format.Type != "text" {
		return unsupported("response_format", "this server writes plain text (expected the type text)")
	}
	if v, ok := f["stream_options"]; ok && json.Unmarshal([]byte(v.text), &stream) == nil {
		r.includeUsage = stream.Usage
	}
	return nil
}

// stops reads the texts that end an answer.
func (f fields) stops() (stops []string, err error) {
	v, ok := f["stop"]
	if !ok {
		return nil, nil
	}
	var one string
	if json.Unmarshal([]byte(v.text), &one) == nil {
		stops = []string{one}
	} else if json.Unmarshal([]byte(v.text), &stops) != nil {
		return nil, invalid("stop", "expected a string or an array of strings")
	}
	if len(stops) > maxStops {
		return nil, invalid("stop", "expected at most %d texts, found %d", maxStops, len(stops))
	}
	return slices.DeleteFunc(stops, func(s string) bool { return s == "" }), nil
}

// messages reads the messages of a conversation, and adds their images to the form. The parts of these are
// empty.
func (f *form) messages(text string) (messages []gomflux.Message, err error) {
	var all []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, invalid(messagesField, "expected an array of messages: %v", err)
	}
	if len(all) == 0 || len(all) > maxMessages {
		return nil, invalid(messagesField, "expected 1 to %d messages, found %d", maxMessages, len(all))
	}
	for i, each := range all {
		name := fmt.Sprintf("%s[%d]", messagesField, i)
		m := gomflux.Message{Role: each.Role}
		switch m.Role {
		case "developer":
			m.Role = "system"
		case "tool": // a chat in which another model called tools goes on
			m.Role = "user"
		case "system", "user", "assistant":
		default:
			return nil, unsupported(name+".role", "expected system, user, assistant or tool, found %s", quoted(m.Role))
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
			data, err := fromURL(at+".image_url", image.URL)
			if err != nil {
				return nil, err
			}
			if err := f.add(upload{param: at, data: data}); err != nil {
				return nil, err
			}
			parts = append(parts, gomflux.Part{})
		default:
			return nil, unsupported(at+".type", "expected text or image_url, found %s", quoted(p.Type))
		}
	}
	return parts, nil
}
