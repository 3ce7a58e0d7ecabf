package ui

import (
	"testing"
	"time"
)

func TestEscaped(t *testing.T) {
	for s, want := range map[string]string{
		"plain é 你\n\n\tlines": "plain é 你\n\n\tlines",
		"a\x1b[31m\r\x00":      `a\x1b[31m\r\x00`,
		"\x9b\u009b\u202e\xff": `\x9b\u009b\u202e\xff`,
		"\ufffd\\x":            "\ufffd\\x",
	} {
		if got := Escape(s); got != want {
			t.Errorf("%q is shown as %q, expected %q", s, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		310 * time.Millisecond: "0.31 s", 12400 * time.Millisecond: "12.4 s", 200*time.Second + 400*time.Millisecond: "3 min 20 s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, expected %q", d, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	var p Page
	p.Table(Table{{"one", "two"}, {"x", ""}, {"a\x1bb", "ä longer"}})
	if want := "one       two\nx\n\"a\\x1bb\"  ä longer\n"; p.String() != want {
		t.Errorf("found\n%s\nexpected\n%s", p.String(), want)
	}
}
