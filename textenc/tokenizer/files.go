package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// maxTokenizerSize bounds tokenizer.json, vocab.json and merges.txt; real ones
// are up to 35 MB.
const maxTokenizerSize = 256 << 20

// readTokenizer reads the files in dir, in either layout.
func readTokenizer(fsys fs.FS, dir string) (*tokenizerSpec, error) {
	file := func(name string) string { return path.Join(dir, name) }
	named := func(name string, err error) error {
		return fmt.Errorf("%s: %w", checkpoint.FullName(fsys, file(name)), err)
	}
	config := tokenizerConfig{names: map[string]fileToken{}}
	if err := readIfThere(fsys, file("tokenizer_config.json"), &config); err != nil {
		return nil, err
	}
	class, err := classNamed(config.Class)
	if err != nil {
		return nil, named("tokenizer_config.json", err)
	}
	if err := config.check(); err != nil {
		return nil, named("tokenizer_config.json", err)
	}

	s := &tokenizerSpec{class: class, file: file("tokenizer.json"), pad: -1}
	var whole *tokenizerFile
	data, err := checkpoint.ReadFile(fsys, s.file, maxTokenizerSize)
	switch {
	case err == nil:
		whole = &tokenizerFile{}
		if err = decodeLarge(data, whole); err == nil {
			err = s.fromTokenizerJSON(whole)
		}
		if err != nil {
			return nil, named("tokenizer.json", err)
		}
	case absent(fsys, s.file, err):
		s.file = file("vocab.json")
		if err := s.fromVocabulary(fsys, dir); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, s.file), err)
	}
	if err := s.validateMerges(); err != nil {
		if whole == nil {
			return nil, named("merges.txt", err)
		}
		return nil, named("tokenizer.json", err)
	}

	// tokenizer_config.json's added tokens count before those of all others.
	var added map[uint32]fileToken
	source := "tokenizer_config.json"
	if config.AddedTokens != nil {
		added = map[uint32]fileToken{}
		for key, token := range config.AddedTokens {
			id, err := strconv.ParseUint(key, 10, 32)
			if err != nil {
				return nil, named(source, fmt.Errorf("added_tokens_decoder: %q is not an id", key))
			}
			added[uint32(id)] = token
		}
	} else {
		if err := readIfThere(fsys, file("special_tokens_map.json"), &config); err != nil {
			return nil, err
		}
		source = "added_tokens.json"
		if added, err = readAddedTokens(fsys, file(source), &config); err != nil {
			return nil, err
		}
		if whole != nil {
			source = "tokenizer.json"
			for _, t := range whole.AddedTokens {
				added[t.ID] = t
			}
		}
	}
	if err := s.add(added, &config); err != nil {
		return nil, named("tokenizer_config.json", err)
	}
	id, err := s.place()
	if err == nil {
		err = s.validateAdded()
	}
	if err != nil {
		return nil, named(source, err)
	}
	if err := s.surround(whole, &config, id); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, s.file), err)
	}
	if m := config.MaxLength; m >= 1 && m <= math.MaxInt32 {
		s.maxLength = int(m)
	}
	return s, nil
}

// readIfThere is checkpoint.ReadJSON for a file that need not be there.
func readIfThere(fsys fs.FS, name string, v any) error {
	err := checkpoint.ReadJSON(fsys, name, v)
	if absent(fsys, name, err) {
		return nil
	}
	return err
}

// absent says whether err is that there is no such file. A link to none is what
// an unfinished download leaves, and no reason to do without.
func absent(fsys fs.FS, name string, err error) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, linkErr := fs.ReadLink(fsys, name)
	return linkErr != nil
}

// decodeLarge is for JSON that is too large for checkpoint.ReadJSON.
func decodeLarge(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("the text is not UTF-8")
	}
	return json.Unmarshal(data, v)
}

