package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/debug"
	"github.com/gomflux/gomflux/debugger/protocol"
)

// A fakeSession answers each command with the same result, and keeps the last request.
type fakeSession struct {
	*protocol.Reservation
	folder  *protocol.Folder
	answers map[string]protocol.Answer
	request protocol.Request
	stop    func() // ends the server
}

// sessionsFolder makes an empty folder of sockets for the test.
func sessionsFolder(t *testing.T) *protocol.Folder {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gomflux-") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	folder, err := protocol.OpenFolder()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func startFake(t *testing.T, folder *protocol.Folder, status protocol.Status) *fakeSession {
	t.Helper()
	r, err := folder.Reserve(status.Session)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSession{Reservation: r, folder: folder, answers: map[string]protocol.Answer{}}
	s.answer(protocol.Terminate, "{}")
	if err := r.WriteStatus(status); err != nil {
		t.Fatal(err)
	}
	l, err := r.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		protocol.Serve(ctx, l, func(_ context.Context, r protocol.Request) protocol.Answer {
			s.request = r
			if r.Command == protocol.Terminate {
				ended := status
				ended.State = protocol.Terminated
				defer s.Close(ended)
			}
			return s.answers[r.Command]
		})
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(func() {
		s.stop()
		s.Close(status)
	})
	return s
}

// answer sets the answer to a command: a result in JSON, or "error" with its code.
func (s *fakeSession) answer(command, result string) {
	s.answers[command] = protocol.Answer{OK: true, Result: json.RawMessage(result)}
	if text, failed := strings.CutPrefix(result, "error "); failed {
		s.answers[command] = protocol.Answer{Code: int(text[0] - '0'), Error: text[2:]}
	}
}

