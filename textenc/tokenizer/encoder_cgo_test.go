//go:build cgo

package tokenizer_test

import "testing"

// needTokenizer skips a test in a program that has no tokenizer; this one has it.
func needTokenizer(*testing.T) {}
