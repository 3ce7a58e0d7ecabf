package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// A span is a range of bytes in a file, without the one at end.
type span struct{ begin, end int64 }

// spans are sorted and neither overlap nor touch.
type spans []span

// add adds a span and merges it with those that it touches.
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

// missing returns the spans that s lacks in a file of size bytes, cut into pieces
// of at most limit bytes.
func (s spans) missing(size, limit int64) (rest spans) {
	at := int64(0)
	gap := func(end int64) {
		for ; at < end; at = min(at+limit, end) {
			rest = append(rest, span{at, min(at+limit, end)})
		}
	}
	for _, x := range s {
		gap(x.begin)
		at = x.end
	}
	gap(size)
	return rest
}

// bytes returns the total length.
func (s spans) bytes() (n int64) {
	for _, x := range s {
		n += x.end - x.begin
	}
	return n
}

// A record is the JSON file next to a partial download. It lists the bytes that
// are complete.
type record struct {
	Size int64      `json:"size"`
	Done [][2]int64 `json:"done"`
}

// marshal encodes the record of a file of size bytes.
func (s spans) marshal(size int64) []byte {
	r := record{Size: size, Done: [][2]int64{}}
	for _, x := range s {
		r.Done = append(r.Done, [2]int64{x.begin, x.end})
	}
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // cannot happen: there are only numbers
	}
	return data
}

// parseRecord decodes and validates the record of a file of size bytes.
func parseRecord(data []byte, size int64) (spans, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if r.Size != size {
		return nil, fmt.Errorf("record of a file of %d bytes, expected %d", r.Size, size)
	}
	var s spans
	for _, d := range r.Done {
		if d[0] < 0 || d[1] <= d[0] || d[1] > size || len(s) > 0 && d[0] <= s[len(s)-1].end {
			return nil, errors.New("the spans are not sorted")
		}
		s = append(s, span{d[0], d[1]})
	}
	return s, nil
}
