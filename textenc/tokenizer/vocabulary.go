package tokenizer

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// fromVocabulary reads vocab.json and merges.txt.
func (s *tokenizerSpec) fromVocabulary(fsys fs.FS, dir string) error {
	full := func(name string) string { return checkpoint.FullName(fsys, path.Join(dir, name)) }
	data, err := checkpoint.ReadText(fsys, s.file, maxTokenizerSize)
	if notExist(fsys, s.file, err) {
		if _, spm := fs.Stat(fsys, path.Join(dir, "spiece.model")); spm == nil {
			return fmt.Errorf("%s: SentencePiece's format is %w (create tokenizer.json next to it: "+
				"T5Tokenizer.from_pretrained(folder).save_pretrained(folder))", full("spiece.model"), checkpoint.ErrUnsupported)
		}
		return fmt.Errorf("%s: found neither tokenizer.json nor vocab.json: %w", checkpoint.FullName(fsys, dir), fs.ErrNotExist)
	}
	if err == nil {
		if s.vocab, err = parseVocabulary(data); err != nil {
			err = fmt.Errorf("%s: %w", full("vocab.json"), err)
		}
	}
	if err != nil {
		return err
	}
	switch {
	case s.class == nil:
		return fmt.Errorf("%s: tokenizer_class is missing, which vocab.json needs (CLIPTokenizer or Qwen2Tokenizer)",
			full("tokenizer_config.json"))
	case s.class.unigram:
		return fmt.Errorf("%s: tokenizer_class %s has no vocab.json, and there is no tokenizer.json", full("tokenizer_config.json"),
			s.class.name)
	}
	if data, err = checkpoint.ReadText(fsys, path.Join(dir, "merges.txt"), maxTokenizerSize); err != nil {
		return err
	}
	text, err := textOf(data)
	if err != nil {
		return fmt.Errorf("%s: %w", full("merges.txt"), err)
	}
	s.mergeList = make([]merge, 0, len(s.vocab))
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#version") {
			continue
		}
		m, ok := splitMerge(line)
		if !ok {
			return fmt.Errorf("%s: line %d: expected two tokens and a space between them, found %.80q", full("merges.txt"), n, line)
		}
		s.mergeList = append(s.mergeList, m)
	}
	return nil
}

// parseVocabulary parses vocab.json.
func parseVocabulary(data []byte) (map[string]uint32, error) {
	text, err := textOf(data)
	if err != nil {
		return nil, err
	}
	r := scanner{text: text}
	ids, err := r.vocabulary()
	if kind, token := r.next(); err == nil && kind != 0 {
		err = r.unexpected("the end", kind, token)
	}
	return ids, err
}
