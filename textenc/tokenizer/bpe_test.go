//go:build cgo

package tokenizer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBPE holds ids and offsets against those of the tokenizers library with the whole vocabulary.
func TestBPE(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	specs := map[string]*tokenizerSpec{}
	for _, folder := range []string{"clip-5", "clip-vocab", "qwen2-4", "qwen2-vocab"} {
		spec, err := readTokenizer(os.DirFS("testdata"), folder)
		if err != nil {
			t.Fatal(err)
		}
		specs[folder] = spec
	}
	for i := range 40 {
		specs[fmt.Sprint("random ", i)] = randomBPE(t, r, []string{"CLIPTokenizer", "Qwen2Tokenizer"}[i%2])
	}
	// a and bc are merged where a and b were to be: the result has the same id
	shared := randomBPE(t, r, "Qwen2Tokenizer")
	shared.vocab = map[string]uint32{"a": 0, "b": 1, "c": 2, "d": 3, "bc": 4, "ab": 5, "bcd": 6, "abc": 5}
	shared.mergeList = []merge{{"b", "c"}, {"a", "b"}, {"bc", "d"}, {"a", "bc"}}
	number(t, shared)
	specs["shared"] = shared
	alphabet := []string{"a", "b", "c", "ab", "d", "A", "é", "e\u0301", "ﬁ", "猫", "🙂", "\u200d", " ", "  ", "\t", "\r\n", "'s",
		"'LL", "7", ",", "--",
		"<|endoftext|>", "<|im_start|>", "<x>", "ĠĀ", "\u0345", "İ", "\x01"}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		spec := specs[name]
		fast, err := spec.newBPE()
		if err != nil {
			t.Fatal(err)
		}
		whole, err := spec.newEncoder()
		if err != nil {
			t.Fatal(err)
		}
		all := len(spec.mergeList) > 100 // with all bytes; the library counts dropped ones wrongly
		for range 150 {
			var b strings.Builder
			for range r.IntN(30) {
				b.WriteString(alphabet[r.IntN(min(len(alphabet), 3+r.IntN(len(alphabet))))])
			}
			text := b.String()
			if got, want := fast.Encode(text), whole.Encode(text); !slices.Equal(got, want) {
				t.Fatalf("%s: %+q is %v, expected %v", name, text, got, want)
			}
			if got, want := fast.Starts(text), whole.Starts(text); all && !slices.Equal(got, want) {
				t.Fatalf("%s: the tokens of %+q start at %v, expected %v", name, text, got, want)
			}
		}
		fast.Close()
		whole.Close()
	}
}

// randomBPE makes a vocabulary of few bytes in which several merges have one result.
func randomBPE(t *testing.T, r *rand.Rand, name string) *tokenizerSpec {
	t.Helper()
	class, err := classNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	s := &tokenizerSpec{class: class, vocab: map[string]uint32{}, unk: "<|endoftext|>"}
	var tokens []string
	put := func(token string) {
		if _, ok := s.vocab[token]; !ok {
			s.vocab[token] = uint32(len(s.vocab))
			tokens = append(tokens, token)
		}
	}
	put(s.unk)
	for _, c := range []string{"a", "b", "c", "Ġ", "Ã", "©"} {
		put(c)
		if class.suffix != "" {
			put(c + class.suffix)
		}
	}
	for range 60 {
		a, b := tokens[1+r.IntN(len(tokens)-1)], tokens[1+r.IntN(len(tokens)-1)]
		if class.suffix != "" && strings.HasSuffix(a, class.suffix) || len(a+b) > 12 {
			continue
		}
		put(a + b)
		s.mergeList = append(s.mergeList, merge{a, b})
	}
	number(t, s)
	return s
}

// number gives merges and added tokens their numbers.
func number(t *testing.T, s *tokenizerSpec) {
	t.Helper()
	s.added = []addedToken{{ID: noID, Content: "<|endoftext|>", Special: true}, {ID: noID, Content: "<x>", LStrip: true},
		{ID: noID, Content: "ab", SingleWord: true, Normalized: true}}
	if err := s.rankMerges(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.place(); err != nil {
		t.Fatal(err)
	}
}

// TestBPEOfBytes: an added token that is also a character for a byte is left to the library.
func TestBPEOfBytes(t *testing.T) {
	for content, want := range map[string]bool{"<y>": true, "猫": true, "a": false, "Ġ": false, "\x00b": false} {
		s := randomBPE(t, rand.New(rand.NewPCG(5, 6)), "Qwen2Tokenizer")
		s.added = append(s.added, addedToken{ID: noID, Content: content})
		if _, err := s.place(); err != nil {
			t.Fatal(err)
		}
		e, err := s.newBPE()
		if err != nil {
			t.Fatal(err)
		}
		if _, got := e.(*bpe); got != want {
			t.Errorf("%q: %t, expected %t", content, got, want)
		}
		id := s.added[len(s.added)-1].ID
		if got := e.Encode("b" + content + "b"); !strings.Contains(content, "\x00") && !slices.Contains(got, int32(id)) {
			t.Errorf("%q: %v has no %d", content, got, id)
		}
		e.Close()
	}
}

// TestBPELongWord: a long word takes no quadratic time.
func TestBPELongWord(t *testing.T) {
	s := randomBPE(t, rand.New(rand.NewPCG(5, 6)), "Qwen2Tokenizer")
	e, err := s.newBPE()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	start := time.Now()
	if e.Encode(strings.Repeat("acb", maxText/9)); time.Since(start) > 30*time.Second {
		t.Errorf("took %s", time.Since(start))
	}
}

// TestSpellWholeWords spells tokens that no merge makes, as those of Mistral's vocabulary.
func TestSpellWholeWords(t *testing.T) {
	e := &bpe{whole: map[string]uint32{"a": 0, "Ġcat": 2, "é": 3, "<s>": 4}, added: []addedToken{{ID: 4, Content: "<s>", Special: true}}}
	for i := range e.ids {
		e.ids[i] = noID
	}
	e.ids['a'] = 0
	e.spellAll()
	for id, want := range []string{"a", "", " cat", "\xe9", ""} {
		if got := string(e.spelling[id]); got != want {
			t.Errorf("token %d is %q, expected %q", id, got, want)
		}
	}
}
