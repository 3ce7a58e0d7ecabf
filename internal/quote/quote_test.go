package quote

import (
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	long := strings.Repeat("x", 201)
	for _, test := range []struct{ s, text, name, printable string }{
		{"a.weight", `"a.weight"`, "a.weight", "a.weight"},
		{"", `""`, "", ""},
		{"é 你", `"é 你"`, "é 你", "é 你"},
		{`a"b\`, `"a\"b\\"`, `"a\"b\\"`, `a"b\`},
		{"a\x1b[31m\n", `"a\x1b[31m\n"`, `"a\x1b[31m\n"`, `"a\x1b[31m\n"`},
		{"\u202e\u00a0", `"\u202e\u00a0"`, `"\u202e\u00a0"`, `"\u202e\u00a0"`},
		{"\xff", `"\xff"`, `"\xff"`, `"\xff"`},
		{"\ufffd", `"` + "\ufffd" + `"`, "\ufffd", `"` + "\ufffd" + `"`},
		{long, `"` + long[:200] + `"...`, `"` + long[:200] + `"...`, long},
	} {
		if got := Text(test.s); got != test.text {
			t.Errorf("Text(%q) is %s, expected %s", test.s, got, test.text)
		}
		if got := Name(test.s); got != test.name {
			t.Errorf("Name(%q) is %s, expected %s", test.s, got, test.name)
		}
		if got := Printable(test.s); got != test.printable {
			t.Errorf("Printable(%q) is %s, expected %s", test.s, got, test.printable)
		}
		if got := IsPrintable(test.s); got != (Printable(test.s) == test.s) {
			t.Errorf("IsPrintable(%q) is %v", test.s, got)
		}
	}
}
