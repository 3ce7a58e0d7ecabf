package runs

import "testing"

func TestShortFile(t *testing.T) {
	if at := thisFile(); at != "parity/runs/short_test.go" {
		t.Errorf("%q, expected parity/runs/short_test.go", at)
	}
	if got := ShortFile("/usr/lib/go/src/fmt/print.go"); got != "/usr/lib/go/src/fmt/print.go" {
		t.Errorf("%q: a file of another module was shortened", got)
	}
}

func thisFile() string { return ShortFile(caller(func(string) bool { return false }).File) }
