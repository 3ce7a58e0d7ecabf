package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/engine"
)

const completions = "/v1/chat/completions"

// chatBodies are requests in the forms that the code of Open WebUI 0.12.4, SillyTavern and captioners makes; IMAGE stands for a data: URL.
var chatBodies = map[string]struct {
	body  string
	model string
	want  gomflux.LanguageOptions // with the sampling below
	s     gomflux.Sampling
}{
	"Open WebUI's prompts for images": {
		body: `{"model": "owner/editor", "messages": [{"role": "user", "content": "a cat"}], "stream": false,
			"metadata": {"task": "image_prompt_generation"}}`,
		model: "owner/editor", want: gomflux.LanguageOptions{MaxTokens: 1024}, s: gomflux.Sampling{Temperature: 0.7, TopP: 0.95}},
	"Open WebUI, which goes on with an answer": {
		body: `{"model": "owner/editor", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
			{"role": "assistant", "content": "b"}], "stream": false, "continue_final_message": true, "add_generation_prompt": false,
			"logit_bias": {"5": 1}, "user": {"name": "x", "id": "y", "email": "z", "role": "user"}, "max_tokens": 4}`,
		model: "owner/editor", want: gomflux.LanguageOptions{MaxTokens: 4}, s: gomflux.Sampling{Temperature: 0.7, TopP: 0.95}},
	"Open WebUI after another model has called a tool": {
		body: `{"model": "owner/editor", "messages": [{"role": "user", "content": "draw"}, {"role": "assistant", "content": "",
			"tool_calls": [{"id": "c", "type": "function", "function": {"name": "generate_image", "arguments": "{}"}}]},
			{"role": "tool", "tool_call_id": "c", "content": "done"}, {"role": "user", "content": "and now?"}],
			"tools": [{"type": "function", "function": {"name": "generate_image", "parameters": {}}}]}`,
		model: "owner/editor", want: gomflux.LanguageOptions{MaxTokens: 1024}, s: gomflux.Sampling{Temperature: 0.7, TopP: 0.95}},
	"a captioner for LoRAs, made for vLLM": {
		body: `{"model": "owner/seer", "messages": [{"role": "system", "content": "You caption."}, {"role": "user", "content": [
			{"type": "text", "text": "Describe."}, {"type": "image_url", "image_url": {"url": "IMAGE"}}]}], "max_tokens": 512,
			"temperature": 0.6, "top_p": 0.9}`,
		model: "owner/seer", want: gomflux.LanguageOptions{MaxTokens: 512}, s: gomflux.Sampling{Temperature: 0.6, TopP: 0.9}},
	"SillyTavern's captions": {
		body: `{"model": "gpt-4-turbo", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is in it?"},
			{"type": "image_url", "image_url": {"url": "IMAGE", "detail": "auto"}}]}], "max_tokens": 500}`,
		model: "owner/seer", want: gomflux.LanguageOptions{MaxTokens: 500}, s: gomflux.Sampling{Temperature: 0.7, TopP: 0.95}},
	"a captioner": {
		body: `{"model": "owner/seer", "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": [
			{"type": "image_url", "image_url": {"url": "IMAGE"}}, {"type": "text", "text": "Describe it."}]}],
			"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2,
			"frequency_penalty": 0.3, "max_completion_tokens": 100000, "max_tokens": 5, "seed": 7, "stop": ["\n\n", ""],
			"chat_template_kwargs": {"enable_thinking": false}}`,
		model: "owner/seer", want: gomflux.LanguageOptions{MaxTokens: 8192, Seed: 7, Stop: []string{"\n\n"}},
		s: gomflux.Sampling{TopP: 0.5, MinP: 0.1, RepetitionPenalty: 1.1, PresencePenalty: 0.2, FrequencyPenalty: 0.3}},
	"a language model": {
		body:  `{"model": "words", "messages": [{"role": "user", "content": "a"}]}`,
		model: "words", want: gomflux.LanguageOptions{MaxTokens: 1024}, s: gomflux.Sampling{Temperature: 0.7, TopP: 0.95}},
	"LM Studio's example": {
		body: `{"messages": [{"role": "developer", "content": "Rhyme."}, {"role": "user", "content": "a"},
			{"role": "assistant", "content": null}, {"role": "user", "content": "b"}], "temperature": 0.8, "max_tokens": -1,
			"seed": -1, "stop": "x", "stream": false}`,
		model: "owner/editor", want: gomflux.LanguageOptions{MaxTokens: 1024, Stop: []string{"x"}},
		s: gomflux.Sampling{Temperature: 0.8, TopP: 0.95}},
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

func TestChat(t *testing.T) {
	url := dataURL(pngOf(t, testImage(8, 4, 0)))
	for name, test := range chatBodies {
		t.Run(name, func(t *testing.T) {
			e := newFake()
			r := postJSON(New(e, testConfig()), completions, strings.ReplaceAll(test.body, "IMAGE", url))
			data, err := io.ReadAll(r.Body)
			var c completion
			if err = errors.Join(err, json.Unmarshal(data, &c)); err != nil || r.StatusCode != 200 || c.Object != "chat.completion" {
				t.Fatalf("status %d, %s, %v", r.StatusCode, data, err)
			}
			choice := c.Choices[0]
			if c.Model != test.model || *choice.Message.Content != "a cat" || choice.Message.Role != "assistant" ||
				*choice.FinishReason != "stop" || *c.Usage != (chatUsage{9, 3, 12}) {
				t.Errorf("answer %s", data)
			}
			q := e.requests[0]
			got := *q.Language
			if test.want.Seed == 0 {
				got.Seed = 0
			}
			sampling := got.Sampling
			if got.Sampling = nil; !reflect.DeepEqual(got, test.want) || *sampling != test.s || q.Seeds != nil {
				t.Errorf("options %+v, sampling %+v", got, sampling)
			}
			images := 0
			for _, m := range q.Messages {
				for _, p := range m.Parts {
					if (p.Image == nil) == (p.Text == "") {
						t.Errorf("part %+v", p)
					}
					if p.Image != nil && p.Image.Bounds().Dx() == 8 {
						images++
					}
				}
			}
			if images != strings.Count(test.body, "IMAGE") || q.Messages[0].Role == "developer" {
				t.Errorf("%d images, messages %+v", images, q.Messages)
			}
		})
	}
}

func TestChatStream(t *testing.T) {
	const body = `{"messages": [{"role": "user", "content": "a"}], "model": "owner/editor", "max_tokens": 3, "stream": true%s}`
	for _, usage := range []bool{false, true} {
		options := ""
		if usage {
			options = `, "stream_options": {"include_usage": true}`
		}
		r := postJSON(New(newFake(), testConfig()), completions, fmt.Sprintf(body, options))
		data, err := io.ReadAll(r.Body)
		if err != nil || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
			t.Fatal(r.Header, err)
		}
		events := strings.Split(strings.TrimSuffix(string(data), "\n\n"), "\n\n")
		var text, finish, roles string
		var used *chatUsage
		for _, e := range events[:len(events)-1] {
			var c completion
			if err := json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &c); err != nil || c.Object != "chat.completion.chunk" {
				t.Fatalf("%s: %v", e, err)
			}
			for _, choice := range c.Choices {
				if roles += choice.Delta.Role; choice.Delta.Content != nil {
					text += *choice.Delta.Content
				}
				if choice.FinishReason != nil {
					finish += *choice.FinishReason
				}
			}
			used = c.Usage
		}
		if text != "a cat" || finish != "length" || roles != "assistant" ||
			events[len(events)-1] != "data: [DONE]" || (used != nil) != usage {
			t.Errorf("events %q", events)
		}
	}
	failing := newFake()
	failing.fail = fmt.Errorf("x: %w", gomflux.ErrRequest)
	if r := postJSON(New(failing, testConfig()), completions, fmt.Sprintf(body, "")); r.StatusCode != http.StatusBadRequest {
		t.Errorf("a job that fails: status %d", r.StatusCode)
	}
}

