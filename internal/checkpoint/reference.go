package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// A Reference names a tensor in a file: FILE[:KEY][@CAST].
type Reference struct {
	File string
	Key  string // "" for the file's only tensor
	Cast Dtype  // dtype to convert to, "" to keep the tensor's
}

// suffixes are the file name extensions after which a key may follow.
var suffixes = []string{".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin"}

// ParseReference parses FILE[:KEY][@CAST].
//
// If all of FILE[:KEY] is the name of an existing file, there is no key.
// Otherwise the key follows the first colon after one of the suffixes. If no
// colon follows a suffix, it follows the last colon, provided that the part
// before it is an existing file.
//
// CAST is the name of a dtype. Anything else after @, such as the step in
// latents@8, belongs to the key.
func ParseReference(s string) (Reference, error) {
	var r Reference
	rest := s
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		if d, err := ParseDtype(s[i+1:]); err == nil {
			r.Cast, rest = d, s[:i]
		}
	}
	r.File = rest
	if i := splitKey(rest); i >= 0 {
		r.File, r.Key = rest[:i], rest[i+1:]
		if r.Key == "" {
			return r, fmt.Errorf("%s: no name after the colon", s)
		}
	}
	if r.File == "" {
		return r, fmt.Errorf("%q: expected FILE, FILE:NAME or FILE:NAME@dtype", s)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return r, errors.New("the name of the file contains a NUL")
	}
	return r, nil
}

// splitKey returns the index of the colon before the key, or -1.
func splitKey(s string) int {
	if strings.IndexByte(s, ':') < 0 || isFile(s) {
		return -1
	}
	at := -1
	for _, suffix := range suffixes {
		if i := strings.Index(s, suffix+":"); i >= 0 && (at < 0 || i+len(suffix) < at) {
			at = i + len(suffix)
		}
	}
	if at >= 0 || slices.ContainsFunc(suffixes, func(suffix string) bool { return strings.HasSuffix(s, suffix) }) {
		return at
	}
	if i := strings.LastIndexByte(s, ':'); i > 0 && isFile(s[:i]) {
		return i
	}
	return -1
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func (r Reference) String() string {
	s := r.File
	if r.Key != "" {
		s += ":" + r.Key
	}
	if r.Cast != "" {
		s += "@" + r.Cast.Long()
	}
	return s
}

// Open opens the file and finds the tensor. Without a key that is the only tensor
// of the file or the one with one of names. The error lists the tensors of the
// file.
func (r Reference) Open(names ...string) (*ArrayFile, Tensor, error) {
	f, err := OpenArrays(r.File)
	if err != nil {
		return nil, Tensor{}, err
	}
	i, err := f.choose(r.Key, names)
	if err != nil {
		f.Close()
		return nil, Tensor{}, fmt.Errorf("%s: %w", r.File, err)
	}
	return f, i, nil
}

func (f *ArrayFile) choose(key string, names []string) (Tensor, error) {
	all := f.Tensors()
	switch {
	case key != "":
		if i, ok := f.Tensor(key); ok {
			return i, nil
		}
		return Tensor{}, f.noTensor(key)
	case len(all) == 0:
		return Tensor{}, errors.New("the file has no tensors")
	case len(all) == 1:
		return all[0], nil
	}
	for _, name := range names {
		if i, ok := f.Tensor(name); ok {
			return i, nil
		}
	}
	missing := ""
	if len(names) > 0 {
		missing = fmt.Sprintf(", but no %s", strings.Join(names, " or "))
	}
	return Tensor{}, fmt.Errorf("the file has %d tensors%s: append :NAME to the file name, with one of %s", len(all), missing, f.list())
}

// list describes the first tensors for a message.
func (f *ArrayFile) list() string {
	const limit = 10
	var parts []string
	for _, e := range f.members[:min(limit, len(f.members))] {
		parts = append(parts, fmt.Sprintf("%s %s", quote.Printable(e.Name), e.Type()))
	}
	if n := len(f.members) - limit; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	return strings.Join(parts, ", ")
}

// Read reads the tensor that [Reference.Open] finds and converts it to Cast.
func (r Reference) Read(names ...string) (*Array, error) {
	f, i, err := r.Open(names...)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := f.Read(i.Name)
	if err == nil && r.Cast != "" {
		t, err = t.Cast(r.Cast)
		if err != nil {
			err = fmt.Errorf("%s: %w", r.File, err)
		}
	}
	return t, err
}
