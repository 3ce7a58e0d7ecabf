//go:build cgo

package tokenizer

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestScores has the library choose between pieces whose scores differ by one unit in the last
// place: it has to read every score exactly.
func TestScores(t *testing.T) {
	const words, first = 2000, '一'
	class, err := classNamed("T5Tokenizer")
	if err != nil {
		t.Fatal(err)
	}
	spec := tokenizerSpec{class: class, added: []addedToken{}, pieces: []piece{{"<pad>", 0}, {"</s>", 0}, {"<unk>", 0}, {"▁", 0}}}
	r := rand.New(rand.NewPCG(1, 2))
	var text []string
	var joined []bool // whether the whole word is the likelier piece
	for i := 0; len(text) < words; i++ {
		high := -float64(float32(20 * r.Float64())) // as published scores, which are float32
		low := math.Nextafter(high, -100)
		if !strings.Contains(string(appendExact(nil, high)), "e") || !strings.Contains(string(appendExact(nil, low)), "e") {
			continue // has no text that is read exactly
		}
		whole, part := high, low
		if i%2 == 1 {
			whole, part = low, high
		}
		a, b := string(rune(first+2*len(text))), string(rune(first+2*len(text)+1))
		spec.pieces = append(spec.pieces, piece{a + b, whole}, piece{a, part}, piece{b, 0})
		text, joined = append(text, a+b), append(joined, i%2 == 0)
	}
	e, err := spec.newEncoder()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	wrong := 0
	for i, word := range text {
		ids := e.Encode(word)
		if (len(ids) == 2) != joined[i] { // with the space
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d words have other pieces", wrong, words)
	}
}
