package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// tokenizerFile is tokenizer.json.
type tokenizerFile struct {
	Truncation    struct{ Direction string }
	Padding       struct{ Direction string }
	AddedTokens   []fileToken  `json:"added_tokens"`
	Normalizer    charsmapFile `json:"normalizer"`
	PreTokenizer  splitFile    `json:"pre_tokenizer"`
	PostProcessor postFile     `json:"post_processor"`
	Model         struct {
		Type   string
		Merges json.RawMessage // null, see fromTokenizerJSON
		UnkID  *int            `json:"unk_id"`
		Suffix *string         `json:"end_of_word_suffix"`
		Whole  bool            `json:"ignore_merges"`
	}
}

// charsmapFile has the fields of a normalizer that are used.
type charsmapFile struct {
	Charsmap    string `json:"precompiled_charsmap"`
	Normalizers []struct {
		Charsmap string `json:"precompiled_charsmap"`
	}
}

// splitFile has the fields of a pre_tokenizer that are used.
type splitFile struct {
	Pretokenizers []struct {
		Pattern struct{ Regex string }
	}
}

// fromTokenizerJSON reads tokenizer.json. It takes vocabulary and merges out of the text, which it
// returns decoded otherwise, and the class if it is not known.
func (s *tokenizerSpec) fromTokenizerJSON(text string) (*tokenizerFile, error) {
	rest, err := s.cutModel(text)
	if err != nil {
		return nil, err
	}
	f := &tokenizerFile{}
	if err := json.Unmarshal(rest, f); err != nil {
		return nil, err
	}
	m := &f.Model
	kind := m.Type
	if kind == "" && m.Merges != nil {
		kind = "BPE" // as tokenizers before 0.8 wrote it
	}
	if kind != "BPE" && kind != "Unigram" {
		return nil, fmt.Errorf("model type %q, expected BPE or Unigram", kind)
	}
	if s.class == nil {
		if s.class = f.class(); s.class == nil {
			return nil, errors.New("neither tokenizer_class nor the pattern that splits text identifies the class in transformers")
		}
	}
	if expected := s.class.modelType(); kind != expected {
		return nil, fmt.Errorf("model type %s: expected %s for %s", kind, expected, s.class.name)
	}
	if s.class.unigram {
		return f, s.fromUnigram(f)
	}
	s.whole = m.Whole
	if m.Suffix != nil && *m.Suffix != s.class.suffix {
		return nil, fmt.Errorf("end_of_word_suffix %q, expected %q, as %s has it", *m.Suffix, s.class.suffix, s.class.name)
	}
	return f, nil
}

// cutModel reads the vocabulary and the merges in tokenizer.json, and returns the text with null in
// their places.
func (s *tokenizerSpec) cutModel(text string) (rest []byte, err error) {
	r := &scanner{text: text}
	copied, depth, inModel := 0, 0, false
	for {
		kind, name := r.next()
		switch kind {
		case 0:
			return append(rest, text[copied:]...), nil
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ':':
			if depth == 1 {
				inModel = name == "model"
			}
			if depth != 2 || !inModel || name != "vocab" && name != "merges" {
				continue
			}
			rest = append(append(rest, text[copied:r.at]...), "null"...)
			switch first := r.peek(); {
			case first == 'n':
				r.next()
			case name == "merges":
				s.mergeList, err = r.merges(len(s.vocab))
			case first == '[':
				s.pieces, err = r.pieces()
			default:
				s.vocab, err = r.vocabulary()
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			copied = r.at
		}
	}
}

// fromUnigram takes the vocabulary of a Unigram model, and the table that normalizes
// text.
func (s *tokenizerSpec) fromUnigram(f *tokenizerFile) error {
	m := &f.Model
	if m.UnkID == nil || *m.UnkID != unigramUnknown {
		return fmt.Errorf("unk_id: expected %d, as %s has it", unigramUnknown, s.class.name)
	}
	maps := []string{f.Normalizer.Charsmap}
	for _, n := range f.Normalizer.Normalizers {
		maps = append(maps, n.Charsmap)
	}
	for _, text := range maps {
		if text == "" {
			continue
		}
		var err error
		if s.charsmap, err = parseCharsmap(text); err != nil {
			return fmt.Errorf("precompiled_charsmap: %w", err)
		}
		break
	}
	return nil
}

// class returns the class with the pattern in the file, or nil.
func (f *tokenizerFile) class() *tokenizerClass {
	for _, c := range tokenizerClasses {
		if c.unigram && f.Model.Type == "Unigram" {
			return c
		}
		for _, p := range f.PreTokenizer.Pretokenizers {
			if slices.Contains(c.splits, p.Pattern.Regex) {
				return c
			}
		}
	}
	return nil
}

func (c *tokenizerClass) modelType() string {
	if c.unigram {
		return "Unigram"
	}
	return "BPE"
}

func splitMerge(line string) (merge, bool) {
	a, b, ok := strings.Cut(line, " ")
	return merge{a, b}, ok && a != "" && b != "" && !strings.Contains(b, " ")
}

// postFile is a post_processor.
type postFile struct {
	Type       string
	Processors []postFile
	Single     []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	SpecialTokens map[string]struct{ IDs []uint32 } `json:"special_tokens"`
}

// around returns the ids before and after a single text.
func (p *postFile) around() (before, after []int32, err error) {
	switch p.Type {
	case "", "ByteLevel":
	case "Sequence":
		for i := range p.Processors {
			b, a, err := p.Processors[i].around()
			if err != nil {
				return nil, nil, err
			}
			before, after = append(b, before...), append(after, a...)
		}
	case "TemplateProcessing":
		seen := false
		for _, part := range p.Single {
			if part.SpecialToken == nil {
				if seen || part.Sequence == nil || part.Sequence.ID != "A" {
					return nil, nil, errors.New("a template must have the text exactly once")
				}
				seen = true
				continue
			}
			token, ok := p.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("special token %q has no ids", part.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if id > maxTokenID {
					return nil, nil, fmt.Errorf("special token %q has id %d", part.SpecialToken.ID, id)
				}
				if seen {
					after = append(after, int32(id))
				} else {
					before = append(before, int32(id))
				}
			}
		}
		if !seen {
			return nil, nil, errors.New("a template must have the text exactly once")
		}
	default:
		return nil, nil, fmt.Errorf("type %q is not supported", p.Type)
	}
	return before, after, nil
}
