package checkpoint

import (
	"cmp"
	"slices"
	"sync"
)

// readAheadChunk is how many bytes [Checkpoint.ReadAhead] reads at once.
const readAheadChunk = 4 << 20

// ReadAhead begins to read the tensors in the background, at most limit bytes, so that they are in
// the operating system's cache when they are needed. stop ends it, and returns how many bytes were
// read; it must be called before Close. An error ends it too: who needs the tensor will report it.
func (c *Checkpoint) ReadAhead(limit int64) (stop func() int64) {
	end, done := make(chan struct{}), make(chan int64)
	go func() { done <- c.readRanges(limit, end) }()
	return sync.OnceValue(func() int64 {
		close(end)
		return <-done
	})
}

func (c *Checkpoint) readRanges(limit int64, end <-chan struct{}) (n int64) {
	if limit <= 0 {
		return 0
	}
	buf := make([]byte, readAheadChunk)
	for _, f := range c.Files {
		for _, r := range c.ranges(f) {
			for at := r.begin; at < r.end; at += readAheadChunk {
				size := min(readAheadChunk, r.end-at, limit-n)
				select {
				case <-end:
					return n
				default:
				}
				m, err := f.f.ReadAt(buf[:size], f.Header.DataOffset+at)
				n += int64(m)
				if err != nil || n == limit {
					return n
				}
			}
		}
	}
	return n
}

// ranges returns the parts of a file that the checkpoint's tensors are in, in order. Tensors with
// less than a chunk between them are one part.
func (c *Checkpoint) ranges(f *File) (merged []span) {
	var all []span
	for _, t := range c.Tensors {
		if t.File == f.Name {
			for _, t := range t.InFile() {
				all = append(all, span{t.Begin, t.End})
			}
		}
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
	for _, r := range all {
		if last := len(merged) - 1; last >= 0 && r.begin-merged[last].end < readAheadChunk {
			merged[last].end = max(merged[last].end, r.end)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}
