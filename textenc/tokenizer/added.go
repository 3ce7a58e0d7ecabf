package tokenizer

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// readAllAdded returns the added tokens by id, and the file that they are from: the
// one with the vocabulary, or others. Those in tokenizer_config.json take precedence.
func (s *tokenizerSpec) readAllAdded(f folder, whole *tokenizerFile, config *tokenizerConfig) (
	added map[uint32]fileToken, source string, err error,
) {
	if config.AddedTokens != nil {
		added, source = map[uint32]fileToken{}, "tokenizer_config.json"
		for key, token := range config.AddedTokens {
			id, err := strconv.ParseUint(key, 10, 32)
			if err != nil {
				return nil, "", f.wrap(source, fmt.Errorf("added_tokens_decoder: %q is not an id", key))
			}
			added[uint32(id)] = token
		}
		return added, source, nil
	}
	if err := readOptional(f.fsys, f.file("special_tokens_map.json"), config); err != nil {
		return nil, "", err
	}
	source = "added_tokens.json"
	if added, err = readAddedTokens(f.fsys, f.file(source), config); err != nil {
		return nil, "", err
	}
	if whole != nil {
		source = path.Base(s.file)
		for _, t := range whole.AddedTokens {
			added[t.ID] = t
		}
	}
	return added, source, nil
}

// readAddedTokens reads added_tokens.json, if it exists.
func readAddedTokens(fsys fs.FS, name string, config *tokenizerConfig) (map[uint32]fileToken, error) {
	var ids map[string]uint32
	if err := readOptional(fsys, name, &ids); err != nil {
		return nil, err
	}
	special := map[string]bool{}
	for _, t := range config.extra {
		special[t.Content] = true
	}
	for _, t := range config.names {
		special[t.Content] = true
	}
	added := map[uint32]fileToken{}
	for content, id := range ids {
		if twin, ok := added[id]; ok {
			return nil, fmt.Errorf("%s: %q and %q have id %d", checkpoint.FullName(fsys, name), min(content, twin.Content),
				max(content, twin.Content), id)
		}
		added[id] = fileToken{addedToken: addedToken{ID: id, Content: content, Normalized: !special[content], Special: special[content]}}
	}
	return added, nil
}

// specialNames are the keys of special tokens, in transformers' order.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// add lists the added tokens in the order in which they get their ids: those in the
// files, the named special tokens, the other special tokens.
func (s *tokenizerSpec) add(added map[uint32]fileToken, config *tokenizerConfig) error {
	names := config.names
	for key, content := range s.class.defaults {
		if _, ok := names[key]; !ok {
			names[key] = fileToken{addedToken: addedToken{ID: noID, Content: content}, normalizedUnset: true}
		}
	}
	known := map[string]bool{"": true}
	for _, id := range slices.Sorted(maps.Keys(added)) {
		t := added[id]
		t.ID = id
		for _, key := range specialNames {
			t.Special = t.Special || names[key].Content == t.Content
		}
		if t.normalizedUnset {
			t.Normalized = !t.Special
		}
		s.added = append(s.added, t.addedToken)
		known[t.Content] = true
	}
	extra := config.extra
	if extra == nil && s.class.unigram {
		n := 100
		if config.ExtraIDs != nil {
			n = *config.ExtraIDs
		}
		for i := range n {
			extra = append(extra, fileToken{addedToken: addedToken{Content: fmt.Sprintf("<extra_id_%d>", i)}, normalizedUnset: true})
		}
	}
	var special []fileToken
	for _, key := range specialNames {
		special = append(special, names[key])
	}
	for _, t := range append(special, extra...) {
		if known[t.Content] {
			continue
		}
		known[t.Content] = true
		t.Normalized = t.Normalized && !t.normalizedUnset
		t.Special, t.ID = true, noID
		s.added = append(s.added, t.addedToken)
	}
	for _, key := range slices.Sorted(maps.Keys(names)) {
		if t := names[key]; !known[t.Content] {
			return fmt.Errorf("%s %q is not among the added tokens", key, t.Content)
		}
	}
	s.unk = names["unk_token"].Content
	return nil
}

// setSpecial sets the tokens before and after a text, as its class has them, and the
// padding.
func (s *tokenizerSpec) setSpecial(whole *tokenizerFile, config *tokenizerConfig, id func(string) (int32, error)) error {
	name := func(key string) string { return config.names[key].Content }
	var before, after []string
	switch {
	case s.class.suffix != "":
		if _, ok := s.vocab[s.unk]; !ok {
			return fmt.Errorf("the vocabulary does not have the unknown token %q", s.unk)
		}
		before, after = []string{name("bos_token")}, []string{name("eos_token")}
	case s.class == tekkenClass:
		before = []string{name("bos_token")}
	case s.class.unigram:
		after = []string{name("eos_token")}
	case whole != nil:
		var err error
		if s.before, s.after, err = whole.PostProcessor.around(); err != nil {
			return fmt.Errorf("post_processor: %w", err)
		}
	default:
		if config.AddBOS && name("bos_token") != "" {
			before = []string{name("bos_token")}
		}
		if config.AddEOS && name("eos_token") != "" {
			after = []string{name("eos_token")}
		}
	}
	ids := func(tokens ...string) (ids []int32, err error) {
		for _, token := range tokens {
			one, unknown := id(token)
			ids, err = append(ids, one), cmp.Or(err, unknown)
		}
		return ids, err
	}
	own, err := ids(slices.Concat(before, after)...)
	if err != nil {
		return err
	}
	s.before, s.after = append(s.before, own[:len(before)]...), append(s.after, own[len(before):]...)
	if pad := name("pad_token"); pad != "" {
		if s.pad, err = id(pad); err != nil {
			return err
		}
	}
	s.setSides(whole, config)
	return nil
}

// setSides notes padding or truncation on the left. The config takes precedence over tokenizer.json.
func (s *tokenizerSpec) setSides(whole *tokenizerFile, config *tokenizerConfig) {
	if whole == nil {
		whole = &tokenizerFile{}
	}
	left := func(config, file string) bool { return strings.EqualFold(cmp.Or(config, file), "left") }
	s.padsLeft, s.cutsLeft = left(config.PaddingSide, whole.Padding.Direction), left(config.TruncationSide, whole.Truncation.Direction)
}
