package nn

import "testing"

// SetReadAhead sets how many bytes are read ahead, during a test.
func SetReadAhead(t *testing.T, bytes int64) {
	old := readAhead
	readAhead = bytes
	t.Cleanup(func() { readAhead = old })
}