// gomfluxCommand runs the command.
func gomfluxCommand(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

const stoppedJSON = `{"session":"1","side":"gomflux","state":"stopped","stop":{"name":"transformer.layers.0@3","reason":"breakpoint 1",` +
	`"breakpoint":1,"hit":2,"module":"transformer.layers.0","class":"Block","step":3,"call":0,"negative":false,"shape":[1,64,64],` +
	`"dtype":"float32"},"command":["generate","-p","a b"],"pid":7,"began":"2026-11-23T01:00:00Z","trace":"t.jsonl","output":"o.log"}`

// TestDebugCommands compares the requests and the printed results of the commands that only send
// a request.
func TestDebugCommands(t *testing.T) {
	folder := sessionsFolder(t)
	s := startFake(t, folder, protocol.Status{Session: "1", Side: "gomflux", State: protocol.Stopped})
	const stopText = "stopped after transformer.layers.0@3 (breakpoint 1, hit 2): float32 [1, 64, 64]\n"
	point := func(fields string) string { return `{"number":1,"glob":"a*"` + fields + `,"hits":0}` }
	for _, c := range []struct {
		args      string // separated by |
		arguments string // of the request
		answer    string
		code      int
		stdout    string
		stderr    string
	}{
		{"break|a*", `{"glob":"a*"}`, point(""), 0, "breakpoint 1: a*\n", ""},
		{"break|a*|--step=3|--call=1|--hit=2|--negative|--if=timestep > 900|--once",
			`{"glob":"a*","step":3,"call":1,"hit":2,"negative":true,"if":"timestep > 900","once":true}`,
			point(`,"step":3,"call":1,"hit":2,"negative":true,"if":"timestep > 900","once":true`), 0,
			"breakpoint 1: a*, step 3, call 1, hit 2, negative, if timestep > 900, once\n", ""},
		{"break|a*|--step|0|--call|0", `{"glob":"a*","step":0,"call":0}`, point(`,"step":0,"call":0`), 0,
			"breakpoint 1: a*, step 0, call 0\n", ""},
		{"break|--differs", `{"differs":true}`, `{"number":2,"differs":true,"hits":0}`, 0, "breakpoint 2: tensors that differ\n", ""},
		{"break|a*|--differs", `{"glob":"a*","differs":true}`, point(`,"differs":true`), 0, "breakpoint 1: a*, where it differs\n", ""},
		{"break|x/m.py:12", `{"file":"x/m.py","line":12}`, `{"number":3,"file":"x/m.py","line":12,"hits":0}`, 0,
			"breakpoint 3: x/m.py:12\n", ""},
		{"break|a:in.0", `{"glob":"a:in.0"}`, "error 2 a:in.0: no module has such a name", 2, "",
			"gomflux: a:in.0: no module has such a name\n"},
		{"break|a*|--step=-1|--if=True|--watch", `{"glob":"a*","step":-1,"if":"True","watch":true}`,
			point(`,"step":-1,"if":"True","watch":true`), 0, "watch 1: a*, step -1, if True\n", ""},
		{"breaks", "", `{"breakpoints":[]}`, 0, "no breakpoints\n", ""},
		{"breaks", "", `{"breakpoints":[{"number":1,"glob":"a","hits":2},{"number":2,"glob":"b","watch":true,"hits":1},` +
			`{"number":4,"differs":true,"hits":0}]}`, 0,
			"breakpoint 1: a, 2 hits\nwatch 2: b, 1 hit\nbreakpoint 4: tensors that differ, no hits\n", ""},
		{"remove|4", `{"number":4}`, `{"removed":[4]}`, 0, "removed breakpoint 4\n", ""},
		{"clear", "", `{"removed":[1,2]}`, 0, "removed breakpoints 1, 2\n", ""},
		{"clear", "", `{"removed":[],"files":0,"bytes":0}`, 0, "no breakpoints\n", ""},
		{"continue", `{"max_wait":60}`, stoppedJSON, 0, stopText, ""},
		{"continue|--until|x*|--max-wait|2.5", `{"until":"x*","max_wait":2.5}`, stoppedJSON, 0, stopText, ""},
		{"next|--max-wait=0", `{}`, stoppedJSON, 0, stopText, ""},
		{"out", `{"max_wait":60}`, stoppedJSON, 0, stopText, ""},
		{"step", `{"max_wait":60}`, stoppedJSON, 0, stopText, ""},
		{"accept", `{"max_wait":60}`, stoppedJSON, 0, stopText, ""},
		{"accept", `{"max_wait":60}`, "error 2 there is no tensor to accept", 2, "", "gomflux: there is no tensor to accept\n"},
		{"continue", `{"max_wait":60}`, `{"state":"loading","progress":"loading the transformer (41 %)","timed_out":true}`, 124,
			"still loading the transformer (41 %)\n",
			"gomflux: the run has not stopped within --max-wait (gomflux debug continue waits again)\n"},
		{"continue", `{"max_wait":60}`, `{"state":"failed","error":"no space","exit_code":1}`, 1, "the run has failed: no space\n",
			"gomflux: the run has failed (gomflux debug log prints its output)\n"},
		{"continue", `{"max_wait":60}`, `{"state":"finished","exit_code":0,"never_hit":[{"number":1,"glob":"b","near":["a","c"]}]}`, 0,
			"the run has finished\nbreakpoint 1: b was never hit (near: a, c)\n", ""},
		{"vars", `{}`, `{"name":"x","variables":[],"parameters":[]}`, 0, "", ""},
		{"vars|--weights", `{"weights":true}`, `{"name":"x","variables":[],"parameters":[]}`, 0, "", ""},
		{"eval|out.shape", `{"source":"out.shape"}`, `{"text":"[1, 2]","value":[1,2],"output":["printed"]}`, 0, "printed\n[1, 2]\n", ""},
		{"eval|-", `{"source":"x = 1\nx\n"}`, `{"text":"None"}`, 0, "", ""},
		{"eval|1 +", `{"source":"1 +"}`, "error 2 line 1: unexpected end", 2, "", "gomflux: line 1: unexpected end\n"},
		{"save", `{}`, `{"name":"latents@0","file":"logs/x.safetensors"}`, 0, "latents@0 saved in logs/x.safetensors\n", ""},
		{"save|mine", `{"name":"mine"}`, `{"name":"mine","file":"f"}`, 0, "mine saved in f\n", ""},
		{"set|mine", `{"source":"mine"}`, `{"name":"latents@0","source":"mine"}`, 0, "latents@0 is replaced by mine\n", ""},
		{"status", "", stoppedJSON, 0, "session 1 (gomflux): stopped\n" + stopText +
			"command: generate -p 'a b'\noutput: o.log\ntrace: t.jsonl\n", ""},
		{"location", "", "error 2 the run is running (gomflux debug continue waits until it stops)", 2, "",
			"gomflux: the run is running (gomflux debug continue waits until it stops)\n"},
	} {
		args := append([]string{"debug"}, strings.Split(c.args, "|")...)
		command := args[1]
		s.answer(command, c.answer)
		code, stdout, stderr := gomfluxCommand("x = 1\nx\n", args...)
		if code != c.code || stdout != c.stdout || stderr != c.stderr {
			t.Errorf("%q: code %d, %q, %q\nexpected %d, %q, %q", args, code, stdout, stderr, c.code, c.stdout, c.stderr)
		}
		if s.request.Command != command || string(s.request.Arguments) != c.arguments {
			t.Errorf("%q sent %s %s, expected %s", args, s.request.Command, s.request.Arguments, c.arguments)
		}
		if strings.HasPrefix(c.answer, "error") {
			continue
		}
		code, stdout, _ = gomfluxCommand("x = 1\nx\n", append(args, "--json", "--session=1")...)
		var got, want any
		err := json.Unmarshal([]byte(stdout), &got)
		if code != c.code || err != nil || strings.Count(stdout, "\n") != 1 || json.Unmarshal([]byte(c.answer), &want) != nil ||
			!contains(got, want) {
			t.Errorf("%q --json: code %d, %s (%v), expected %d, %s", args, code, stdout, err, c.code, c.answer)
		}
	}
}

// contains reports whether JSON has all of what is wanted.
func contains(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		for key, v := range want {
			zero := v == false || v == 0.0
			ok = ok && (contains(object[key], v) || zero && object[key] == nil)
		}
		return ok
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return false
		}
		for i := range want {
			if !contains(list[i], want[i]) {
				return false
			}
		}
		return true
	}
	return got == want
}

