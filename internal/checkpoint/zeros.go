package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
)

const (
	// zeroRun is the size of the shortest run of zeros that [ZeroFinder.Check] is sure to find, in bytes.
	zeroRun = 1 << 20
	// zeroSample is how many bytes are read to see whether there may be such a run.
	zeroSample = 64
)

// ErrDamaged is wrapped by errors about files of which a part is lost.
var ErrDamaged = errors.New("damaged")

// A ZeroFinder looks for parts of a file that were never written, as interrupted downloads and copies
// leave them. They are read as zeros, which only an image of noise would show.
type ZeroFinder struct {
	File *File
	seen span // the last run
}

// Check returns an error if a tensor is in a run of zeros that no program writes: one that begins or
// ends in the middle of a row of a matrix. Zeros that begin and end with rows are left alone: matrices
// that have not been trained, padding and unused rows of embeddings. Check reads a few bytes of every
// half a megabyte, which are in the operating system's cache if the tensor was just read, and the runs
// that it finds.
func (z *ZeroFinder) Check(t Tensor) error {
	const step = zeroRun/2 - zeroSample
	sample := make([]byte, zeroSample)
	for at := t.Begin + min(step, (t.End-t.Begin)/2); at+zeroSample <= t.End; at += step {
		if at < z.seen.end && at >= z.seen.begin {
			continue
		}
		if err := z.File.read(sample, at); err != nil {
			return err
		}
		if !allZero(sample) {
			continue
		}
		var err error
		if z.seen, err = z.run(at); err != nil {
			return err
		}
		if err := z.judge(z.seen); err != nil {
			return err
		}
	}
	return nil
}

// size returns the size of the data.
func (z *ZeroFinder) size() int64 {
	h := z.File.Header
	return h.Tensors[h.Names[len(h.Names)-1]].End
}

// run returns the run of zeros around a position of the data.
func (z *ZeroFinder) run(at int64) (span, error) {
	r, size := span{at, at}, z.size()
	buf := make([]byte, 256<<10)
	for r.end < size {
		part := buf[:min(int64(len(buf)), size-r.end)]
		if err := z.File.read(part, r.end); err != nil {
			return r, err
		}
		n := len(part) - len(bytes.TrimLeft(part, "\x00"))
		if r.end += int64(n); n < len(part) {
			break
		}
	}
	for r.begin > 0 {
		part := buf[:min(int64(len(buf)), r.begin)]
		if err := z.File.read(part, r.begin-int64(len(part))); err != nil {
			return r, err
		}
		n := len(part) - len(bytes.TrimRight(part, "\x00"))
		if r.begin -= int64(n); n < len(part) {
			break
		}
	}
	return r, nil
}

func allZero(p []byte) bool { return len(bytes.TrimLeft(p, "\x00")) == 0 }

// judge returns an error if a run of zeros was not written so.
func (z *ZeroFinder) judge(r span) error {
	if r.end-r.begin < zeroRun {
		return nil
	}
	torn := false
	for _, at := range []int64{r.begin, r.end} {
		if inRow, err := z.inRow(at, at == r.begin); err != nil {
			return err
		} else if inRow {
			torn = true
		}
	}
	if !torn {
		return nil
	}
	h := z.File.Header
	first, last := h.Names[z.tensorAt(r.begin)], h.Names[z.tensorAt(r.end-1)]
	where := "in tensor " + quote.Text(first)
	if first != last {
		where = "from tensor " + quote.Text(first) + " to " + quote.Text(last)
	}
	return fmt.Errorf("%w: %s of zeros at byte %d, %s: a part was never written "+
		"(download the file again; gomflux pull NAME --verify finds and replaces damaged files)",
		ErrDamaged, units.Bytes(r.end-r.begin), h.DataOffset+r.begin, where)
}

// tensorAt returns the index in Header.Names of the tensor with a position of the data.
func (z *ZeroFinder) tensorAt(at int64) int {
	h := z.File.Header
	i, _ := slices.BinarySearchFunc(h.Names, at, func(name string, at int64) int {
		if h.Tensors[name].End <= at {
			return -1
		}
		return 1
	})
	return i
}

// inRow reports whether a run of zeros begins or ends in the middle of a row of a matrix, where the row
// before or after it has other values: there may be columns of zeros too.
func (z *ZeroFinder) inRow(at int64, begins bool) (bool, error) {
	if at <= 0 || at >= z.size() {
		return false, nil
	}
	h := z.File.Header
	t := h.Tensors[h.Names[z.tensorAt(at)]]
	if len(t.Shape) < 2 {
		return false, nil
	}
	row := t.Bytes() / int64(t.Shape[0])
	if len(t.Shape) == 3 { // matrices
		row /= int64(t.Shape[1])
	}
	off := (at - t.Begin) % row
	if off <= zeroSample || row-off <= zeroSample {
		return false, nil
	}
	other := at - row
	if !begins {
		other = at + row - zeroSample
	}
	if other < t.Begin || other+zeroSample > t.End {
		return true, nil
	}
	sample := make([]byte, zeroSample)
	err := z.File.read(sample, other)
	return !allZero(sample), err
}
