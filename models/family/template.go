package family

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A template is the text that a model's pipeline puts around a prompt.
type template struct {
	before, after string
	empty         string // stands for an empty prompt
}

// chat returns the chat template of Qwen: a user's turn, which begins with some text, and the
// beginning of the answer.
func chat(user, answer string) template {
	return template{before: "<|im_start|>user\n" + user, after: "<|im_end|>\n<|im_start|>assistant\n" + answer}
}

// withSystem returns a chat template that begins with a system's message.
func (w template) withSystem(message string) template {
	w.before = "<|im_start|>system\n" + message + "<|im_end|>\n" + w.before
	return w
}

func (w template) text(prompt string) string { return w.before + cmp.Or(prompt, w.empty) + w.after }

// whole tokenizes the prompt in its template without a limit.
func (w template) whole(t *tokenizer.Tokenizer, prompt string) (Tokens, error) {
	ids, err := t.Encode(w.text(prompt))
	return Tokens{IDs: ids, Total: len(ids)}, err
}

// cut tokenizes the prompt in its template and keeps the first limit tokens: a long prompt loses
// the end of the template too.
func (w template) cut(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
	tokens, err := w.whole(t, prompt)
	if err != nil || len(tokens.IDs) <= limit {
		return tokens, err
	}
	tokens.IDs = tokens.IDs[:limit]
	return tokens, w.lost(t, prompt, limit, &tokens)
}

// closed tokenizes the prompt in its template, and keeps the first limit tokens of what is before the
// end of the template, and all of the end.
func (w template) closed(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
	end, err := t.Encode(w.after)
	if err != nil {
		return Tokens{}, err
	}
	tokens, err := template{before: w.before}.cut(t, prompt, limit)
	tokens.IDs, tokens.Total = slices.Concat(tokens.IDs, end), tokens.Total+len(end)
	return tokens, err
}

// padded tokenizes the prompt in its template with the tokenizer's own special tokens, and pads or
// truncates to the limit. The special tokens at the end are kept.
func (w template) padded(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
	padded, err := t.EncodePadded(w.text(prompt), limit)
	tokens := Tokens{IDs: padded.IDs, Total: padded.Tokens}
	if err != nil || !padded.Truncated {
		return tokens, err
	}
	all, err := t.EncodeSpecial(w.text(prompt))
	if err != nil {
		return Tokens{}, err
	}
	tokens.Total = len(all)
	return tokens, w.lost(t, prompt, limit-t.Special(), &tokens)
}

// special tokenizes the prompt in its template with the tokenizer's own special tokens, and truncates to the
// limit. The special tokens at the end are kept.
func (w template) special(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
	tokens, err := w.padded(t, prompt, limit)
	tokens.IDs = tokens.IDs[:min(tokens.Total, len(tokens.IDs))]
	return tokens, err
}

// lost sets Tokens.Lost for a prompt that is cut, with its template, to n tokens.
func (w template) lost(t *tokenizer.Tokenizer, prompt string, n int, tokens *Tokens) error {
	rest, err := t.Rest(w.text(prompt), n)
	if len(rest) > len(w.after) {
		tokens.Lost = strings.TrimSuffix(rest, w.after)
		if len(tokens.Lost) > len(prompt) {
			tokens.Lost = prompt
		}
	}
	return err
}
