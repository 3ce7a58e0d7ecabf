package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzRequest: a request has a command and an object of arguments, or no arguments, and
// is the same when it is sent again.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{`{"command":"breaks"}`, `{"command":"break","arguments":{"glob":"a*","step":3}}` + "\n{", "null",
		`{"command":"eval","arguments":{"source":"out.shape\n"}}`, `{"Command":"x","arguments":null}`, `{"command":1}`, "\xff", "[[["} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		line, err := readLine(bufio.NewReader(bytes.NewReader(data)), 1000)
		if err != nil {
			return
		}
		if len(line) > 1000 || bytes.IndexByte(line, '\n') >= 0 {
			t.Fatalf("line %q", line)
		}
		r, err := parseRequest(line)
		if err != nil {
			return
		}
		var object map[string]any
		if r.Command == "" || len(r.Arguments) > 0 && json.Unmarshal(r.Arguments, &object) != nil {
			t.Fatalf("%q is %+v", line, r)
		}
		var arguments any
		if r.Arguments != nil {
			arguments = r.Arguments
		}
		text, err := encodeRequest(r.Command, arguments)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseRequest(bytes.TrimSuffix(text, []byte("\n")))
		if err != nil || again.Command != r.Command {
			t.Fatalf("%q is %q again (%v)", line, text, err)
		}
	})
}

// FuzzStatus: what is read from NAME.json has a name and a state, and is the same when
// it is written again.
func FuzzStatus(f *testing.F) {
	f.Add([]byte(`{"session":"1","side":"gomflux","state":"stopped","stop":{"name":"latents@0","shape":[1]},"command":["generate"],` +
		`"pid":1,"began":"2026-11-23T00:00:00Z","trace":"t","output":"o","watched":[{"number":1,"name":"x","stats":{"min":"NaN"}}]}`))
	f.Add([]byte(`{"session":"../1","state":"stopped"}`))
	f.Add([]byte(`{"session":"1","state":"finished","exit_code":0,"never_hit":[{"number":1,"glob":"a","near":["b"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseStatus(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseStatus(text)
		if err != nil || again.Session != s.Session || again.State != s.State || CheckName(s.Session) != nil {
			t.Fatalf("%s is %+v again (%v)", text, again, err)
		}
	})
}
