//go:build !cgo

package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// needTokenizer skips a test in a program that has no tokenizer, as this one.
func needTokenizer(t *testing.T) {
	t.Helper()
	t.Skip("built without cgo, which the tokenizer needs")
}

func TestTokenizerWithoutCgo(t *testing.T) {
	_, err := tokenizer.Load(tokenizerFiles(t, "clip-5"), "tok")
	if err == nil || !strings.HasPrefix(err.Error(), "tok/tokenizer.json: ") || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
		t.Errorf("error %v", err)
	}
}
