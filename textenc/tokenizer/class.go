package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Patterns that cut text into words before BPE.
const (
	qwen2Split = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	clipSplit4 = `'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+` // of transformers 4
	clipSplit  = `<\|startoftext\|>|<\|endoftext\|>|` + clipSplit4
	// tekkenSplit is that of Mistral's tokenizers since Tekken.
	tekkenSplit = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` +
		`|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// A tokenizerClass is one of transformers' classes of tokenizers.
type tokenizerClass struct {
	name     string
	defaults map[string]string // names of its special tokens where no file has them
	splits   []string          // patterns in tokenizer.json that mean this class
	// Parts of a tokenizer.json, from transformers' tokenization_clip.py,
	// tokenization_t5.py and tokenization_qwen2.py.
	normalizer, preTokenizer any
	suffix                   string // that ends a word in a BPE vocabulary
	unigram                  bool
	prefixSpace              bool // add_prefix_space has an effect; the other classes ignore it
}

type object = map[string]any

// tekkenClass is the class of a tekken.json, whose tokens have no other names.
var tekkenClass = &tokenizerClass{
	name:         "MistralCommonBackend",
	defaults:     map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
	preTokenizer: isolated(tekkenSplit),
}

var tokenizerClasses = []*tokenizerClass{
	{
		name: "CLIPTokenizer",
		defaults: map[string]string{
			"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
		},
		splits: []string{clipSplit, clipSplit4},
		normalizer: object{"type": "Sequence", "normalizers": []object{
			{"type": "NFC"},
			{"type": "Replace", "pattern": object{"Regex": `\s+`}, "content": " "},
			{"type": "Lowercase"},
		}},
		preTokenizer: object{"type": "Sequence", "pretokenizers": []object{
			{"type": "Split", "pattern": object{"Regex": clipSplit}, "behavior": "Removed", "invert": true},
			{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		}},
		suffix: "</w>",
	},
	{
		name:         "Qwen2Tokenizer",
		defaults:     map[string]string{"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
		splits:       []string{qwen2Split},
		normalizer:   object{"type": "NFC"},
		preTokenizer: isolated(qwen2Split),
		prefixSpace:  true,
	},
	{
		name:         "TokenizersBackend",
		splits:       []string{tekkenSplit},
		preTokenizer: isolated(tekkenSplit),
	},
	{
		name:     "T5Tokenizer",
		defaults: map[string]string{"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
		preTokenizer: object{"type": "Sequence", "pretokenizers": []object{
			{"type": "WhitespaceSplit"},
			{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
		}},
		unigram: true,
	},
}

// isolated cuts text by a pattern, and then into bytes.
func isolated(pattern string) object {
	return object{"type": "Sequence", "pretokenizers": []object{
		{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false},
		{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
	}}
}

// unigramUnknown is the index of T5's piece for unknown text.
const unigramUnknown = 2

// classNamed returns the class for tokenizer_class in tokenizer_config.json, or nil
// for names that do not identify one.
func classNamed(name string) (*tokenizerClass, error) {
	switch name {
	case "", "PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast", "MistralCommonBackend":
		return nil, nil // transformers reads Mistral's, which have the last three, as they are
	}
	names := make([]string, len(tokenizerClasses))
	for i, c := range tokenizerClasses {
		if strings.TrimSuffix(name, "Fast") == c.name {
			return c, nil
		}
		names[i] = c.name
	}
	return nil, fmt.Errorf("tokenizer_class %q is %w, expected one of %s", name, checkpoint.ErrUnsupported, strings.Join(names, ", "))
}

// A tokenizerSpec is the validated content of a tokenizer's files. The tokenizers
// library must not fail on it, since it is Rust, whose panics end the process.
type tokenizerSpec struct {
	file      string // the one with the vocabulary
	class     *tokenizerClass
	vocab     map[string]uint32 // of BPE
	mergeList []merge
	merges    merges    // of mergeList, by ids
	prefix    string    // of characters inside of a word
	whole     bool      // words in the vocabulary are not merged (ignore_merges)
	pieces    pieces    // of Unigram
	charsmap  *charsmap // nil if text is not normalized
	added     []addedToken
	unk       string
	framing
}

// A merge is a pair of tokens that BPE joins.
type merge [2]string

// A piece is a string of a Unigram vocabulary and its log probability.
type piece struct {
	text  string
	score float64
}

// pieces is the vocabulary of a Unigram model.
type pieces []piece

func (p pieces) MarshalJSON() ([]byte, error) {
	text := []byte{'['}
	for i, piece := range p {
		if i > 0 {
			text = append(text, ',')
		}
		quoted, err := json.Marshal(piece.text)
		if err != nil {
			return nil, err
		}
		text = append(append(append(text, '['), quoted...), ',')
		text = append(appendExact(text, piece.score), ']')
	}
	return append(text, ']'), nil
}

// appendExact appends a text that the tokenizers library reads as exactly x. Its JSON reader rounds
// twice: it divides the digits, as a float64, by a power of ten, so that the shortest text of many
// numbers is read one unit in the last place off. Other digits, or more, are read exactly; the few
// numbers without such a text (about one in a thousand, and no score of T5's) get the shortest.
func appendExact(text []byte, x float64) []byte {
	for decimals := range 309 {
		power := math.Pow10(decimals)
		digits := math.Round(math.Abs(x) * power)
		if digits >= 1<<64 {
			break
		}
		for _, d := range []float64{digits, math.Nextafter(digits, 0), math.Nextafter(digits, math.Inf(1))} {
			if d == math.Trunc(d) && d < 1<<64 && d/power == math.Abs(x) {
				if math.Signbit(x) {
					text = append(text, '-')
				}
				text = append(strconv.AppendUint(text, uint64(d), 10), "e-"...)
				return strconv.AppendInt(text, int64(decimals), 10)
			}
		}
	}
	return strconv.AppendFloat(text, x, 'g', -1, 64)
}

// addedToken is a token that is cut out of the text first.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// maxTokenID is the largest id. Embeddings have fewer rows.
const maxTokenID = 1 << 30

// noID is the ID of an added token that gets the next free one.
const noID = math.MaxUint32

// place gives the added tokens the ids that the tokenizers library will give them,
// whatever the files say: the ids in the vocabulary, and then the next free ones. It
// returns a function from tokens to ids.
func (s *tokenizerSpec) place() (func(token string) (int32, error), error) {
	known := s.vocab
	if s.class.unigram {
		known = make(map[string]uint32, len(s.pieces))
		for i, p := range s.pieces {
			known[p.text] = uint32(i)
		}
	}
	next := uint32(len(s.vocab) + len(s.pieces))
	more := map[string]uint32{} // that known does not have
	idOf := func(token string) (uint32, bool) {
		id, ok := known[token]
		if !ok {
			id, ok = more[token]
		}
		return id, ok
	}
	seen := map[string]bool{"": true}
	kept := s.added[:0]
	for _, t := range s.added {
		if seen[t.Content] {
			continue
		}
		seen[t.Content] = true
		id, ok := idOf(t.Content)
		if !ok {
			id, more[t.Content] = next, next
		}
		next = max(next, id+1)
		if t.ID != noID && t.ID != id {
			return nil, fmt.Errorf("added token %q: expected id %d, found %d", t.Content, id, t.ID)
		}
		t.ID = id
		kept = append(kept, t)
	}
	s.added, s.size = kept, len(known)+len(more)
	return func(token string) (int32, error) {
		id, ok := idOf(token)
		if !ok {
			return 0, fmt.Errorf("the vocabulary does not have the special token %q", token)
		}
		return int32(id), nil
	}, nil
}

// validate returns an error if the library would fail on the vocabulary.
func (s *tokenizerSpec) validate() error {
	for token, id := range s.vocab {
		if id > maxTokenID {
			return fmt.Errorf("token %q has id %d, expected at most %d", token, id, maxTokenID)
		}
	}
	if s.class.unigram {
		if len(s.pieces) <= unigramUnknown {
			return fmt.Errorf("the vocabulary has %d pieces, expected more than %d", len(s.pieces), unigramUnknown)
		}
		for i, p := range s.pieces {
			if p.text == "" {
				return fmt.Errorf("piece %d is empty", i)
			}
		}
		return nil
	}
	if len(s.vocab) == 0 {
		return errors.New("the vocabulary is empty")
	}
	return nil
}

// validateAdded returns an error if the library would fail on the added tokens.
func (s *tokenizerSpec) validateAdded() error {
	if s.charsmap == nil {
		return nil
	}
	for _, t := range s.added {
		// a token that is normalized to nothing would be found everywhere
		if t.Normalized && !s.charsmap.keeps(t.Content) {
			return fmt.Errorf("added token %q is normalized and not plain ASCII", t.Content)
		}
	}
	return nil
}

// json returns a tokenizer.json. Special tokens around a text and padding are not in
// it: Tokenizer adds them.
func (s *tokenizerSpec) json() ([]byte, error) {
	normalizer := s.class.normalizer
	var model object
	if s.class.unigram {
		if s.charsmap != nil {
			normalizer = object{"type": "Precompiled", "precompiled_charsmap": s.charsmap.data}
		}
		model = object{"type": "Unigram", "vocab": s.pieces, "unk_id": unigramUnknown, "byte_fallback": false}
	} else {
		var unk any
		if s.class.suffix != "" {
			unk = s.unk
		}
		model = object{
			"type": "BPE", "vocab": s.vocab, "merges": s.mergeList, "unk_token": unk, "end_of_word_suffix": s.class.suffix,
			"continuing_subword_prefix": s.prefix, "dropout": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": s.whole,
		}
	}
	return json.Marshal(object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": s.added, "normalizer": normalizer,
		"pre_tokenizer": s.class.preTokenizer, "post_processor": nil, "decoder": nil, "model": model,
	})
}