// tokenizerConfig is what tokenizer_config.json and special_tokens_map.json say
// that changes ids.
type tokenizerConfig struct {
	Class          string               `json:"tokenizer_class"`
	MaxLength      float64              `json:"model_max_length"`
	AddedTokens    map[string]fileToken `json:"added_tokens_decoder"` // by id
	ExtraIDs       *int                 `json:"extra_ids"`
	SplitSpecial   bool                 `json:"split_special_tokens"`
	AddPrefixSpace bool                 `json:"add_prefix_space"`
	AddBOS         bool                 `json:"add_bos_token"`
	AddEOS         bool                 `json:"add_eos_token"`
	PaddingSide    string               `json:"padding_side"`
	TruncationSide string               `json:"truncation_side"`
	names          map[string]fileToken // bos_token and the like; of no content where the file has null
	extra          []fileToken          // nil is none given
}

// UnmarshalJSON adds what data has to what there is.
func (c *tokenizerConfig) UnmarshalJSON(data []byte) error {
	type plain tokenizerConfig
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	for key, value := range all {
		if !strings.HasSuffix(key, "_token") || !slices.Contains([]byte(`"{n`), value[0]) {
			continue
		}
		var t fileToken
		if err := json.Unmarshal(value, &t); err != nil {
			return fmt.Errorf("%s: expected a token, found %.80s", key, value)
		}
		c.names[key] = t
	}
	// The name of transformers 5 counts before that of transformers 4.
	for _, key := range []string{"extra_special_tokens", "additional_special_tokens"} {
		switch value := all[key]; {
		case len(value) == 0 || string(value) == "null" || c.extra != nil:
		case value[0] == '[':
			c.extra = []fileToken{}
			if err := json.Unmarshal(value, &c.extra); err != nil {
				return fmt.Errorf("%s: expected a list of tokens, found %.80s", key, value)
			}
			if len(c.extra) == 0 && len(all["additional_special_tokens"]) > 0 && key == "extra_special_tokens" {
				c.extra = nil
			}
		default:
			var byName map[string]fileToken
			if err := json.Unmarshal(value, &byName); err != nil {
				return fmt.Errorf("%s: expected a list of tokens, found %.80s", key, value)
			}
			maps.Copy(c.names, byName)
		}
	}
	return nil
}

// check refuses what would change ids and is not supported.
func (c *tokenizerConfig) check() error {
	switch {
	case c.SplitSpecial:
		return errors.New("split_special_tokens true is not supported")
	case c.AddPrefixSpace:
		return errors.New("add_prefix_space true is not supported")
	case c.ExtraIDs != nil && (*c.ExtraIDs < 0 || *c.ExtraIDs > 1<<16):
		return fmt.Errorf("extra_ids %d", *c.ExtraIDs)
	}
	return nil
}

// fileToken is an added token as files have it, or its content alone.
type fileToken struct {
	addedToken
	unsaid bool // whether it is normalized
}

// UnmarshalJSON takes an object or a string.
func (t *fileToken) UnmarshalJSON(data []byte) error {
	*t = fileToken{addedToken: addedToken{ID: noID}}
	if data[0] != '{' {
		t.unsaid = true
		return json.Unmarshal(data, &t.Content)
	}
	if err := json.Unmarshal(data, &t.addedToken); err != nil {
		return err
	}
	var said struct{ Normalized *bool }
	if err := json.Unmarshal(data, &said); err != nil {
		return err
	}
	t.unsaid = said.Normalized == nil
	return nil
}

// readAddedTokens reads added_tokens.json, if it is there.
func readAddedTokens(fsys fs.FS, name string, config *tokenizerConfig) (map[uint32]fileToken, error) {
	var ids map[string]uint32
	if err := readIfThere(fsys, name, &ids); err != nil {
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
			return nil, fmt.Errorf("%s: %q and %q have id %d", checkpoint.FullName(fsys, name), min(content, twin.Content), max(content, twin.Content), id)
		}
		added[id] = fileToken{addedToken: addedToken{ID: id, Content: content, Normalized: !special[content], Special: special[content]}}
	}
	return added, nil
}

