package protocol

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/randtest"
)

// begin starts a session in this process.
func begin(t *testing.T, f *Folder, name string, s Status) *Reservation {
	t.Helper()
	r, err := f.Reserve(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteStatus(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(s) })
	return r
}

// kill lets a session look as if its process had been killed.
func (r *Reservation) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.release()
}

// states are those of sessions, for comparisons.
func statesOf(sessions []Status) string {
	var all []string
	for _, s := range sessions {
		all = append(all, s.Session+" "+s.State)
	}
	return strings.Join(all, ", ")
}

func TestSessions(t *testing.T) {
	f := newFolder(t)
	expect := func(want string) {
		t.Helper()
		all, err := f.Sessions()
		if got := statesOf(all); err != nil || got != want {
			t.Errorf("found %q (%v), expected %q", got, err, want)
		}
	}
	expect("")
	one := begin(t, f, "1", Status{State: Running})
	two := begin(t, f, "2", Status{State: Loading})
	ten := begin(t, f, "10", Status{State: Stopped, Stop: &Stop{Name: "latents@0"}})
	fresh, err := f.Reserve("new") // without a state, a lock alone
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close(Status{State: Finished})    // which keeps the lock until then
	put(t, f.file("gone", socketSuffix), "")      // a stale socket
	put(t, f.file("half", tempSuffix), `{"sess`)  // killed while it wrote its first state
	put(t, f.file("bad", statusSuffix), `{"sess`) // damaged by somebody
	put(t, f.Path+"/note.txt", "not a session's") // stays
	put(t, f.Path+"/a b.lock", "not a session's") // stays
	expect("1 running, 2 loading, 10 stopped, bad killed, new starting")
	code := 0
	if err := one.Close(Status{State: Finished, ExitCode: &code}); err != nil {
		t.Fatal(err)
	}
	if err := two.Close(Status{State: Failed, Error: "no space"}); err != nil {
		t.Fatal(err)
	}
	ten.kill()
	for range 2 { // an ended session stays listed until it is forgotten
		expect("1 finished, 2 failed, 10 killed, bad killed, new starting")
	}
	f.holds(t, "1.json", "10.json", "2.json", "a b.lock", "bad.json", "new.lock", "note.txt")
	all, err := f.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	if all[2].Stop != nil || !strings.Contains(all[3].Error, "bad.json") || all[1].Error != "no space" || *all[0].ExitCode != 0 {
		t.Errorf("found %+v", all)
	}
	begin(t, f, "2", Status{State: Running}) // a new session of the name, between the two
	if err := f.Forget(all); err != nil {
		t.Error(err)
	}
	expect("2 running, new starting")
	f.holds(t, "2.json", "2.lock", "a b.lock", "new.lock", "note.txt")
}

func TestChoose(t *testing.T) {
	f := newFolder(t)
	choose := func(name, side, want, wantErr string) {
		t.Helper()
		s, err := f.Choose(name, side, "/a/b")
		if s.Session != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("chose %q (%v), expected %q (%s)", s.Session, err, want, wantErr)
		}
	}
	choose("", "gomflux", "", "no session (gomflux debug start begins one)")
	choose("", "reference", "", "no session (gomflux-reference debug start begins one)")
	choose("x", "gomflux", "", "no session x")
	one := begin(t, f, "1", Status{State: Running, Side: "gomflux"})
	begin(t, f, "ref", Status{State: Running, Side: "reference"})
	choose("", "gomflux", "1", "")
	choose("", "reference", "ref", "")
	choose("ref", "gomflux", "ref", "")
	choose("x", "gomflux", "", "no session x (there are: 1, ref)")
	two := begin(t, f, "2", Status{State: Running, Side: "gomflux"})
	choose("", "gomflux", "", "2 sessions are running: 1, 2 (choose one with --session)")
	one.kill()
	choose("", "gomflux", "2", "")
	choose("1", "gomflux", "1", "")
	if err := two.Close(Status{State: Finished, Side: "gomflux"}); err != nil {
		t.Fatal(err)
	}
	choose("", "gomflux", "2", "") // the last one that has ended
	if err := f.Forget([]Status{{Session: "1", State: Killed}, {Session: "2", State: Finished}}); err != nil {
		t.Fatal(err)
	}
	begin(t, f, "far", Status{State: Running, Side: "gomflux", Folder: "/a/bc"})
	choose("", "gomflux", "", "no session of this folder (1 of others: gomflux debug sessions --user lists them; ")
	choose("far", "gomflux", "far", "")
	begin(t, f, "near", Status{State: Running, Side: "gomflux", Folder: "/a"})
	choose("", "gomflux", "near", "")
}

