package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// tekkenName is the file in which Mistral publishes its tokenizers.
const tekkenName = "tekken.json"

// tekkenFile is tekken.json.
type tekkenFile struct {
	Config struct {
		Pattern string
		Size    int `json:"default_vocab_size"`         // the rest of Vocab is not used
		Special int `json:"default_num_special_tokens"` // which have the first ids
	}
	Vocab []struct {
		Bytes []byte `json:"token_bytes"`
	}
	Special []struct {
		ID   int    `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

// tekkenSpecial are the special tokens of files that have no list, such as those of Mistral Small 3.1.
var tekkenSpecial = strings.Fields(`<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]
	[TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]`)

// fromTekken reads tekken.json, as mistral-common's Tekkenizer and transformers' MistralConverter do. It returns what a
// tokenizer.json would have in addition to vocabulary and merges.
func (s *tokenizerSpec) fromTekken(data []byte) (*tokenizerFile, error) {
	var f tekkenFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	c := f.Config
	words := c.Size - c.Special
	switch {
	case c.Pattern != tekkenSplit:
		return nil, fmt.Errorf("config: pattern %.40q is %w", c.Pattern, checkpoint.ErrUnsupported)
	case c.Special < 1 || words < inside || words > len(f.Vocab) || c.Size > maxTokenID:
		return nil, fmt.Errorf("config: default_vocab_size %d and default_num_special_tokens %d: "+
			"expected %d to %d tokens that are not special", c.Size, c.Special, inside, len(f.Vocab))
	}
	s.class, s.whole, s.vocab = tekkenClass, true, make(map[string]uint32, c.Size)
	var text strings.Builder
	for i, t := range f.Vocab[:words] {
		text.Reset()
		for _, b := range t.Bytes {
			text.WriteString(characters[b])
		}
		word := text.String()
		if _, twice := s.vocab[word]; twice || word == "" || i < inside && word != characters[i] {
			return nil, fmt.Errorf("vocab: token %d is %.40q, expected a byte for each of the first %d, and none twice", i, t.Bytes, inside)
		}
		s.vocab[word] = uint32(c.Special + i)
	}
	s.mergeWords(c.Special + inside)
	whole := &tokenizerFile{}
	whole.Padding.Direction = "left"
	return whole, s.addSpecial(whole, &f)
}

// mergeWords makes the merges of a vocabulary without any: two tokens are merged if their text is a token, those
// with the lowest ids first. first is the id of the first token that is not a byte.
func (s *tokenizerSpec) mergeWords(first int) {
	s.merges = merges{make(map[uint64]uint32, 4*len(s.vocab)), make([]uint32, len(s.vocab)-inside)}
	for word, id := range s.vocab {
		if int(id) < first {
			continue
		}
		rank := id - uint32(first)
		s.merges.ids[rank] = id
		for i := range word {
			if left, ok := s.vocab[word[:i]]; ok {
				if right, ok := s.vocab[word[i:]]; ok {
					s.merges.ranks[uint64(left)<<32|uint64(right)] = rank
				}
			}
		}
	}
}

// addSpecial adds the special tokens. Ids without one have a name all the same.
func (s *tokenizerSpec) addSpecial(whole *tokenizerFile, f *tekkenFile) error {
	names := make([]string, f.Config.Special)
	if f.Special == nil {
		copy(names, tekkenSpecial)
	}
	for _, t := range f.Special {
		if t.ID < 0 || t.ID >= len(names) || names[t.ID] != "" {
			return fmt.Errorf("special_tokens: %.40q has rank %d, expected each once, below %d", t.Text, t.ID, len(names))
		}
		names[t.ID] = t.Text
	}
	for id, name := range names {
		if name == "" {
			name = fmt.Sprintf("<SPECIAL_%d>", id)
		}
		if _, twice := s.vocab[name]; twice || utf8.RuneCountInString(name) < 3 {
			return fmt.Errorf("special_tokens: %.40q is a token already, or too short for a special one", name)
		}
		s.vocab[name] = uint32(id)
		whole.AddedTokens = append(whole.AddedTokens, fileToken{addedToken: addedToken{ID: uint32(id), Content: name, Special: true}})
	}
	return nil
}
