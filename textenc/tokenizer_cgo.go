//go:build cgo

package textenc

// The tokenizers library is Rust, linked statically. These flags find the
// archive that make setup builds; without it, linking fails with "cannot find
// -ltokenizers": run make setup.

// #cgo LDFLAGS: -L${SRCDIR}/../.setup/lib
import "C"

import "github.com/daulet/tokenizers"

type rustEncoder struct{ t *tokenizers.Tokenizer }

func newEncoder(data []byte) (encoder, error) {
	t, err := tokenizers.FromBytes(data)
	if err != nil {
		return nil, err
	}
	return rustEncoder{t}, nil
}

func (e rustEncoder) Encode(text string) []int32 {
	ids, _ := e.t.Encode(text, false)
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

func (e rustEncoder) VocabSize() int { return int(e.t.VocabSize()) }

func (e rustEncoder) Close() { e.t.Close() }