func TestEndedError(t *testing.T) {
	for _, c := range []struct {
		s    Status
		want string
	}{
		{Status{Session: "1", State: Finished, Side: "gomflux"}, "session 1 has finished (gomflux debug start begins another)"},
		{Status{Session: "a", State: Failed, Error: "no space", Side: "reference"},
			"session a has failed: no space (gomflux-reference debug start begins another)"},
		{Status{Session: "1", State: Killed}, "session 1: its process was killed (gomflux debug start begins another)"},
	} {
		if got := (&EndedError{c.s}).Error(); got != c.want {
			t.Errorf("%q, expected %q", got, c.want)
		}
	}
}

// startChild runs a session in a process of its own.
func startChild(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// TestKilled kills sessions at random moments. The next look at the folder must leave
// nothing of them except how they ended.
func TestKilled(t *testing.T) {
	f := newFolder(t)
	random, times := randtest.New(t), randtest.Times(30, 100)
	seen := 0
	for i := range times {
		name := ""
		if i%2 == 1 {
			name = fmt.Sprintf("s%d", i)
		}
		cmd := startChild(t, name)
		if i%3 > 0 { // from the first moment with a file
			for len(f.files(t)) == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		time.Sleep(time.Duration(random.IntN(10_000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		all, err := f.Sessions()
		if err != nil {
			t.Fatal(err)
		}
		left := slices.DeleteFunc(f.files(t), func(file string) bool { return strings.HasSuffix(file, statusSuffix) })
		if len(left) > 0 || len(all) > 1 || len(all) == 1 && all[0].State != Killed {
			t.Fatalf("kill %d: %q is left, sessions %q", i, left, statesOf(all))
		}
		seen += len(all)
		if err := f.Forget(all); err != nil {
			t.Fatal(err)
		}
		f.holds(t)
	}
	if seen < times/3 {
		t.Errorf("only %d of %d sessions had a state when they were killed", seen, times)
	}
}

// TestKilledWhileWaiting: a client that waits learns how the session ended.
func TestKilledWhileWaiting(t *testing.T) {
	f := newFolder(t)
	cmd := startChild(t, "x")
	for !f.has("x", socketSuffix) {
		time.Sleep(time.Millisecond)
	}
	c, err := Dial(t.Context(), f, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	time.AfterFunc(100*time.Millisecond, func() { cmd.Process.Kill() })
	go cmd.Process.Wait()
	err = c.Do(t.Context(), Continue, nil, nil)
	var ended *EndedError
	if !errors.As(err, &ended) || ended.Status.State != Killed || ended.Status.Session != "x" {
		t.Errorf("error %v", err)
	}
	if _, err := Dial(t.Context(), f, "x"); !errors.As(err, &ended) {
		t.Errorf("dialled again: error %v", err)
	}
	f.holds(t, "x.json")
	if _, err := Dial(t.Context(), f, "never"); !errors.Is(err, ErrNoSession) {
		t.Errorf("error %v", err)
	}
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(interrupted)
	if _, err := Dial(ctx, f, "never"); !errors.Is(err, interrupted) {
		t.Errorf("with a context that has ended: %v, expected its cause", err)
	}
	f.holds(t, "x.json")
}