// TestDebugUsage: invalid input is refused before a session is asked.
func TestDebugUsage(t *testing.T) {
	folder := sessionsFolder(t)
	s := startFake(t, folder, protocol.Status{Session: "1", Side: "gomflux", State: protocol.Stopped})
	for _, c := range []struct{ args, want string }{
		{"", "give a command: "},
		{"brake|x", `unknown command "brake"`},
		{"break|--watch", "give the pattern"},
		{"break|a|b", `unexpected argument "b" (quote`},
		{"break|a|--step=-2", "must be a whole number, -1 or more"},
		{"break|a|--call=-1", "must be a whole number, 0 or more"},
		{"break|a|--hit=0", "must be a whole number, 1 or more"},
		{"breaks|x", `unexpected argument "x"`},
		{"remove", "give the number of a breakpoint"},
		{"remove|x", `breakpoint "x": must be a number`},
		{"remove|0", `breakpoint "0": must be a number`},
		{"clear|1", "debug remove removes one"},
		{"continue|x", "--until names a tensor"},
		{"continue|--max-wait=-1", "must be a number, 0 or more"},
		{"next|x", "unexpected argument"},
		{"step|--until=x", "unknown flag: --until"},
		{"eval", "give an expression"},
		{"eval| ", "the expression is empty"},
		{"eval|-", "the expression is empty"},
		{"eval|" + strings.Repeat("x", debug.MaxProgram+1), "the program is too long"},
		{"save|", "the name is empty"},
		{"save|a|b", "unexpected argument"},
		{"set", "give a file of tensors"},
		{"set|", "the name of the tensor is empty"},
		{"log|-n|0", "must be a whole number, 1 or more"},
		{"terminate|1", "--session names a session"},
		{"terminate|--all|--session=1", "give either --all or --session"},
		{"status|--session=../1", `session name "../1"`},
		{"status|--session=2", "no session 2 (there are: 1)"},
		{"sessions|x", "unexpected argument"},
		{"trace|x", "unexpected argument"},
		{"clean|1", "debug terminate ends a session"},
	} {
		args := append([]string{"debug"}, strings.Split(c.args, "|")...)
		if c.args == "" {
			args = args[:1]
		}
		code, stdout, stderr := gomfluxCommand("", args...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%.60q: code %d, %q, %q, expected %q", args, code, stdout, stderr, c.want)
		}
	}
	if s.request.Command != "" {
		t.Errorf("the session got %q", s.request.Command)
	}
}

