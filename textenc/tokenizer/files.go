package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"unicode/utf8"
	"unsafe"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// maxTokenizerSize limits the size of tokenizer.json, vocab.json and merges.txt.
// Those of published models have up to 35 MB.
const maxTokenizerSize = 256 << 20

// textOf returns the text of a file without copying it: data must not change any more.
func textOf(data []byte) (string, error) {
	if !utf8.Valid(data) {
		return "", errors.New("the text is not UTF-8")
	}
	return unsafe.String(unsafe.SliceData(data), len(data)), nil
}

// A folder has the files of a tokenizer.
type folder struct {
	fsys fs.FS
	dir  string
}

// file returns the path of a file in fsys.
func (f folder) file(name string) string { return path.Join(f.dir, name) }

// has reports whether a file exists.
func (f folder) has(name string) bool {
	_, err := fs.Stat(f.fsys, f.file(name))
	return !notExist(f.fsys, f.file(name), err)
}

// wrap adds the full name of a file to an error.
func (f folder) wrap(name string, err error) error {
	return fmt.Errorf("%s: %w", checkpoint.FullName(f.fsys, f.file(name)), err)
}

// readTokenizer reads the files in dir: tokenizer.json, tekken.json, or vocab.json and
// merges.txt, and the files with added tokens and options.
func readTokenizer(fsys fs.FS, dir string) (*tokenizerSpec, error) {
	f := folder{fsys, dir}
	config := tokenizerConfig{names: map[string]fileToken{}}
	if err := readOptional(fsys, f.file("tokenizer_config.json"), &config); err != nil {
		return nil, err
	}
	class, err := classNamed(config.Class)
	if err != nil {
		return nil, f.wrap("tokenizer_config.json", err)
	}
	s := &tokenizerSpec{class: class, file: f.file("tokenizer.json"), framing: framing{pad: -1}}
	whole, err := s.readModel(f)
	if err != nil {
		return nil, err
	}
	if err := config.check(s.class); err != nil {
		return nil, f.wrap("tokenizer_config.json", err)
	}
	added, source, err := s.readAllAdded(f, whole, &config)
	if err != nil {
		return nil, err
	}
	if err := s.add(added, &config); err != nil {
		return nil, f.wrap("tokenizer_config.json", err)
	}
	id, err := s.place()
	if err == nil {
		err = s.validateAdded()
	}
	if err != nil {
		return nil, f.wrap(source, err)
	}
	if err := s.setSpecial(whole, &config, id); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, s.file), err)
	}
	if m := config.MaxLength; m >= 1 && m <= math.MaxInt32 {
		s.maxLength = int(m)
	}
	return s, nil
}

// readModel reads vocabulary and merges: from tokenizer.json or tekken.json, whose rest
// it returns, or from vocab.json and merges.txt.
func (s *tokenizerSpec) readModel(f folder) (*tokenizerFile, error) {
	var whole *tokenizerFile
	mergesFile := "tokenizer.json"
	data, err := checkpoint.ReadText(f.fsys, s.file, maxTokenizerSize)
	switch {
	case err == nil:
		text, err := textOf(data)
		if err == nil {
			whole, err = s.fromTokenizerJSON(text)
		}
		if err != nil {
			return nil, f.wrap("tokenizer.json", err)
		}
	case notExist(f.fsys, s.file, err) && f.has(tekkenName):
		s.file = f.file(tekkenName)
		if data, err = checkpoint.ReadText(f.fsys, s.file, maxTokenizerSize); err != nil {
			return nil, err
		}
		if whole, err = s.fromTekken(data); err != nil {
			return nil, f.wrap(tekkenName, err)
		}
		return whole, nil
	case notExist(f.fsys, s.file, err):
		s.file, mergesFile = f.file("vocab.json"), "merges.txt"
		if err := s.fromVocabulary(f.fsys, f.dir); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(f.fsys, s.file), err)
	}
	if err := s.rankMerges(); err != nil {
		return nil, f.wrap(mergesFile, err)
	}
	return whole, nil
}

// readOptional is checkpoint.ReadJSON for a file that may not exist.
func readOptional(fsys fs.FS, name string, v any) error {
	err := checkpoint.ReadJSON(fsys, name, v)
	if notExist(fsys, name, err) {
		return nil
	}
	return err
}

// notExist reports whether err means that the file does not exist. A dangling
// symlink, as an interrupted download leaves it, does exist.
func notExist(fsys fs.FS, name string, err error) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, linkErr := fs.ReadLink(fsys, name)
	return linkErr != nil
}
