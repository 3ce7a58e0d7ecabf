package tokenizer

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Tokenizer turns text into token ids as transformers' CLIPTokenizer,
// T5Tokenizer or Qwen2Tokenizer does. Several goroutines may use one.
type Tokenizer struct {
	encoder encoder
	framing
}

// framing is what a tokenizer does to the ids of a text.
type framing struct {
	size          int     // number of tokens, including added ones
	before, after []int32 // special tokens around a text
	pad           int32   // -1 without padding
	maxLength     int
	padsLeft      bool
	cutsLeft      bool // it truncates on the left
}

// maxText is the largest size of a text in bytes. The library ends the process if one
// of its regular expressions needs more than ten million steps at one position.
const maxText = 1 << 20

type encoder interface {
	Encode(text string) []int32
	// Starts returns the offsets in bytes at which the tokens of a text begin.
	Starts(text string) []int
	Close()
}

// Load reads the tokenizer in dir: tokenizer.json or, if it does not exist, tekken.json,
// as Mistral publishes models, or vocab.json and merges.txt, as FLUX.1 (CLIP) and
// Qwen-Image are published. It also reads the files that transformers 4 or 5 writes next to them (tokenizer_config.json,
// special_tokens_map.json, added_tokens.json). Errors name the file.
//
// From tokenizer.json it takes the vocabulary, merges, normalization table and added
// tokens. The class determines how text is normalized and split, as in transformers 5;
// a file of an unknown class that splits differently is an error.
func Load(fsys fs.FS, dir string) (*Tokenizer, error) {
	spec, err := readTokenizer(fsys, dir)
	if err != nil {
		return nil, err
	}
	makeEncoder := spec.newBPE
	if spec.class.unigram {
		makeEncoder = spec.newEncoder
	}
	e, err := makeEncoder()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, spec.file), err)
	}
	return &Tokenizer{e, spec.framing}, nil
}

// newEncoder makes the library's encoder of validated files.
func (s *tokenizerSpec) newEncoder() (encoder, error) {
	text, err := s.json()
	if err != nil {
		return nil, err
	}
	return newEncoder(text)
}

// checked has hashes of the files that Check found to be right: most models have one of three tokenizers,
// and a server lists its models again and again.
var checked sync.Map

var checkedSeed = maphash.MakeSeed()

// Check returns the error that [Load] would return for the files in dir, without building the
// tokenizer, which takes most of the time.
func Check(fsys fs.FS, dir string) error {
	var hash maphash.Hash
	hash.SetSeed(checkedSeed)
	for _, name := range []string{"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json", tekkenName,
		"vocab.json", "merges.txt"} {
		data, err := checkpoint.ReadText(fsys, path.Join(dir, name), maxTokenizerSize)
		if err == nil || !notExist(fsys, path.Join(dir, name), err) {
			fmt.Fprintln(&hash, name, len(data), err)
			hash.Write(data)
		}
	}
	sum := hash.Sum64()
	if _, ok := checked.Load(sum); ok {
		return nil
	}
	_, err := readTokenizer(fsys, dir)
	if err == nil {
		checked.Store(sum, true)
	}
	return err
}

// Encode returns the ids of text without the special tokens around it. Names of
// special tokens in text (<|im_start|>) become these tokens.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	if err := validText(text); err != nil {
		return nil, err
	}
	return t.encoder.Encode(text), nil
}

func validText(text string) error {
	switch {
	case !utf8.ValidString(text):
		return errors.New("text is not valid UTF-8")
	case strings.ContainsRune(text, 0):
		return errors.New("text has a NUL character")
	case len(text) > maxText:
		return fmt.Errorf("text has %d bytes, at most %d", len(text), maxText)
	}
	return nil
}

// Rest returns the end of a text from token n on, counted without special tokens: the
// part that is lost if the text is truncated to n tokens.
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

// Special returns the number of special tokens that [Tokenizer.EncodeSpecial] puts around a text.
func (t *Tokenizer) Special() int { return len(t.before) + len(t.after) }

// EncodeSpecial returns the ids of text with the special tokens that the model expects
// around it: <|startoftext|> and <|endoftext|> for CLIP, </s> at the end for T5, no
// tokens for Qwen.
func (t *Tokenizer) EncodeSpecial(text string) ([]int32, error) {
	ids, err := t.Encode(text)
	if err != nil {
		return nil, err
	}
	return t.around(ids, len(ids)+t.Special()), nil
}

// Padded is a text with a fixed number of tokens.
type Padded struct {
	IDs       []int32
	Tokens    int  // number of ids, at the beginning, that are not padding
	Truncated bool // the text had more tokens
}

// EncodePadded returns exactly n ids: the ids of EncodeSpecial, then padding. A longer
// text loses its end, but not the special tokens. It is transformers'
// padding="max_length", truncation=True and max_length=n.
func (t *Tokenizer) EncodePadded(text string, n int) (Padded, error) {
	if n < t.Special() {
		return Padded{}, fmt.Errorf("%d tokens do not hold the %d special ones around a text", n, t.Special())
	}
	ids, err := t.Encode(text)
	if err != nil {
		return Padded{}, err
	}
	p := Padded{Tokens: len(ids) + t.Special()}
	if p.Tokens > n {
		p.Tokens, p.Truncated = n, true
	}
	switch {
	case p.Tokens < n && t.pad < 0:
		return Padded{}, errors.New("the tokenizer has no pad token")
	case p.Tokens < n && t.padsLeft:
		return Padded{}, errors.New("the tokenizer has padding_side left, which is not supported")
	case p.Truncated && t.cutsLeft:
		return Padded{}, errors.New("the tokenizer has truncation_side left, which is not supported")
	}
	p.IDs = t.around(ids[:p.Tokens-t.Special()], n)
	for len(p.IDs) < n {
		p.IDs = append(p.IDs, t.pad)
	}
	return p, nil
}

// Pad returns ids with padding, up to n ids, on the side that the tokenizer's files name.
func (t *Tokenizer) Pad(ids []int32, n int) ([]int32, error) {
	switch {
	case len(ids) >= n:
		return ids, nil
	case t.pad < 0:
		return nil, errors.New("the tokenizer has no pad token")
	}
	padding := slices.Repeat([]int32{t.pad}, n-len(ids))
	if t.padsLeft {
		return append(padding, ids...), nil
	}
	return append(slices.Clone(ids), padding...), nil
}

// around returns ids with the special tokens, in a slice with a capacity of size.
func (t *Tokenizer) around(ids []int32, size int) []int32 {
	all := make([]int32, 0, size)
	all = append(all, t.before...)
	all = append(all, ids...)
	return append(all, t.after...)
}

// VocabSize returns the number of ids.
func (t *Tokenizer) VocabSize() int { return t.size }

// PadID returns the id of the padding, and reports whether there is one.
func (t *Tokenizer) PadID() (int32, bool) { return t.pad, t.pad >= 0 }

// MaxLength returns model_max_length in tokenizer_config.json: the largest number of
// tokens of the text encoder, including special tokens. It is 0 if unknown.
func (t *Tokenizer) MaxLength() int { return t.maxLength }

// Close frees the tokenizer.
func (t *Tokenizer) Close() { t.encoder.Close() }