// TestDebugEnded: sessions that have ended, are several, or do not exist.
func TestDebugEnded(t *testing.T) {
	folder := sessionsFolder(t)
	expect := func(args string, code int, stdout, stderr string) {
		t.Helper()
		gotCode, gotOut, gotErr := gomfluxCommand("", append([]string{"debug"}, strings.Fields(args)...)...)
		if gotCode != code || gotOut != stdout || gotErr != stderr {
			t.Errorf("%s: code %d, %q, %q\nexpected %d, %q, %q", args, gotCode, gotOut, gotErr, code, stdout, stderr)
		}
	}
	for _, args := range []string{"status", "continue", "vars", "terminate", "log"} {
		expect(args, 2, "", "gomflux: no session (gomflux debug start begins one)\n")
	}
	expect("sessions", 0, "no sessions\n", "")
	expect("sessions --json", 0, `{"sessions":[]}`+"\n", "")
	expect("clean", 0, "nothing to remove\n", "")
	expect("clean --json", 0, `{"removed":[],"files":0,"bytes":0}`+"\n", "")
	expect("terminate --all", 0, "no sessions\n", "")

	output := filepath.Join(t.TempDir(), "output.log")
	if err := os.WriteFile(output, []byte("1\n2\n3\n4\n5\n6\ngomflux: no space\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	code := 1
	status := protocol.Status{
		Session: "1", Side: "gomflux", State: protocol.Stopped, Command: []string{"generate"}, PID: 7,
		Began: "2026-11-23T01:00:00Z", Output: output,
	}
	one := startFake(t, folder, status)
	final := status
	final.State, final.Error, final.ExitCode = protocol.Failed, "no space", &code
	one.stop()
	one.Close(final)
	expect("continue", 1, "the run has failed: no space\n", "gomflux: the run has failed (gomflux debug log prints its output)\n")
	expect("status", 0, "session 1 (gomflux): failed\nerror: no space\n    3\n    4\n    5\n    6\n    gomflux: no space\n"+
		"command: generate\noutput: "+output+"\n", "")
	expect("log -n 2", 0, "6\ngomflux: no space\n", "")
	expect("vars", 2, "", "gomflux: session 1 has failed: no space (gomflux debug start begins another)\n")
	expect("terminate", 2, "", "gomflux: session 1 has failed: no space (gomflux debug start begins another)\n")

	status.Session = "2"
	startFake(t, folder, status)
	status.Session = "other"
	startFake(t, folder, status)
	expect("vars", 2, "", "gomflux: 2 sessions are running: 2, other (choose one with --session)\n")
	expect("sessions", 0, "SESSION  SIDE     STATE    PID  BEGAN                 COMMAND\n"+
		"1        gomflux  failed   7    2026-11-23T01:00:00Z  generate\n"+
		"2        gomflux  stopped  7    2026-11-23T01:00:00Z  generate\n"+
		"other    gomflux  stopped  7    2026-11-23T01:00:00Z  generate\n", "")
	expect("status --session 3", 2, "", "gomflux: no session 3 (there are: 1, 2, other)\n")
	expect("terminate --session 2", 0, "session 2 is terminated\n", "")
	expect("terminate --all", 2, "", "gomflux: this ends 1 session: other: give --yes\n")
	expect("terminate --all --dry-run", 0, "session other would be terminated: generate\n", "")
	expect("terminate --all --yes", 0, "session other is terminated\n", "")
	expect("clean --yes", 0,
		"session 1 (failed) is removed\nsession 2 (terminated) is removed\nsession other (terminated) is removed\n", "")
	expect("sessions", 0, "no sessions\n", "")
}

// TestDebugFolder: a folder of sockets that others can read is refused.
func TestDebugFolder(t *testing.T) {
	folder := sessionsFolder(t)
	if err := os.Chmod(folder.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"sessions", "status", "continue", "terminate", "clean"} {
		code, stdout, stderr := gomfluxCommand("", "debug", command)
		if code != 2 || stdout != "" || !strings.Contains(stderr, "mode 0755, expected 0700") {
			t.Errorf("%s: code %d, %q, %q", command, code, stdout, stderr)
		}
	}
}

func TestDebugCompletion(t *testing.T) {
	folder := sessionsFolder(t)
	s := startFake(t, folder, protocol.Status{Session: "1", Side: "gomflux", State: protocol.Stopped})
	s.answer(protocol.GetStatus, stoppedJSON)
	s.answer(protocol.Breaks, `{"breakpoints":[{"number":1,"glob":"a","hits":2},{"number":3,"glob":"b","watch":true}]}`)
	for _, c := range []struct{ args, want string }{
		{"status|--session|", "1\tgomflux, stopped\n:4\n"},
		{"remove|", "1\tbreakpoint 1: a\n3\twatch 3: b\n:4\n"},
		{"remove|1|", ":4\n"},
		{"set|", "safetensors\nnpy\nnpz\n:8\n"},
		{"vars|", ":4\n"},
	} {
		args := append([]string{cobra.ShellCompRequestCmd, "debug"}, strings.Split(c.args, "|")...)
		if _, stdout, _ := gomfluxCommand("", args...); stdout != c.want {
			t.Errorf("%q: %q, expected %q", args, stdout, c.want)
		}
	}
}

// TestDebugHelp: every command's help has its exit codes, and its JSON fields.
func TestDebugHelp(t *testing.T) {
	_, list, _ := gomfluxCommand("", "debug", "--help")
	for _, sub := range debug.NewCommand(newRootCommand).Commands() {
		if sub.Hidden {
			continue
		}
		_, stdout, _ := gomfluxCommand("", "debug", sub.Name(), "--help")
		for _, part := range []string{"\nEXIT STATUS\n", "--json", "Examples:"} {
			if !strings.Contains(stdout, part) {
				t.Errorf("the help of %s has no %q", sub.Name(), part)
			}
		}
		if !strings.Contains(list, "\n  "+sub.Name()+" ") {
			t.Errorf("the help of debug does not list %s", sub.Name())
		}
	}
}
