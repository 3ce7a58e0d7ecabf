package tokenizer

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A bpe encodes text with a BPE vocabulary. The tokenizers library only normalizes the text and cuts
// it into added tokens, words and bytes: it takes longer to read a vocabulary than all the rest of
// loading does, and ten times the memory.
type bpe struct {
	cutter encoder
	ids    [512]uint32 // of the characters that stand for bytes: in words, and at their ends; noID for dropped ones
	added  []addedToken
	merges merges
	whole  map[string]uint32 // words that are not merged; nil if all are

	words    func() (encoder, error) // cuts out no added tokens; made when it is needed
	made     encoder                 // by words, nil until then
	spell    sync.Once
	spelling [][]byte // what each token stands for, see Bytes
}

// merges has the merges of a vocabulary.
type merges struct {
	ranks map[uint64]uint32 // numbers of the merges, by pair
	ids   []uint32          // that they result in
}

// The cutter's ids are those of characters that begin a word, those of others, which have a prefix that
// no text has, and added tokens.
const (
	inside      = 256
	firstAdded  = 512
	insideWords = "\x00"
)

// characters are those that stand for bytes in vocabularies since GPT-2: a byte's own if
// it is printable in Latin-1, and otherwise the next one from U+0100 on.
var characters = func() []string {
	list := make([]string, 256)
	next := rune(256)
	for i := range list {
		r := rune(i)
		if r <= ' ' || r >= 0x7f && r <= 0xa0 || r == 0xad {
			r = next
			next++
		}
		list[i] = string(r)
	}
	return list
}()

// newBPE makes the encoder of validated files. The cutter cannot tell added tokens that are also a
// character for a byte: with one, the encoder is the library with the whole vocabulary.
func (s *tokenizerSpec) newBPE() (encoder, error) {
	class := *s.class
	class.suffix = ""
	cutter := tokenizerSpec{class: &class, added: s.added, prefix: insideWords, vocab: map[string]uint32{}, mergeList: []merge{}}
	e := &bpe{added: s.added, merges: s.merges}
	if s.whole {
		e.whole = s.vocab
	}
	idOf := func(token string) uint32 {
		if id, ok := s.vocab[token]; ok {
			return id
		}
		if s.class.suffix != "" {
			return s.vocab[s.unk]
		}
		return noID
	}
	for i, c := range characters {
		e.ids[i], e.ids[256+i] = idOf(c), idOf(c+s.class.suffix)
		cutter.vocab[c], cutter.vocab[insideWords+c] = uint32(i), uint32(inside+i)
	}
	if slices.ContainsFunc(s.added, func(t addedToken) bool {
		_, ok := cutter.vocab[t.Content]
		return ok
	}) {
		return s.newEncoder()
	}
	words := cutter
	words.added = []addedToken{}
	e.words = sync.OnceValues(func() (_ encoder, err error) {
		e.made, err = words.newEncoder()
		return e.made, err
	})
	var err error
	e.cutter, err = cutter.newEncoder()
	return e, err
}

// rankMerges numbers the merges. It returns an error for a merge whose tokens or result are not in the
// vocabulary. Of two merges of a pair, the last one counts.
func (s *tokenizerSpec) rankMerges() error {
	s.merges = merges{make(map[uint64]uint32, len(s.mergeList)), make([]uint32, len(s.mergeList))}
	for i, m := range s.mergeList {
		a, okA := s.vocab[m[0]]
		b, okB := s.vocab[m[1]]
		ab, ok := s.vocab[m[0]+m[1]]
		if !okA || !okB || !ok {
			missing := slices.DeleteFunc([]string{m[0], m[1], m[0] + m[1]}, func(token string) bool {
				_, ok := s.vocab[token]
				return ok
			})
			return fmt.Errorf("merge %d (%q, %q): the vocabulary does not have %q", i+1, m[0], m[1], missing[0])
		}
		s.merges.ranks[uint64(a)<<32|uint64(b)], s.merges.ids[i] = uint32(i), ab
	}
	return nil
}

func (e *bpe) Encode(text string) []int32 {
	ids, _ := e.join(e.cutter.Encode(text))
	return ids
}

func (e *bpe) Starts(text string) []int {
	_, starts := e.join(e.cutter.Encode(text))
	offsets := e.cutter.Starts(text)
	for i, start := range starts {
		starts[i] = offsets[start]
	}
	return starts
}

func (e *bpe) Close() {
	e.cutter.Close()
	if e.made != nil {
		e.made.Close()
	}
}

// join returns the ids of a text that the cutter has cut, and where among the cutter's ids each begins.
func (e *bpe) join(cut []int32) (ids []int32, starts []int) {
	var word []symbol
	var text strings.Builder // of the word, with e.whole
	first := 0               // of the word
	for i, id := range cut {
		if id >= firstAdded {
			ids, starts = append(ids, int32(e.added[id-firstAdded].ID)), append(starts, i)
			continue
		}
		id &= 0xff
		end := i+1 == len(cut) || cut[i+1] < inside || cut[i+1] >= firstAdded
		if end {
			id += 256
		}
		if e.ids[id] != noID {
			word = append(word, symbol{id: e.ids[id], start: i})
		}
		if e.whole != nil {
			if text.Len() == 0 {
				first = i
			}
			text.WriteString(characters[id&0xff])
		}
		if end {
			if known, ok := e.whole[text.String()]; ok {
				word = append(word[:0], symbol{id: known, next: 1, start: first})
			} else {
				e.merges.merge(word)
			}
			text.Reset()
			for at := 0; at < len(word); at = word[at].next {
				ids, starts = append(ids, int32(word[at].id)), append(starts, word[at].start)
			}
			word = word[:0]
		}
	}
	return ids, starts
}

// A symbol is a part of a word that may be merged with its neighbours.
type symbol struct {
	id         uint32
	prev, next int // of the word's symbols; next is their number at the end, and -1 in a symbol that was merged into prev
	start      int // among the cutter's ids
}

// merge merges the symbols of a word: always the pair of the lowest rank, and of several such ones the
// first. It follows the tokenizers library's Word::merge_all, which also merges a pair that has
// changed since it was queued, if the result is the same.
func (m *merges) merge(word []symbol) {
	var q queue
	enqueue := func(at int) {
		if at >= 0 && word[at].next < len(word) {
			if rank, ok := m.rank(word, at); ok {
				heap.Push(&q, uint64(rank)<<32|uint64(at))
			}
		}
	}
	for i := range word {
		word[i].prev, word[i].next = i-1, i+1
	}
	for i := range word {
		enqueue(i)
	}
	for len(q) > 0 {
		top := heap.Pop(&q).(uint64)
		at, id := int(top&(1<<32-1)), m.ids[top>>32]
		left := &word[at]
		if left.next < 0 || left.next == len(word) {
			continue
		}
		if rank, ok := m.rank(word, at); !ok || m.ids[rank] != id {
			continue
		}
		right := &word[left.next]
		left.id, left.next, right.next = id, right.next, -1
		if left.next < len(word) {
			word[left.next].prev = at
		}
		enqueue(left.prev)
		enqueue(at)
	}
}

// rank returns the rank of the pair that begins at a symbol, and reports whether it is merged.
func (m *merges) rank(word []symbol, at int) (uint32, bool) {
	rank, ok := m.ranks[uint64(word[at].id)<<32|uint64(word[word[at].next].id)]
	return rank, ok
}

// A queue is a heap of pairs: 32 bits of rank and of place.
type queue []uint64

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i] < q[j] }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(uint64)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
