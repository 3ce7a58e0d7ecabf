package quote

import (
	"os"
	"os/exec"
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

func TestShell(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	for s, want := range map[string]string{
		"a/b-c_1.png":         "a/b-c_1.png",
		"":                    "''",
		"é.png":               "é.png",
		"a b":                 "'a b'",
		"$(x)`y`":             "'$(x)`y`'",
		"it's":                `'it'\''s'`,
		"~/x":                 "'~/x'",
		"\x1b[0m'\"\\é\n\xff": `$'\x1b[0m\'"\\\u00e9\n\xff'`,
	} {
		got := Shell(s)
		if got != want {
			t.Errorf("%q is quoted as %s, expected %s", s, got, want)
		}
		cmd := exec.Command(bash, "-c", "printf %s "+got)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		if out, err := cmd.Output(); err != nil || string(out) != s {
			t.Errorf("%q is quoted as %s, which bash takes as %q, %v", s, got, out, err)
		}
	}
	if got := Shell("a", "b c", ""); got != "a 'b c' ''" {
		t.Errorf("words are quoted as %s", got)
	}
}
