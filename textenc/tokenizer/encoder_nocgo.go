//go:build !cgo

package tokenizer

import "errors"

// Available reports whether the program has the tokenizers library.
const Available = false

func newEncoder([]byte) (encoder, error) {
	return nil, errors.New("this program was built without cgo, which the tokenizer needs; build it with CGO_ENABLED=1 after make setup")
}
