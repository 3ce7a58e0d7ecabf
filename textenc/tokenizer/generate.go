package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Part is a piece of a prompt for a language model.
type Part struct {
	Text string
	// Plain reports that names of added tokens in Text are text: a user wrote it.
	Plain bool
}

// EncodeParts returns the ids of a text that consists of parts. Without added tokens in plain parts
// they are those of [Tokenizer.Encode] for the whole text.
func (t *Tokenizer) EncodeParts(parts []Part) (ids []int32, err error) {
	e, err := t.generator()
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	var plain [][2]int // where the plain parts are
	for _, p := range parts {
		from := text.Len()
		text.WriteString(p.Text)
		if p.Plain {
			plain = append(plain, [2]int{from, text.Len()})
		}
	}
	whole := text.String()
	if err := validText(whole); err != nil {
		return nil, err
	}
	words, err := e.words()
	if err != nil {
		return nil, err
	}
	encode := func(text string) {
		if text != "" {
			cut, _ := e.join(words.Encode(text))
			ids = append(ids, cut...)
		}
	}
	from := 0
	for at := 0; at < len(whole); {
		for len(plain) > 0 && plain[0][1] <= at {
			plain = plain[1:]
		}
		token, ok := e.addedAt(whole[at:])
		if !ok || len(plain) > 0 && plain[0][0] < at+len(token.Content) {
			at++
			continue
		}
		encode(whole[from:at])
		ids = append(ids, int32(token.ID))
		at += len(token.Content)
		from = at
	}
	encode(whole[from:])
	return ids, nil
}

// generator returns the encoder, if it can be used for a language model.
func (t *Tokenizer) generator() (*bpe, error) {
	e, ok := t.encoder.(*bpe)
	if !ok || e.ids[0] != e.ids[inside] {
		return nil, fmt.Errorf("a tokenizer of this class is %w for generating text, expected Qwen2Tokenizer", checkpoint.ErrUnsupported)
	}
	for _, token := range e.added {
		if token.LStrip || token.RStrip || token.SingleWord {
			return nil, fmt.Errorf("added token %q with lstrip, rstrip or single_word is %w for generating text", token.Content,
				checkpoint.ErrUnsupported)
		}
	}
	return e, nil
}

// addedAt returns the longest added token that text begins with.
func (e *bpe) addedAt(text string) (longest addedToken, ok bool) {
	for _, t := range e.added {
		if strings.HasPrefix(text, t.Content) && len(t.Content) > len(longest.Content) {
			longest, ok = t, true
		}
	}
	return longest, ok
}

// ID returns the id of an added token, such as <|im_end|>, and reports whether there is one.
func (t *Tokenizer) ID(added string) (id int32, ok bool) {
	if e, isBPE := t.encoder.(*bpe); isBPE {
		for _, token := range e.added {
			if token.Content == added {
				return int32(token.ID), true
			}
		}
	}
	return 0, false
}

// Bytes returns what a token stands for, which may be a part of a character, and nothing for special
// tokens.
func (t *Tokenizer) Bytes(id int32) ([]byte, error) {
	e, err := t.generator()
	if err != nil {
		return nil, err
	}
	e.spell.Do(e.spellAll)
	if id < 0 || int(id) >= len(e.spelling) {
		return nil, nil // logits may have more ids than there are tokens
	}
	return e.spelling[id], nil
}

// spellAll fills the table of what tokens stand for. A token is a byte, a merge of two others, a word that is
// not merged, or added.
func (e *bpe) spellAll() {
	var size uint32
	for _, id := range slices.Concat(e.ids[:inside], e.merges.ids) {
		if id != noID {
			size = max(size, id+1)
		}
	}
	for _, t := range e.added {
		size = max(size, t.ID+1)
	}
	for _, id := range e.whole {
		size = max(size, id+1)
	}
	bytes := make([][]byte, size)
	for i, id := range e.ids[:inside] {
		if id != noID {
			bytes[id] = []byte{byte(i)}
		}
	}
	of := map[rune]byte{}
	for i, c := range characters {
		of[[]rune(c)[0]] = byte(i)
	}
	for word, id := range e.whole {
		bytes[id] = bytes[id][:0]
		for _, c := range word {
			bytes[id] = append(bytes[id], of[c])
		}
	}
	pairs := make([]uint64, len(e.merges.ids))
	for pair, rank := range e.merges.ranks {
		pairs[rank] = pair
	}
	for rank, pair := range pairs { // the tokens of a merge result from earlier ones
		if id := e.merges.ids[rank]; bytes[id] == nil {
			bytes[id] = slices.Concat(bytes[pair>>32], bytes[uint32(pair)])
		}
	}
	for _, t := range e.added {
		bytes[t.ID] = nil
		if !t.Special {
			bytes[t.ID] = []byte(t.Content)
		}
	}
	e.spelling = bytes
}
