package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Tokenizer turns text into token ids as transformers' CLIPTokenizer,
// T5Tokenizer or Qwen2Tokenizer does. Several goroutines may use one.
type Tokenizer struct {
	encoder   encoder
	vocab     int
	before    []int32 // what goes before a text's ids
	after     []int32 // and after them
	pad       int32   // -1 is none
	maxLength int
	left      string // why EncodePadded is refused, "" is not at all
}

// maxText bounds a text, in bytes. The library ends the process where one of
// its regular expressions needs more than ten million steps at one place.
const maxText = 1 << 20

type encoder interface {
	Encode(text string) []int32
	// Starts are where the tokens of a text begin in it, in bytes.
	Starts(text string) []int
	VocabSize() int
	Close()
}

// Load reads the tokenizer in dir: tokenizer.json, or vocab.json and
// merges.txt where there is none, which is how the tokenizers of FLUX.1 (CLIP)
// and Qwen-Image are published, with what transformers 4 or 5 has written
// beside them (tokenizer_config.json, special_tokens_map.json,
// added_tokens.json). Errors name the file.
//
// Of a tokenizer.json vocabulary, merges, normalization table and added tokens
// count. How text is normalized and split goes by the class, as it does in
// transformers 5; a file of an unknown class that splits otherwise is refused.
func Load(fsys fs.FS, dir string) (*Tokenizer, error) {
	spec, err := readTokenizer(fsys, dir)
	if err != nil {
		return nil, err
	}
	text, err := spec.json()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, spec.file), err)
	}
	e, err := newEncoder(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, spec.file), err)
	}
	return &Tokenizer{
		encoder: e, vocab: e.VocabSize(), before: spec.before, after: spec.after,
		pad: spec.pad, maxLength: spec.maxLength, left: spec.left,
	}, nil
}

// Encode returns the ids of text alone. Names of special tokens in it
// (<|im_start|>) become those tokens.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("text is not valid UTF-8")
	}
	if strings.ContainsRune(text, 0) {
		return nil, errors.New("text has a NUL character")
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("text has %d bytes, at most %d", len(text), maxText)
	}
	return t.encoder.Encode(text), nil
}

// Rest returns the end of a text from its token number n on, without special
// tokens: what is lost of a text that is cut to n tokens.
func (t *Tokenizer) Rest(text string, n int) (string, error) {
	if _, err := t.Encode(text); err != nil {
		return "", err
	}
	starts := t.encoder.Starts(text)
	if n >= len(starts) {
		return "", nil
	}
	at := min(max(0, starts[n]), len(text))
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[at:], nil
}

// Special is how many special tokens [Tokenizer.EncodeSpecial] puts around a text.
func (t *Tokenizer) Special() int { return len(t.before) + len(t.after) }

// EncodeSpecial returns the ids of text between the special tokens that the
// model expects around it: <|startoftext|> and <|endoftext|> for CLIP, </s> at
// the end for T5, none for Qwen.
func (t *Tokenizer) EncodeSpecial(text string) ([]int32, error) {
	ids, err := t.Encode(text)
	if err != nil {
		return nil, err
	}
	return t.around(ids, len(ids)+t.Special()), nil
}

// Padded is a text as a fixed number of tokens.
type Padded struct {
	IDs       []int32
	Tokens    int  // how many of them are not padding; they come first
	Truncated bool // whether the text had more
}

// EncodePadded returns exactly n ids: text and the special tokens around it, as
// EncodeSpecial has them, then padding. Of a longer text the end is cut off,
// not the special tokens. transformers calls this padding="max_length",
// truncation=True and max_length=n.
func (t *Tokenizer) EncodePadded(text string, n int) (Padded, error) {
	if n < t.Special() {
		return Padded{}, fmt.Errorf("%d tokens do not hold the %d special ones around a text", n, t.Special())
	}
	if t.left != "" {
		return Padded{}, fmt.Errorf("the tokenizer has %s, which is not supported", t.left)
	}
	ids, err := t.Encode(text)
	if err != nil {
		return Padded{}, err
	}
	p := Padded{Tokens: len(ids) + t.Special()}
	if p.Tokens > n {
		p.Tokens, p.Truncated = n, true
	}
	if p.Tokens < n && t.pad < 0 {
		return Padded{}, errors.New("the tokenizer has no pad token")
	}
	p.IDs = t.around(ids[:p.Tokens-t.Special()], n)
	for len(p.IDs) < n {
		p.IDs = append(p.IDs, t.pad)
	}
	return p, nil
}

// around returns ids with the special tokens, in a slice of room for size.
func (t *Tokenizer) around(ids []int32, size int) []int32 {
	all := make([]int32, 0, size)
	all = append(all, t.before...)
	all = append(all, ids...)
	return append(all, t.after...)
}

// VocabSize is the number of ids.
func (t *Tokenizer) VocabSize() int { return t.vocab }

// PadID is the id that EncodePadded fills up with, and whether there is one.
func (t *Tokenizer) PadID() (int32, bool) { return t.pad, t.pad >= 0 }

// MaxLength is tokenizer_config.json's model_max_length: how many tokens, the
// special ones included, the text encoder takes. 0 is unknown.
func (t *Tokenizer) MaxLength() int { return t.maxLength }

// Close frees the tokenizer.
func (t *Tokenizer) Close() { t.encoder.Close() }
