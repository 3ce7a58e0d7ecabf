package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/randtest"
)

// A debugUser runs gomflux in folders of its own.
type debugUser struct {
	*testing.T
	dir, sockets, temp string
}

func newDebugUser(t *testing.T) *debugUser {
	t.Helper()
	runtime, err := os.MkdirTemp("/tmp", "gomflux-") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	u := &debugUser{t, t.TempDir(), filepath.Join(runtime, "gomflux-debug"), t.TempDir()}
	t.Cleanup(func() { u.command("debug", "terminate", "--user", "--yes").Run() })
	return u
}

func (u *debugUser) command(args ...string) *exec.Cmd {
	cmd := exec.Command("gomflux", args...)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "XDG_RUNTIME_DIR="+filepath.Dir(u.sockets),
		"TMPDIR="+u.temp, "GOMFLUX_LOG_DIR=")
	return cmd
}

// debug runs gomflux debug, and checks the exit code and that an error is one line.
func (u *debugUser) debug(code int, args ...string) (stdout, stderr string) {
	u.Helper()
	var out, errs strings.Builder
	cmd := u.command(append([]string{"debug"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	want := 0
	if code > 0 {
		want = 1
	}
	if got := cmd.ProcessState.ExitCode(); got != code || strings.Count(errs.String(), "\n") != want {
		u.Fatalf("debug %q: %v, expected exit code %d and %d lines of errors; it printed %q and %q", args, err, code, want,
			out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// start starts a session that generates an image.
func (u *debugUser) start(flags ...string) protocol.Status {
	u.Helper()
	u.debug(0, append(append([]string{"start"}, flags...), "--", "generate", "-m", absolute(tinyModel), "-p", "x", "-H", "24", "-W", "40",
		"-s", "60", "-g", "0", "-o", "x.png", "--overwrite")...)
	return u.status()
}

func (u *debugUser) status() (s protocol.Status) {
	u.Helper()
	out, _ := u.debug(0, "status", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		u.Fatal(err)
	}
	return s
}

// checkNothingLeft lists the sessions, one of which has the given state, and checks that nothing but
// traces and outputs of runs is left.
func (u *debugUser) checkNothingLeft(pid int, state string) {
	u.Helper()
	if out, _ := u.debug(0, "sessions"); !strings.Contains(out, " "+state+" ") {
		u.Errorf("sessions printed %q, expected state %s", out, state)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // it ends after its session
		out, _ := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
		if len(out) == 0 || out[0] == 'Z' {
			break
		}
		if time.Now().After(end) {
			u.Fatalf("process %d is there: %s", pid, out)
		}
	}
	for _, dir := range []string{u.sockets, u.temp} {
		entries, err := os.ReadDir(dir)
		entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == "1.json" }) // how it ended
		if err != nil || len(entries) > 0 {
			u.Errorf("left in %s: %v (%v)", dir, entries, err)
		}
	}
	u.checkTraces()
}

// checkTraces checks that every line of every trace is whole.
func (u *debugUser) checkTraces() {
	u.Helper()
	files, err := filepath.Glob(filepath.Join(u.dir, "logs/traces/*.jsonl"))
	if err != nil || len(files) == 0 {
		u.Errorf("traces %v (%v)", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.HasSuffix(text, []byte("\n")) {
			u.Errorf("%s does not end with a line: %v", file, err)
		}
		for line := range bytes.Lines(text) {
			var l protocol.TraceLine
			if err := json.Unmarshal(line, &l); err != nil || l.Event == "" {
				u.Errorf("%s: %v in %q", file, err, line)
			}
		}
	}
}

// signalled starts a command, and sends its process or another one a signal after a time.
func (u *debugUser) signalled(signal syscall.Signal, pid int, after time.Duration, args ...string) *os.ProcessState {
	u.Helper()
	cmd := u.command(append([]string{"debug"}, args...)...)
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	time.Sleep(after)
	if pid == 0 {
		pid = cmd.Process.Pid
	}
	if err := syscall.Kill(pid, signal); err != nil {
		u.Error(err)
	}
	cmd.Wait()
	return cmd.ProcessState
}

// TestDebugKill kills sessions and clients at random moments: nothing is left of a session, and the
// session of a client goes on.
func TestDebugKill(t *testing.T) {
	for i := range randtest.Times(25, 100) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			random := randtest.New(t)
			after := time.Duration(random.Int64N(int64(250 * time.Millisecond)))
			u := newDebugUser(t)
			switch i % 5 {
			case 0, 1: // while the model is loaded, or while it runs
				s := u.start("--break", "image")
				u.signalled(syscall.SIGKILL, s.PID, after, "continue")
				u.checkNothingLeft(s.PID, protocol.Killed)
			case 2: // while it is stopped
				s := u.start("--run", "--break", "latents")
				busy := [][]string{{"vars", "--weights"}, {"eval", "while True: pass"}, {"save", "x"}, {"continue"}}
				u.signalled(syscall.SIGKILL, s.PID, after, busy[random.IntN(len(busy))]...)
				u.checkNothingLeft(s.PID, protocol.Killed)
			case 3: // a client that waits
				s := u.start("--break", "image")
				u.signalled(syscall.SIGKILL, 0, after, "continue")
				u.checkUsable(s)
			case 4: // a client at a stop
				s := u.start("--run", "--break", "latents@0", "--break", "image")
				u.signalled(syscall.SIGKILL, 0, after/5, "eval", "while True: pass")
				u.checkUsable(s)
			}
		})
	}
}

// checkUsable checks that a session lives, which has a breakpoint at the image, and ends it.
func (u *debugUser) checkUsable(s protocol.Status) {
	u.Helper()
	if now := u.status(); now.PID != s.PID || now.Ended() {
		u.Fatalf("the session is %+v", now)
	}
	for now := u.status(); now.Stop == nil || now.Stop.Name != "image"; now = u.status() {
		if now.Ended() { // it had stopped at the image between status and continue
			u.Logf("the session is %s", now.State)
			u.checkNothingLeft(s.PID, protocol.Finished)
			return
		}
		u.debug(0, "continue")
	}
	if out, _ := u.debug(0, "eval", "out.shape[0]"); out != "24\n" {
		u.Errorf("the image has the shape %q", out)
	}
	u.debug(0, "continue")
	u.checkNothingLeft(s.PID, protocol.Finished)
}

// TestDebugSignals: a signal to the process of a stopped session ends it.
func TestDebugSignals(t *testing.T) {
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if end == syscall.SIGHUP && signal.Ignored(end) {
			continue // nohup started this test, so that nothing hangs up
		}
		u := newDebugUser(t)
		s := u.start("--run", "--break", "latents@0")
		if id, err := unix.Getsid(s.PID); err != nil || id != s.PID {
			t.Errorf("the process %d belongs to the terminal's session %d (%v)", s.PID, id, err)
		}
		if err := syscall.Kill(s.PID, end); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(10 * time.Second); !s.Ended() && time.Now().Before(until); s = u.status() {
			time.Sleep(10 * time.Millisecond)
		}
		if s.State != protocol.Failed || s.Error != "interrupted" || s.ExitCode == nil || *s.ExitCode != cli.ExitInterrupted {
			t.Errorf("%v: %+v", end, s)
		}
		u.debug(2, "vars")
		u.checkNothingLeft(s.PID, protocol.Failed)
	}
}

// interrupted starts a command, sends it SIGINT when the session answers that it is at work for it, and
// checks that it ends with the exit code for that.
func (u *debugUser) interrupted(working func(*protocol.Client) bool, args ...string) {
	u.Helper()
	cmd := u.command(append([]string{"debug"}, args...)...)
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	for started := false; !started; time.Sleep(10 * time.Millisecond) {
		c, err := protocol.Dial(u.Context(), &protocol.Folder{Path: u.sockets}, "1")
		if err != nil {
			u.Fatal(err)
		}
		started = working(c)
		c.Close()
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		u.Error(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted {
		u.Errorf("%s: exit code %d", args[0], code)
	}
}

// TestDebugInterruptedClient: Ctrl-C ends the waiting only.
func TestDebugInterruptedClient(t *testing.T) {
	u := newDebugUser(t)
	s := u.start("--run", "--break", "latents@0", "--break", "image")
	u.interrupted(func(c *protocol.Client) bool { // an expression waits for the one before it
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return c.Do(ctx, protocol.Eval, protocol.EvalArguments{Source: "1"}, nil) != nil
	}, "eval", "[out + i for i in range(1000000)]") // 5 seconds
	u.debug(0, "clear")
	u.debug(0, "break", "image", "--if", "[0 for i in range(1000000)] == []") // slow, so that the client waits
	u.interrupted(func(c *protocol.Client) bool {
		var now protocol.Status
		return c.Do(t.Context(), protocol.GetStatus, nil, &now) == nil && now.State == protocol.Running
	}, "continue")
	if now := u.status(); now.PID != s.PID {
		t.Errorf("the session is %+v", now)
	}
	u.debug(0, "continue")
	u.checkNothingLeft(s.PID, protocol.Finished)
}

// TestDebugGarbage: whatever clients send, a session goes on.
func TestDebugGarbage(t *testing.T) {
	u := newDebugUser(t)
	s := u.start("--run", "--break", "latents@0", "--break", "image")
	dial := func() net.Conn {
		c, err := net.Dial("unix", filepath.Join(u.sockets, "1.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for _, text := range []string{
		"\n", "\x00\xff\n", "[]\n", "{}\n", `{"command":"`, `{"command":"vars","arguments":[]}` + "\n", `{"command":"nosuch"}` + "\n",
		`{"command":"eval","arguments":{"source":7}}` + "\n", strings.Repeat("[", 1<<20) + "\n",
	} {
		c := dial()
		io.WriteString(c, text)
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		line, err := bufio.NewReader(c).ReadString('\n')
		var a protocol.Answer
		if err != nil || json.Unmarshal([]byte(line), &a) != nil || a.OK || a.Code != 2 || strings.Contains(a.Error, "\n") {
			t.Errorf("%.40q: answer %q (%v)", text, line, err)
		}
	}
	silent, half := dial(), dial() // stay open
	io.WriteString(half, `{"command":`)
	endless := dial()
	written := 0
	for part := make([]byte, 1<<20); written < 1<<30; {
		n, err := endless.Write(part)
		if written += n; err != nil {
			break
		}
	}
	if written > 16<<20 {
		t.Errorf("the session has taken %d bytes of a line", written)
	}
	u.checkUsable(s)
	silent.Close()
}
