package ui

import (
	"strings"
	"testing"
)

type named struct {
	Name string `json:"name"`
}

func (n named) Text(p *Page) { p.Fields(6)("name", "%s", n.Name) }

// TestOutput checks what each format writes where.
func TestOutput(t *testing.T) {
	for _, test := range []struct {
		output         Output
		stdout, stderr string
	}{
		{Output{}, "name   \"a\\x1b\"\n", "note 1\nsaid\ngomflux: warning: odd \\x1b\n"},
		{Output{Quiet: true}, "name   \"a\\x1b\"\n", "said\ngomflux: warning: odd \\x1b\n"},
		{Output{Format: JSON}, `{"name":"a\u001b"}` + "\n", "gomflux: warning: odd \\x1b\n"},
		{
			Output{Format: JSONLines},
			`{"name":"a\u001b"}` + "\n" + `{"message_type":"warning","message":"odd \u001b"}` + "\n" +
				`{"message_type":"error","message":"bad","exit_code":2}` + "\n",
			"",
		},
	} {
		var stdout, stderr strings.Builder
		o := test.output
		o.Stdout, o.Stderr = &stdout, &stderr
		if err := o.Result(named{"a\x1b"}); err != nil {
			t.Error(err)
		}
		o.Note("note %d", 1)
		o.Say("said")
		o.Warn("odd %s", "\x1b")
		o.Event(Message{"error", "bad", 2})
		o.Status("50 %%") // not a terminal
		if stdout.String() != test.stdout || stderr.String() != test.stderr || o.Err() != nil {
			t.Errorf("format %d: found %q and %q, expected %q and %q", o.Format, stdout.String(), stderr.String(), test.stdout, test.stderr)
		}
	}
}
