package textenc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/weights"
)

// A Tokenizer turns text into token ids as the tokenizers library does for a
// tokenizer.json. Several goroutines may use one.
type Tokenizer struct {
	encoder encoder
	vocab   int
}

type encoder interface {
	Encode(text string) []int32
	VocabSize() int
	Close()
}

// maxTokenizerSize bounds tokenizer.json; real ones are up to 35 MB.
const maxTokenizerSize = 256 << 20

// LoadTokenizer reads dir/tokenizer.json.
func LoadTokenizer(fsys fs.FS, dir string) (*Tokenizer, error) {
	name := path.Join(dir, "tokenizer.json")
	data, err := weights.ReadFile(fsys, name, maxTokenizerSize)
	if err != nil {
		return nil, err
	}
	if data, err = withoutPadding(data); err != nil {
		return nil, fmt.Errorf("%s: %w", weights.FullName(fsys, name), err)
	}
	e, err := newEncoder(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", weights.FullName(fsys, name), err)
	}
	return &Tokenizer{encoder: e, vocab: e.VocabSize()}, nil
}

// withoutPadding removes the truncation and padding that a tokenizer.json can
// ask for. transformers sets its own at every call, and so do we.
func withoutPadding(data []byte) ([]byte, error) {
	var has struct{ Truncation, Padding any }
	if err := json.Unmarshal(data, &has); err != nil {
		return nil, err
	}
	if has.Truncation == nil && has.Padding == nil {
		return data, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	delete(all, "truncation")
	delete(all, "padding")
	return json.Marshal(all)
}

// Encode returns the ids of text. Names of special tokens in it
// (<|im_start|>) become those tokens.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("text is not valid UTF-8")
	}
	if strings.ContainsRune(text, 0) {
		return nil, errors.New("text has a NUL character")
	}
	return t.encoder.Encode(text), nil
}

// VocabSize is the number of ids.
func (t *Tokenizer) VocabSize() int { return t.vocab }

// Close frees the tokenizer.
func (t *Tokenizer) Close() { t.encoder.Close() }