func TestChatErrors(t *testing.T) {
	message := func(content string) string {
		return `{"model": "owner/seer", "messages": [{"role": "user", "content": ` + content + `}]}`
	}
	image := func(url string) string {
		return message(`[{"type": "image_url", "image_url": {"url": "` + url + `"}}]`)
	}
	for body, want := range map[string]string{
		`{}`: "messages: is missing", `{"messages": []}`: "expected 1 to", `{"messages": {}}`: "expected an array",
		`{"messages": [{"role": "robot", "content": "x"}]}`: "messages[0].role", message("3"): "messages[0].content",
		`{"messages": [{"role": 5}]}`:            "messages: expected an array of objects",
		`{"messages": ["x"]}`:                    "messages: expected an array of objects",
		message(`[{"type": "text", "text": 3}]`): "messages[0].content: expected a string",
		message(`[{"type": "input_audio"}]`):     "messages[0].content[0].type",
		message(`[{"type": "image_url"}]`):       "image_url", image("https://example.org/x.png"): "fetches no URLs",
		image("file:///etc/passwd"): "fetches no URLs", image("data:image/png;base64,AAAA"): "not a PNG",
		strings.Replace(message(`"x"`), "{", `{"n": 2, `, 1):                                     "one answer",
		strings.Replace(message(`"x"`), "{", `{"temperature": "x", `, 1):                         "temperature: expected a number",
		strings.Replace(message(`"x"`), "{", `{"max_tokens": 1.5, `, 1):                          "max_tokens",
		strings.Replace(message(`"x"`), "{", `{"stop": 3, `, 1):                                  "stop",
		strings.Replace(message(`"x"`), "{", `{"response_format": {"type": "json_object"}, `, 1): "plain text",
		strings.Replace(message(`"x"`), "seer", "gone", 1):                                       "not a model",
	} {
		r := postJSON(New(newFake(), testConfig()), completions, body)
		var e struct{ Error apiError }
		err := json.NewDecoder(r.Body).Decode(&e)
		if err != nil || r.StatusCode/100 != 4 || !strings.Contains(e.Error.Message, want) ||
			strings.Contains(e.Error.Message, "\n") || e.Error.Type != typeRequest {
			t.Errorf("%s: status %d, %+v, %v", body, r.StatusCode, e, err)
		}
	}
	for text, param := range map[string]string{
		"the language model of x cannot see images": messagesField, "text has a NUL character": messagesField,
		"repetition_penalty -1: must be": "repetition_penalty", "the prompt has 9 tokens": messagesField, "model x: lacks a head": "model",
	} {
		failing := newFake()
		failing.fail = errs.Requestf("%s", text)
		_, _, found, _ := decodeError(t, postJSON(New(failing, testConfig()), completions, message(`"x"`)))
		if found != param {
			t.Errorf("%s: of the field %q, expected %q", text, found, param)
		}
	}
	e := newFake()
	e.models = []engine.ModelInfo{{Name: "shapes", Default: true}}
	if r := postJSON(New(e, testConfig()), completions, `{"messages": [{"role": "user", "content": "x"}]}`); r.StatusCode != 404 {
		t.Errorf("without language models: status %d", r.StatusCode)
	}
}

func FuzzChat(f *testing.F) {
	for _, test := range chatBodies {
		f.Add([]byte(strings.ReplaceAll(test.body, "IMAGE", dataURL(pngOf(f, testImage(2, 2, 0))))))
	}
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,AAAA"}]}],"stop":[1]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e := newFake()
		r := postJSON(New(e, testConfig()), completions, string(body))
		switch {
		case r.StatusCode >= 500:
			t.Errorf("status %d", r.StatusCode)
		case r.StatusCode != 200:
			decodeError(t, r)
		default:
			for _, m := range e.requests[0].Messages {
				for _, p := range m.Parts {
					if (p.Image == nil) == (p.Text == "") {
						t.Errorf("a part %+v of %s", p, body)
					}
				}
			}
		}
	})
}
