//go:build cgo

package tokenizer

// The tokenizers library is Rust. It is linked statically from the folder that make
// setup writes it to. A message of the linker would not explain that, so it is checked
// here.

/*
#cgo CFLAGS: -I${SRCDIR}
#cgo LDFLAGS: -L${SRCDIR}/../../.setup/lib
#if !__has_include("../../.setup/lib/libtokenizers.a")
#error "libtokenizers.a is not there: run make setup, or build with CGO_ENABLED=0 for a program without a tokenizer"
#endif
*/
import "C"

import "github.com/daulet/tokenizers"

// Available reports whether the program has the tokenizers library.
const Available = true

type rustEncoder struct{ t *tokenizers.Tokenizer }

func newEncoder(data []byte) (encoder, error) {
	t, err := tokenizers.FromBytes(data)
	if err != nil {
		return nil, err
	}
	return rustEncoder{t}, nil
}

func (e rustEncoder) Encode(text string) []int32 {
	// not Encode, which also asks for the names of tokens: a name with a NUL ends the
	// process
	ids := e.t.EncodeWithOptions(text, false).IDs
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

func (e rustEncoder) Starts(text string) []int {
	offsets := e.t.EncodeWithOptions(text, false, tokenizers.WithReturnOffsets()).Offsets
	out := make([]int, len(offsets))
	for i, o := range offsets {
		out[i] = int(o[0])
	}
	return out
}

func (e rustEncoder) Close() { e.t.Close() }
