package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/oserr"
)

var npyMagic = []byte("\x93NUMPY")

// maxNPYHeader limits the length of a header. NumPy writes about one line.
const maxNPYHeader = 1 << 16

// numpyTypes maps the part of descr after the byte order to element types.
var numpyTypes = map[string]Dtype{
	"f8": F64, "f4": F32, "f2": F16, "i8": I64, "i4": I32, "i2": I16, "i1": I8,
	"u8": U64, "u4": U32, "u2": U16, "u1": U8, "b1": Bool,
}

// descr returns the name of a dtype in NumPy's files.
func (d Dtype) descr() (string, error) {
	for code, t := range numpyTypes {
		if t == d {
			if d.Size() == 1 {
				return "|" + code, nil
			}
			return "<" + code, nil
		}
	}
	return "", fmt.Errorf("NumPy has no dtype %s (write a .safetensors file, or cast to float32)", d)
}

// parseNPY reads the header of a .npy file.
func (f *ArrayFile) parseNPY(r io.ReaderAt, size int64) error {
	s := io.NewSectionReader(r, 0, size)
	e, err := readNPYHeader(s)
	if err != nil {
		return err
	}
	at, _ := s.Seek(0, io.SeekCurrent)
	if got, want := size-at, e.Bytes(); got != want {
		return fmt.Errorf("%d bytes follow the header, expected %d for %s: the file is damaged or truncated", got, want, e.Type())
	}
	e.Name = strings.TrimSuffix(filepath.Base(f.Path), ".npy")
	e.sized = true
	e.open = func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(r, at, size-at)), nil }
	f.members = []member{e}
	return nil
}

// readNPYHeader reads everything before the elements. The caller sets name and
// open of the member.
func readNPYHeader(r io.Reader) (member, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return member{}, fmt.Errorf("cannot read the header: %w", oserr.NoEOF(err))
	}
	if string(prefix[:6]) != string(npyMagic) {
		return member{}, errors.New("not a .npy file")
	}
	size := 4
	switch major := prefix[6]; major {
	case 1:
		size = 2
	case 2, 3:
	default:
		return member{}, fmt.Errorf("version %d of the .npy format, expected 1, 2 or 3", major)
	}
	var length [4]byte
	if _, err := io.ReadFull(r, length[:size]); err != nil {
		return member{}, fmt.Errorf("cannot read the header: %w", oserr.NoEOF(err))
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > maxNPYHeader {
		return member{}, fmt.Errorf("header of %d bytes, expected at most %d", n, maxNPYHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return member{}, fmt.Errorf("cannot read the header: %w", oserr.NoEOF(err))
	}
	e, err := parseNPYHeader(string(text))
	if err != nil {
		return member{}, fmt.Errorf("header: %w", err)
	}
	return e, e.checkNumeric()
}

// npyDict matches the text of a header, a Python dictionary, and npyEntry an entry of it: a key, and a string, list, tuple
// or word.
var (
	npyDict  = regexp.MustCompile(`(?s)^\s*\{(.*)\}\s*$`)
	npyEntry = regexp.MustCompile(`^\s*['"]([^'"\\]*)['"]\s*:\s*('[^'\\]*'|"[^"\\]*"|\[.*\]|\([^()]*\)|\w+)\s*(?:,\s*|$)`)
)

// parseNPYHeader parses the header's text, which has the keys descr, fortran_order and shape.
func parseNPYHeader(text string) (e member, err error) {
	dict := npyDict.FindStringSubmatch(text)
	if dict == nil {
		return e, fmt.Errorf("expected {, entries and }, found %.60q", text)
	}
	seen := map[string]bool{}
	for rest := strings.TrimSpace(dict[1]); rest != ""; {
		entry := npyEntry.FindStringSubmatch(rest)
		if entry == nil {
			return e, fmt.Errorf("expected a key and its value, found %.60q", rest)
		}
		key := entry[1]
		if seen[key] {
			return e, fmt.Errorf("duplicate key %q", key)
		}
		if err := e.parseKey(key, entry[2]); err != nil {
			return e, err
		}
		seen[key], rest = true, rest[len(entry[0]):]
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return e, fmt.Errorf("no key %q", key)
		}
	}
	return e, nil
}

// parseKey reads the value of a key of the header.
func (e *member) parseKey(key, value string) (err error) {
	switch key {
	case "descr":
		if value[0] == '[' {
			return errors.New("structured arrays are not supported")
		}
		e.Dtype, e.bigEndian, err = parseDescr(strings.Trim(value, `'"`))
	case "fortran_order":
		if e.fortran = value == "True"; !e.fortran && value != "False" {
			return fmt.Errorf("fortran_order: expected True or False, found %.60q", value)
		}
	case "shape":
		e.Shape, err = parseTuple(value)
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	return err
}

// parseDescr parses a dtype such as <f4: the byte order and the type.
func parseDescr(descr string) (d Dtype, bigEndian bool, err error) {
	if descr != "" && strings.ContainsRune("<>|=", rune(descr[0])) {
		d = numpyTypes[descr[1:]]
		bigEndian = descr[0] == '>'
	}
	switch {
	case d != "":
		return d, bigEndian, nil
	case strings.HasSuffix(descr, "V2"):
		return "", false, fmt.Errorf("dtype %q may be bfloat16, which NumPy's files cannot name (save it as float32, or "+
			"in a .safetensors file)",
			descr)
	case strings.HasSuffix(descr, "O"):
		return "", false, fmt.Errorf("dtype %q: Python objects are not supported", descr)
	}
	return "", false, fmt.Errorf("dtype %q is not supported (expected <f4, <f2, <i8 and so on)", descr)
}

// parseTuple parses a shape such as (2, 3) or (2,).
func parseTuple(text string) ([]int, error) {
	if text[0] != '(' {
		return nil, fmt.Errorf("shape: expected a tuple, found %.60q", text)
	}
	axes := strings.Split(strings.Trim(text, "()"), ",")
	if last := len(axes) - 1; strings.TrimSpace(axes[last]) == "" {
		axes = axes[:last]
	}
	if len(axes) > maxAxes {
		return nil, fmt.Errorf("more than %d axes", maxAxes)
	}
	shape := []int{}
	for _, axis := range axes {
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(axis), "L"), 10, strconv.IntSize-1) // L is of Python 2
		if err != nil {
			return nil, fmt.Errorf("shape: expected the size of an axis, found %.60q", axis)
		}
		shape = append(shape, int(n))
	}
	return shape, nil
}

// npyHeader returns the bytes that NumPy writes before the elements.
func npyHeader(t *Array) ([]byte, error) {
	descr, err := t.Dtype.descr()
	if err != nil {
		return nil, err
	}
	var axes []string
	for _, d := range t.Shape {
		axes = append(axes, strconv.Itoa(d))
	}
	shape := strings.Join(axes, ", ")
	if len(axes) == 1 {
		shape += ","
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape)
	// the elements begin at a multiple of 64 bytes
	const fixed = 10 // magic, version, length
	text += strings.Repeat(" ", (64-(fixed+len(text)+1)%64)%64) + "\n"
	header := append(slices.Clone(npyMagic), 1, 0)
	header = binary.LittleEndian.AppendUint16(header, uint16(len(text)))
	return append(header, text...), nil
}

// writeNPY writes a .npy file, which contains exactly one array.
func writeNPY(w io.Writer, tensors []*Array) error {
	if len(tensors) != 1 {
		return fmt.Errorf("a .npy file has exactly one array, found %d (write a .npz file)", len(tensors))
	}
	t := tensors[0]
	header, err := npyHeader(t)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	_, err = w.Write(t.Data)
	return err
}
