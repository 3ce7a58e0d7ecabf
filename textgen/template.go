package textgen

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A Message is a turn of a conversation.
type Message struct {
	Role    string // system, user or assistant
	Content []Content
}

// A Content is a part of a message: an image, or a text.
type Content struct {
	Text  string
	Image image.Image
}

// TextMessage returns a message that is a text.
func TextMessage(role, text string) Message { return Message{role, []Content{{Text: text}}} }

func (m Message) hasImage() bool {
	return slices.ContainsFunc(m.Content, func(c Content) bool { return c.Image != nil })
}

// A Template is a model's chat template, in Jinja.
type Template struct {
	file     string
	source   string
	template *jinja.Template
	special  map[string]any // bos_token and eos_token of the tokenizer's config
	images   *Template      // for conversations with images, nil if this one is
}

// chatML is the template of Qwen's models whose folders have no template, such as Krea 2's text encoder.
const chatML = `{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// instruct is the template of Mistral's models in whose folders the tokenizer is a tekken.json: those of version 7 and later.
const instruct = `<s>{%- for message in messages -%}
{% if message.role == 'system' %}[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]
{%- elif message.role == 'user' %}[INST]{{ message.content }}[/INST]
{%- else %}{{ message.content }}</s>{% endif %}
{%- endfor %}`

// maxTemplate is the largest size of a chat template in bytes. Published ones have up to 20 kB.
const maxTemplate = 1 << 20

// ReadTemplate reads the chat template of a model from the first folder that has one: in
// chat_template.jinja, chat_template.json or tokenizer_config.json. Without any, it is that of Mistral's or Qwen's
// models if the tokenizer has its tokens, as it is for images if the folder's template has no place for
// them: the tokenizers of Qwen-Image have the template of the language model without vision.
func ReadTemplate(fsys fs.FS, t *tokenizer.Tokenizer, dirs ...string) (*Template, error) {
	template, err := readTemplate(fsys, t, dirs)
	if err == nil {
		template.special, err = specialTokens(fsys, dirs[len(dirs)-1])
	}
	if err == nil && !template.SeesImages() {
		if _, ok := t.ID("<|vision_start|>"); ok {
			template.images, err = parseTemplate("the chat template of Qwen", chatML)
		}
	}
	return template, err
}

func readTemplate(fsys fs.FS, t *tokenizer.Tokenizer, dirs []string) (*Template, error) {
	for _, dir := range dirs {
		name := path.Join(dir, "chat_template.jinja")
		data, err := checkpoint.ReadText(fsys, name, maxTemplate)
		if err == nil {
			return parseTemplate(checkpoint.FullName(fsys, name), string(data))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, file := range []string{"chat_template.json", "tokenizer_config.json"} {
			var config struct {
				ChatTemplate json.RawMessage `json:"chat_template"`
			}
			name := path.Join(dir, file)
			if err := checkpoint.ReadJSON(fsys, name, &config); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			if source, err := defaultTemplate(config.ChatTemplate); err != nil {
				return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, name), err)
			} else if source != "" {
				return parseTemplate(checkpoint.FullName(fsys, name), source)
			}
		}
	}
	if _, ok := t.ID("[SYSTEM_PROMPT]"); ok {
		return parseTemplate("the chat template of Mistral", instruct)
	}
	for _, token := range []string{"<|im_start|>", "<|im_end|>"} {
		if _, ok := t.ID(token); !ok {
			return nil, fmt.Errorf("%s: has no chat_template.jinja, and its tokenizer has no %s: it is not for chat",
				checkpoint.FullName(fsys, cmp.Or(dirs[0], ".")), token)
		}
	}
	return parseTemplate("the chat template of Qwen", chatML)
}

// specialTokens reads the tokens that templates may name from a tokenizer's config. Each is a text, or an
// object with one.
func specialTokens(fsys fs.FS, dir string) (map[string]any, error) {
	special, config := map[string]any{}, map[string]json.RawMessage{}
	err := checkpoint.ReadJSON(fsys, path.Join(dir, "tokenizer_config.json"), &config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, name := range []string{"bos_token", "eos_token"} {
		var token struct{ Content string }
		if json.Unmarshal(config[name], &token.Content) == nil || json.Unmarshal(config[name], &token) == nil {
			special[name] = token.Content
		}
	}
	return special, nil
}

// defaultTemplate returns the template in a value of chat_template: a text, or a list of named texts.
func defaultTemplate(raw json.RawMessage) (source string, err error) {
	if len(raw) == 0 || json.Unmarshal(raw, &source) == nil {
		return source, nil
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(raw, &named) != nil {
		return "", fmt.Errorf("chat_template: expected a text, or a list of named ones, found %s", quote.Name(string(raw)))
	}
	i := slices.IndexFunc(named, func(n struct{ Name, Template string }) bool { return n.Name == "default" })
	if i < 0 {
		return "", errors.New("chat_template: has no template named default")
	}
	return named[i].Template, nil
}

// Text in messages is rendered as marks, of characters for private use, so that no template can change
// or split it, and it is known what was text.
const (
	markStart = "\ue0f0"
	markEnd   = "\ue0f1"
)

func parseTemplate(file, source string) (t *Template, err error) {
	t = &Template{file: file, source: source}
	if strings.Contains(source, markStart) || strings.Contains(source, markEnd) {
		return nil, t.errorf(": has characters for private use, U+E0F0 or U+E0F1")
	}
	if err = checkMacros(source); err == nil {
		t.template, err = jinja.Compile(source)
	}
	if err != nil {
		return nil, t.errorf(": %w", err)
	}
	return t, nil
}

// errorf returns an error that begins with the file and "the chat template".
func (t *Template) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: the chat template"+format, append([]any{t.file}, args...)...)
}

var macros = regexp.MustCompile(`\{%-?\s*macro\s+(\w+)`)

// checkMacros returns an error for macros that call themselves or later ones: the library would end the
// process with a recursion that does not end.
func checkMacros(source string) error {
	found := macros.FindAllStringSubmatchIndex(source, -1)
	for i, m := range found {
		body := source[m[1]:]
		if end := strings.Index(body, "endmacro"); end >= 0 {
			body = body[:end]
		}
		for _, later := range found[i:] {
			name := source[later[2]:later[3]]
			if regexp.MustCompile(`\b` + name + `\s*\(`).MatchString(body) {
				return fmt.Errorf("macro %s calls %s: recursion is %w", source[m[2]:m[3]], name, checkpoint.ErrUnsupported)
			}
		}
	}
	return nil
}

// SeesImages reports whether the template has a place for images.
func (t *Template) SeesImages() bool { return strings.Contains(t.source, "image") }

// ErrRefused is wrapped by the error of a template that refuses a conversation with raise_exception.
var ErrRefused = errors.New("refuses the conversation")

// refuse is the templates' raise_exception.
func refuse(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Undefined(), ErrRefused
	}
	return jinja.Undefined(), fmt.Errorf("%w: %s", ErrRefused, quote.Printable(strings.Trim(args[0].String(), "'")))
}

// Render renders a conversation and, if answer is set, the beginning of the answer, as transformers'
// apply_chat_template does with add_generation_prompt. The texts of messages are plain parts.
func (t *Template) Render(messages []Message, thinking, answer bool) ([]tokenizer.Part, error) {
	return t.render(messages, thinking, answer, false)
}

// render is Render, with lists of parts for all messages if parts is set, and otherwise for those with images.
func (t *Template) render(messages []Message, thinking, answer, parts bool) ([]tokenizer.Part, error) {
	if t.images != nil && slices.ContainsFunc(messages, Message.hasImage) {
		t = t.images
	}
	var texts []string
	mark := func(text string) string {
		inner := strings.TrimSpace(text) // templates may trim a text
		if inner == "" {
			return text
		}
		before, after, _ := strings.Cut(text, inner)
		texts = append(texts, inner)
		return fmt.Sprintf("%s%s%d%s%s", before, markStart, len(texts)-1, markEnd, after)
	}
	var list []any
	last := 0 // the first text of the last message
	for _, m := range messages {
		last = len(texts)
		if !parts && !m.hasImage() {
			whole := ""
			for _, c := range m.Content {
				whole += c.Text
			}
			list = append(list, map[string]any{"role": m.Role, "content": mark(whole)})
			continue
		}
		if m.hasImage() && !t.SeesImages() {
			return nil, t.errorf(" has no place for images: the language model cannot see any")
		}
		var content []any
		for _, c := range m.Content {
			part := map[string]any{"type": "image"}
			if c.Image == nil {
				part = map[string]any{"type": "text", "text": mark(c.Text)}
			}
			content = append(content, part)
		}
		list = append(list, map[string]any{"role": m.Role, "content": content})
	}
	values := map[string]jinja.Value{
		"range": jinja.NewCallable("range", shortRange(new(int))), "raise_exception": jinja.NewCallable("raise_exception", refuse),
	}
	data := map[string]any{"messages": list, "add_generation_prompt": answer, "enable_thinking": thinking}
	maps.Copy(data, t.special)
	for name, v := range data {
		values[name] = jinja.FromGoValue(v)
	}
	rendered, err := t.template.RenderValues(values)
	if errors.Is(err, ErrRefused) {
		return nil, t.errorf(" %w", err)
	} else if err != nil {
		return nil, t.errorf(": %s", quote.Printable(err.Error()))
	}
	var out []tokenizer.Part
	seen := make([]bool, len(texts))
	for i, part := range strings.Split(rendered, markStart) {
		if i > 0 {
			var n int
			number, rest, ok := strings.Cut(part, markEnd)
			if _, err := fmt.Sscanf(number, "%d", &n); !ok || err != nil || n < 0 || n >= len(texts) {
				rest = markEnd
			} else {
				out, seen[n] = append(out, tokenizer.Part{Text: texts[n], Plain: true}), true
			}
			part = rest
		}
		if strings.Contains(part, markEnd) {
			return nil, t.errorf(" changes the text of messages")
		}
		out = append(out, tokenizer.Part{Text: part})
	}
	if slices.Contains(seen[last:], false) {
		if !parts { // some templates know nothing else
			return t.render(messages, thinking, answer, true)
		}
		return nil, t.errorf(" leaves out the text of the last message")
	}
	return out, nil
}

// shortRange returns Jinja's range, without ranges that fill the memory, alone or inside each other. made counts their
// numbers.
func shortRange(made *int) func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		from, to, step := int64(0), int64(0), int64(1)
		bounds := []*int64{&to}
		if len(args) > 1 {
			bounds = []*int64{&from, &to, &step}
		}
		if len(args) == 0 || len(args) > len(bounds) {
			return jinja.Undefined(), fmt.Errorf("range: expected 1 to 3 numbers, found %d", len(args))
		}
		for i, a := range args {
			if !a.IsInt() {
				return jinja.Undefined(), errors.New("range: expected whole numbers")
			}
			*bounds[i] = a.AsInt()
		}
		list := []any{}
		for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
			if *made++; *made > maxRanges {
				return jinja.Undefined(), fmt.Errorf("range: more than %d numbers", maxRanges)
			}
			list = append(list, i)
		}
		return jinja.FromGoValue(list), nil
	}
}

// maxRanges is the largest number of numbers of all ranges.
const maxRanges = 100_000
