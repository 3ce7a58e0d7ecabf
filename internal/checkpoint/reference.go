package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// A Reference says where a tensor is: FILE[:KEY][@CAST].
type Reference struct {
	File string
	Key  string // "" is the file's only tensor
	Cast Dtype  // what to make of it, "" for what it is
}

// suffixes are the names' ends by which a key can be told from its file.
var suffixes = []string{".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin"}

// ParseReference reads FILE[:KEY][@CAST]. What is all the name of a file that is
// there has no key. Else the key begins behind the first colon that follows one
// of .safetensors, .npy and .npz; where there is none, behind the last one, if a
// file is there under the name before it. A cast is a
// dtype's name, so the step of a key (latents@8) is none.
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
			return r, fmt.Errorf("%s: no name behind the colon", s)
		}
	}
	if r.File == "" {
		return r, fmt.Errorf("%q: expected FILE, FILE:NAME or FILE:NAME@dtype", s)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return r, errors.New("a file's name cannot have a NUL in it")
	}
	return r, nil
}

// splitKey is where the colon before the key is, or -1.
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

// Open opens the file and finds the tensor. Without a key it is the file's only
// one, or that with one of the names; an error lists what there is.
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
		return Tensor{}, f.lacks(key)
	case len(all) == 0:
		return Tensor{}, errors.New("has no tensors")
	case len(all) == 1:
		return all[0], nil
	}
	for _, name := range names {
		if i, ok := f.Tensor(name); ok {
			return i, nil
		}
	}
	none := ""
	if len(names) > 0 {
		none = fmt.Sprintf(" and none is named %s", strings.Join(names, " or "))
	}
	return Tensor{}, fmt.Errorf("has %d tensors%s: put :NAME behind the file's name, with one of %s", len(all), none, f.list())
}

// list describes the first tensors for a message.
func (f *ArrayFile) list() string {
	const most = 10
	var parts []string
	for _, e := range f.members[:min(most, len(f.members))] {
		parts = append(parts, fmt.Sprintf("%s %s", quote.Printable(e.Name), e.Type()))
	}
	if n := len(f.members) - most; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	return strings.Join(parts, ", ")
}

// Read reads the tensor and casts it where that is asked for. It is chosen as
// by [Reference.Open].
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
