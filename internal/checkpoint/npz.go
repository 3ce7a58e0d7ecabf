package checkpoint

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gomflux/gomflux/internal/oserr"
)

// maxMembers limits the number of arrays in a .npz file.
const maxMembers = 100_000

// A compressed file may expand to maxExpanded bytes, or to maxRatio times its size
// if that is more. Tensors compress to about half; a zip bomb expands a thousand
// times, or without limit if its members overlap.
const (
	maxExpanded = 1 << 30
	maxRatio    = 100
)

// parseNPZ reads the headers of all arrays of a .npz file, a zip archive of .npy
// files.
func (f *ArrayFile) parseNPZ(r io.ReaderAt, size int64) error {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return fmt.Errorf("not a complete .npz file: %w", err)
	}
	if len(z.File) > maxMembers {
		return fmt.Errorf("%d arrays, expected at most %d", len(z.File), maxMembers)
	}
	seen := map[string]bool{}
	most := max(maxExpanded, maxRatio*size)
	room := uint64(most)
	for _, m := range z.File {
		if m.UncompressedSize64 > room {
			return fmt.Errorf("its arrays expand to more than %d bytes, of a file of %d: it is not read", most, size)
		}
		room -= m.UncompressedSize64
		name, ok := strings.CutSuffix(m.Name, ".npy")
		if strings.HasSuffix(m.Name, "/data.pkl") {
			return errors.New("it is a PyTorch checkpoint (convert it with the package in scripts/reference)")
		}
		if !ok {
			return fmt.Errorf("member %q is not a .npy file", m.Name)
		}
		if seen[name] {
			return fmt.Errorf("duplicate array %q", name)
		}
		seen[name] = true
		e, err := memberHeader(m)
		if err != nil {
			return fmt.Errorf("array %q: %w", name, err)
		}
		e.Name = name
		f.members = append(f.members, e)
	}
	return nil
}

// memberHeader reads the header of one array of a .npz file.
func memberHeader(m *zip.File) (member, error) {
	r, err := m.Open()
	if err != nil {
		return member{}, err
	}
	defer r.Close()
	counted := &counter{r: r}
	e, err := readNPYHeader(counted)
	if err != nil {
		return e, err
	}
	skip, size := counted.n, m.UncompressedSize64
	if uint64(skip) > size || uint64(e.Bytes()) != size-uint64(skip) {
		return e, fmt.Errorf("%d bytes follow the header, expected %d for %s", int64(size)-skip, e.Bytes(), e.Type())
	}
	e.open = func() (io.ReadCloser, error) {
		r, err := m.Open()
		if err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.Discard, r, skip); err != nil {
			r.Close()
			return nil, oserr.NoEOF(err)
		}
		return r, nil
	}
	return e, nil
}

// A counter counts the bytes that it reads.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// writeNPZ writes a .npz file.
func writeNPZ(w io.Writer, tensors []*Array) error {
	z := zip.NewWriter(w)
	for _, t := range tensors {
		if t.Name == "" {
			return errors.New("an array of a .npz file needs a name")
		}
		m, err := z.CreateHeader(&zip.FileHeader{Name: t.Name + ".npy", Method: zip.Store})
		if err != nil {
			return err
		}
		if err := writeNPY(m, []*Array{t}); err != nil {
			return err
		}
	}
	return z.Close()
}
