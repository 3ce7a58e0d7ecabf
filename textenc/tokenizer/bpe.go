package tokenizer

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A bpe encodes text with a BPE vocabulary. The tokenizers library only normalizes the text and cuts
// it into added tokens, words and bytes: it takes longer to read a vocabulary than all the rest of
// loading does, and keeps 20 times as much memory.
type bpe struct {
	cutter encoder
	// ids has the ids of the 256 characters that stand for bytes, in words and at their ends. Without
	// one it is noID: the character is dropped.
	ids, last [256]uint32
	added     []uint32          // ids of the added tokens
	ranks     map[uint64]uint32 // numbers of the merges, by pair
	merged    []uint32          // ids that the merges result in
}

// firstAdded is the first id of the cutter's added tokens. Before it are characters that begin a word
// and then those that do not, as continuing_subword_prefix marks them.
const (
	firstAdded = 512
	continuing = "\x00" // no text has it
)

// byteCharacters are the characters that stand for bytes in vocabularies since GPT-2: a byte's own if
// it is printable in Latin-1, and otherwise the next one from U+0100 on.
func byteCharacters() []string {
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
}

// cutsWords reports whether [bpe] can encode with the added tokens: not with one whose name is also
// a character for a byte.
func (s *tokenizerSpec) cutsWords() bool {
	characters := byteCharacters()
	return !s.class.unigram && !slices.ContainsFunc(s.added, func(t addedToken) bool {
		return strings.Contains(t.Content, continuing) || utf8.RuneCountInString(t.Content) == 1 && slices.Contains(characters, t.Content)
	})
}

// newBPE makes the encoder of validated files.
func (s *tokenizerSpec) newBPE() (*bpe, error) {
	class := *s.class
	class.suffix = ""
	cutter := tokenizerSpec{class: &class, added: s.added, prefix: continuing, vocab: map[string]uint32{}, merges: []merge{}}
	e := &bpe{ranks: s.ranks, merged: s.merged}
	unknown := uint32(noID)
	if s.class.suffix != "" {
		unknown = s.vocab[s.unk]
	}
	idOf := func(token string) uint32 {
		if id, ok := s.vocab[token]; ok {
			return id
		}
		return unknown
	}
	for i, c := range byteCharacters() {
		e.ids[i], e.last[i] = idOf(c), idOf(c+s.class.suffix)
		cutter.vocab[c], cutter.vocab[continuing+c] = uint32(i), uint32(256+i)
	}
	for _, t := range s.added {
		e.added = append(e.added, t.ID)
	}
	text, err := cutter.json()
	if err == nil {
		e.cutter, err = newEncoder(text)
	}
	return e, err
}

// rankMerges numbers the merges. It returns an error for a merge whose tokens or result are not in the
// vocabulary. Of two merges of a pair, the last one counts.
func (s *tokenizerSpec) rankMerges() error {
	s.ranks, s.merged = make(map[uint64]uint32, len(s.merges)), make([]uint32, len(s.merges))
	for i, m := range s.merges {
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
		s.ranks[pairOf(a, b)], s.merged[i] = uint32(i), ab
	}
	return nil
}

func pairOf(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }

func (e *bpe) Encode(text string) []int32 {
	ids, _ := e.encode(text)
	return ids
}

func (e *bpe) Starts(text string) []int {
	_, starts := e.encode(text)
	offsets := e.cutter.Starts(text)
	for i, start := range starts {
		starts[i] = offsets[start]
	}
	return starts
}

func (e *bpe) Close() { e.cutter.Close() }

// encode returns the ids of a text, and where among the cutter's ids each begins.
func (e *bpe) encode(text string) (ids []int32, starts []int) {
	cut := e.cutter.Encode(text)
	var word []symbol
	for i, id := range cut {
		if id >= firstAdded {
			ids, starts = append(ids, int32(e.added[id-firstAdded])), append(starts, i)
			continue
		}
		end := i+1 == len(cut) || cut[i+1] < 256 || cut[i+1] >= firstAdded
		table := &e.ids
		if end {
			table = &e.last
		}
		if id := table[id&0xff]; id != noID {
			word = append(word, symbol{id: id, start: i})
		}
		if !end {
			continue
		}
		e.merge(word)
		for at := 0; at < len(word); at = word[at].next {
			ids, starts = append(ids, int32(word[at].id)), append(starts, word[at].start)
		}
		word = word[:0]
	}
	return ids, starts
}

// A symbol is a part of a word that may be merged with its neighbours.
type symbol struct {
	id         uint32
	prev, next int // of the word's symbols; next is len(word) at the end
	start      int // among the cutter's ids
	gone       bool
}

// merge merges the symbols of a word: always the pair of the lowest rank, and of several such ones the
// first. It follows the tokenizers library's Word::merge_all, which also merges a pair that has
// changed since it was queued, if the result is the same.
func (e *bpe) merge(word []symbol) {
	var q queue
	for i := range word {
		word[i].prev, word[i].next = i-1, i+1
		if i > 0 {
			q = e.enqueue(q, word, i-1)
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		top := heap.Pop(&q).(uint64)
		at, id := int(top&(1<<32-1)), e.merged[top>>32]
		left := &word[at]
		if left.gone || left.next == len(word) {
			continue
		}
		right := &word[left.next]
		if rank, ok := e.ranks[pairOf(left.id, right.id)]; !ok || e.merged[rank] != id {
			continue
		}
		left.id, left.next, right.gone = id, right.next, true
		if right.next < len(word) {
			word[right.next].prev = at
		}
		for _, changed := range []int{left.prev, at} {
			n := len(q)
			if q = e.enqueue(q, word, changed); len(q) > n {
				heap.Fix(&q, n)
			}
		}
	}
}

// enqueue adds the pair that begins at a symbol to the queue, if there is a merge of it.
func (e *bpe) enqueue(q queue, word []symbol, at int) queue {
	if at < 0 || word[at].next == len(word) {
		return q
	}
	if rank, ok := e.ranks[pairOf(word[at].id, word[word[at].next].id)]; ok {
		q = append(q, uint64(rank)<<32|uint64(at))
	}
	return q
}

// A queue is a heap of pairs: rank and place.
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
