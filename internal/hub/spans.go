package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// A span is the bytes of a file from Begin up to End.
type span struct{ begin, end int64 }

// spans are in order and neither overlap nor touch.
type spans []span

// add joins a span to the others.
func (s *spans) add(begin, end int64) {
	if begin >= end {
		return
	}
	old := *s
	i, _ := slices.BinarySearchFunc(old, begin, func(x span, at int64) int { return int(min(max(x.end-at, -1), 1)) })
	j := i
	for ; j < len(old) && old[j].begin <= end; j++ {
		begin, end = min(begin, old[j].begin), max(end, old[j].end)
	}
	*s = slices.Replace(old, i, j, span{begin, end})
}

// missing are the spans of a file of some size that are not in s, none longer
// than most.
func (s spans) missing(size, most int64) (rest spans) {
	at := int64(0)
	gap := func(end int64) {
		for ; at < end; at = min(at+most, end) {
			rest = append(rest, span{at, min(at+most, end)})
		}
	}
	for _, x := range s {
		gap(x.begin)
		at = x.end
	}
	gap(size)
	return rest
}

// bytes is how many they are together.
func (s spans) bytes() (n int64) {
	for _, x := range s {
		n += x.end - x.begin
	}
	return n
}

// A record is what is kept beside an unfinished file: which of its bytes are
// there.
type record struct {
	Size int64      `json:"size"`
	Done [][2]int64 `json:"done"`
}

// marshal writes the record of a file of some size.
func (s spans) marshal(size int64) []byte {
	r := record{Size: size, Done: [][2]int64{}}
	for _, x := range s {
		r.Done = append(r.Done, [2]int64{x.begin, x.end})
	}
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers
	}
	return data
}

// parseRecord reads the record of a file that must be of some size.
func parseRecord(data []byte, size int64) (spans, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if r.Size != size {
		return nil, fmt.Errorf("is of a file of %d bytes, expected %d", r.Size, size)
	}
	var s spans
	for _, d := range r.Done {
		if d[0] < 0 || d[1] <= d[0] || d[1] > size || len(s) > 0 && d[0] <= s[len(s)-1].end {
			return nil, errors.New("its spans are not in order")
		}
		s = append(s, span{d[0], d[1]})
	}
	return s, nil
}