// specialNames are the keys of special tokens, in transformers' order.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// add lists the added tokens in the order in which they get their ids: those of
// the files, the named special ones, the other special ones.
func (s *tokenizerSpec) add(added map[uint32]fileToken, config *tokenizerConfig) error {
	names := config.names
	for key, content := range s.class.defaults {
		if _, ok := names[key]; !ok {
			names[key] = fileToken{addedToken: addedToken{ID: noID, Content: content}, unsaid: true}
		}
	}
	known := map[string]bool{"": true}
	for _, id := range slices.Sorted(maps.Keys(added)) {
		t := added[id]
		t.ID = id
		for _, key := range specialNames {
			t.Special = t.Special || names[key].Content == t.Content
		}
		if t.unsaid {
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
			extra = append(extra, fileToken{addedToken: addedToken{Content: fmt.Sprintf("<extra_id_%d>", i)}, unsaid: true})
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
		t.Normalized = t.Normalized && !t.unsaid
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

// surround sets what goes around a text, as its class has it, and the padding.
func (s *tokenizerSpec) surround(whole *tokenizerFile, config *tokenizerConfig, id func(string) (int32, error)) error {
	name := func(key string) string { return config.names[key].Content }
	var before, after []string
	switch {
	case s.class.suffix != "":
		if _, ok := s.vocab[s.unk]; !ok {
			return fmt.Errorf("the vocabulary does not have the unknown token %q", s.unk)
		}
		before, after = []string{name("bos_token")}, []string{name("eos_token")}
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
	for _, token := range before {
		i, err := id(token)
		if err != nil {
			return err
		}
		s.before = append(s.before, i)
	}
	for _, token := range after {
		i, err := id(token)
		if err != nil {
			return err
		}
		s.after = append(s.after, i)
	}
	if pad := name("pad_token"); pad != "" {
		i, err := id(pad)
		if err != nil {
			return err
		}
		s.pad = i
	}
	var padding, truncation string
	if whole != nil {
		padding, truncation = whole.Padding.Direction, whole.Truncation.Direction
	}
	if config.PaddingSide != "" {
		padding = config.PaddingSide
	}
	if config.TruncationSide != "" {
		truncation = config.TruncationSide
	}
	switch {
	case strings.EqualFold(padding, "left"):
		s.left = "padding_side left"
	case strings.EqualFold(truncation, "left"):
		s.left = "truncation_side left"
	}
	return nil
}

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
		Vocab  json.RawMessage
		Merges json.RawMessage
		UnkID  *int    `json:"unk_id"`
		Suffix *string `json:"end_of_word_suffix"`
	}
}

// charsmapFile is what counts of a normalizer.
type charsmapFile struct {
	Charsmap    string `json:"precompiled_charsmap"`
	Normalizers []struct {
		Charsmap string `json:"precompiled_charsmap"`
	}
}

// splitFile is what counts of a pre_tokenizer.
type splitFile struct {
	Pretokenizers []struct {
		Pattern struct{ Regex string }
	}
}

// fromTokenizerJSON takes the vocabulary, and the class if it is not known.
func (s *tokenizerSpec) fromTokenizerJSON(f *tokenizerFile) error {
	m := &f.Model
	kind := m.Type
	if kind == "" && m.Merges != nil {
		kind = "BPE" // of tokenizers before 0.8
	}
	if kind != "BPE" && kind != "Unigram" {
		return fmt.Errorf("model type %q, expected BPE or Unigram", kind)
	}
	if s.class == nil {
		if s.class = f.class(); s.class == nil {
			return errors.New("neither tokenizer_class nor the pattern that splits text says which of transformers' classes this is for")
		}
	}
	if s.class.unigram != (kind == "Unigram") {
		return fmt.Errorf("model type %s is not %s's", kind, s.class.name)
	}
	if s.class.unigram {
		if m.UnkID == nil || *m.UnkID != unigramUnknown {
			return fmt.Errorf("unk_id: expected %d, as %s has it", unigramUnknown, s.class.name)
		}
		if err := json.Unmarshal(m.Vocab, &s.pieces); err != nil {
			return fmt.Errorf("vocab: %w", err)
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
	if m.Suffix != nil && *m.Suffix != s.class.suffix {
		return fmt.Errorf("end_of_word_suffix %q, expected %q, as %s has it", *m.Suffix, s.class.suffix, s.class.name)
	}
	if err := json.Unmarshal(m.Vocab, &s.vocab); err != nil {
		return fmt.Errorf("vocab: %w", err)
	}
	var err error
	if s.merges, err = parseMerges(m.Merges); err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	return nil
}

// class is the one whose pattern the file has, or nil.
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

// parseMerges reads pairs, as transformers 5 writes them, or strings with a
// space, as transformers 4 does.
func parseMerges(data json.RawMessage) ([]merge, error) {
	var lines []string
	if json.Unmarshal(data, &lines) == nil {
		merges := make([]merge, len(lines))
		for i, line := range lines {
			var ok bool
			if merges[i], ok = splitMerge(line); !ok {
				return nil, fmt.Errorf("merge %d: expected two tokens and a space between them, found %q", i+1, line)
			}
		}
		return merges, nil
	}
	var pairs [][]string
	if err := json.Unmarshal(data, &pairs); err != nil {
		return nil, err
	}
	merges := make([]merge, len(pairs))
	for i, pair := range pairs {
		if len(pair) != 2 {
			return nil, fmt.Errorf("merge %d: expected two tokens, found %q", i+1, pair)
		}
		merges[i] = merge(pair)
	}
	return merges, nil
}

func splitMerge(line string) (merge, bool) {
	a, b, ok := strings.Cut(line, " ")
	return merge{a, b}, ok && a != "" && b != "" && !strings.Contains(b, " ")
}

// fromVocabulary reads vocab.json and merges.txt.
func (s *tokenizerSpec) fromVocabulary(fsys fs.FS, dir string) error {
	full := func(name string) string { return checkpoint.FullName(fsys, path.Join(dir, name)) }
	data, err := checkpoint.ReadFile(fsys, s.file, maxTokenizerSize)
	if absent(fsys, s.file, err) {
		if _, spm := fs.Stat(fsys, path.Join(dir, "spiece.model")); spm == nil {
			return fmt.Errorf("%s: SentencePiece's format is not read; let transformers write tokenizer.json beside it: T5Tokenizer.from_pretrained(folder).save_pretrained(folder)", full("spiece.model"))
		}
		return fmt.Errorf("%s: there is neither tokenizer.json nor vocab.json: %w", checkpoint.FullName(fsys, dir), fs.ErrNotExist)
	}
	if err == nil {
		if err = decodeLarge(data, &s.vocab); err != nil {
			err = fmt.Errorf("%s: %w", full("vocab.json"), err)
		}
	}
	if err != nil {
		return err
	}
	switch {
	case s.class == nil:
		return fmt.Errorf("%s: there is no tokenizer_class, which vocab.json needs (CLIPTokenizer or Qwen2Tokenizer)", full("tokenizer_config.json"))
	case s.class.unigram:
		return fmt.Errorf("%s: tokenizer_class %s has no vocab.json, and there is no tokenizer.json", full("tokenizer_config.json"), s.class.name)
	}
	if data, err = checkpoint.ReadFile(fsys, path.Join(dir, "merges.txt"), maxTokenizerSize); err != nil {
		return err
	}
	if !utf8.Valid(data) {
		return fmt.Errorf("%s: the text is not UTF-8", full("merges.txt"))
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		text := strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r")
		if text == "" || strings.HasPrefix(text, "#version") {
			continue
		}
		m, ok := splitMerge(text)
		if !ok {
			return fmt.Errorf("%s: line %d: expected two tokens and a space between them, found %.80q", full("merges.txt"), n, text)
		}
		s.merges = append(s.merges, m)
	}
	return nil
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

// around returns what it puts before and after a single text.
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
					return nil, nil, errors.New("a template does not have the text just once")
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
			return nil, nil, errors.New("a template does not have the text just once")
		}
	default:
		return nil, nil, fmt.Errorf("type %q is not supported", p.Type)
	}
	return before, after, nil
}
