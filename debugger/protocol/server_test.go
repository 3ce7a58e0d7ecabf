package protocol

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve starts a session with a handler in this process.
func serve(t *testing.T, f *Folder, name string, h Handler) (r *Reservation, stop func()) {
	t.Helper()
	r = begin(t, f, name, Status{State: Running})
	l, err := r.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := Serve(ctx, l, h); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return r, stop
}

// echo answers with the command and its arguments.
func echo(_ context.Context, r Request) Answer {
	if r.Command == "refuse" {
		return Refuse(2, errors.New("not now"))
	}
	return Accepted(map[string]any{"command": r.Command, "arguments": r.Arguments})
}

func dialTest(t *testing.T, f *Folder, name string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), f, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestDo(t *testing.T) {
	f := newFolder(t)
	serve(t, f, "1", echo)
	c := dialTest(t, f, "1")
	for range 3 {
		var got struct {
			Command   string
			Arguments BreakArguments
		}
		if err := c.Do(t.Context(), Break, BreakArguments{Glob: "a<b&*", Hit: 2}, &got); err != nil {
			t.Fatal(err)
		}
		if got.Command != Break || got.Arguments.Glob != "a<b&*" || got.Arguments.Hit != 2 {
			t.Errorf("found %+v", got)
		}
		err := c.Do(t.Context(), "refuse", nil, &got)
		var refused *AnswerError
		if !errors.As(err, &refused) || refused.Code != 2 || refused.Message != "not now" {
			t.Errorf("error %v", err)
		}
	}
	err := c.Do(t.Context(), Eval, EvalArguments{strings.Repeat("x", maxRequest)}, nil)
	if err == nil || !strings.Contains(err.Error(), "bytes of arguments") {
		t.Errorf("error %v", err)
	}
	if err := c.Do(t.Context(), Breaks, nil, nil); err != nil { // nothing was sent
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	cancel(cause)
	if err := c.Do(ctx, Breaks, nil, nil); err != cause {
		t.Errorf("error %v, expected %v", err, cause)
	}
}

// TestGarbage: what is no request gets an error, the connection is closed, and the
// session serves others.
func TestGarbage(t *testing.T) {
	f := newFolder(t)
	serve(t, f, "1", func(ctx context.Context, r Request) Answer {
		if r.Command != "good" {
			t.Errorf("the handler got %+v", r)
		}
		return Accepted("served")
	})
	deep := `{"command":"good","arguments":{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}}`
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"\n", "unexpected end of JSON input"},
		{"hello\n", "looking for beginning of value"},
		{"GET / HTTP/1.1\r\n\r\n", "looking for beginning of value"},
		{"\x00\x01\x02\n", "looking for beginning of value"},
		{"\xff\xfe\n", "not UTF-8"},
		{`{"command":"good"`, "unexpected end of JSON input"},
		{"null\n", "expected an object, found null"},
		{"[]\n", "cannot unmarshal array"},
		{"{}\n", "it has no command"},
		{`{"command":""}` + "\n", "it has no command"},
		{`{"command":3}` + "\n", "cannot unmarshal number"},
		{`{"command":"good","command":"good"}` + "\n", "duplicate key"},
		{`{"command":"good","arguments":{"number":3,"number":3}}` + "\n", "duplicate key"},
		{`{"command":"good","force":true}` + "\n", `unknown field \"force\"`},
		{`{"command":"good","arguments":[]}` + "\n", "expected an object of arguments"},
		{`{"command":"good"} {}` + "\n", "after top-level value"},
		{deep + "\n", "max depth"},
		{`{"command":"good"}` + "\n" + "x\n", "served"},
		{strings.Repeat("x", maxRequest+1) + "\n", "longer than"},
		{`{"command":"good"}`, "served"}, // as of printf without a newline
		{`{"command":"good","arguments":null}` + "\n", "served"},
		{`{"command":"good","arguments":{"x":"` + strings.Repeat("x", maxRequest-100) + `"}}` + "\n", "served"},
	} {
		conn := raw(t, f, "1")
		go func() {
			io.WriteString(conn, c.text)
			conn.CloseWrite()
		}()
		answers, err := io.ReadAll(conn)
		if (len(answers) == 0) != (c.want == "") || !strings.Contains(string(answers), c.want) {
			t.Errorf("%.60q: answer %q (%v), expected %q", c.text, answers, err, c.want)
		}
		for line := range bytes.Lines(answers) {
			var a Answer
			if err := json.Unmarshal(line, &a); err != nil || !a.OK && (a.Error == "" || a.Code != 2) {
				t.Errorf("%.60q: answer %q (%v)", c.text, line, err)
			}
		}
	}
}

func raw(t *testing.T, f *Folder, name string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.file(name, socketSuffix), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestGigabyte sends a line that never ends.
func TestGigabyte(t *testing.T) {
	f := newFolder(t)
	serve(t, f, "1", echo)
	conn := raw(t, f, "1")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	block := bytes.Repeat([]byte("x"), 1<<16)
	sent := 0
	var err error
	for sent < 1<<30 && err == nil {
		var n int
		n, err = conn.Write(block)
		sent += n
	}
	runtime.ReadMemStats(&after)
	if err == nil || sent > 16*maxRequest {
		t.Errorf("%d bytes were read (%v)", sent, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 32*maxRequest {
		t.Errorf("%d bytes were allocated", used)
	}
	answer, _ := bufio.NewReader(conn).ReadString('\n')
	if !strings.Contains(answer, "longer than") {
		t.Errorf("answer %q", answer)
	}
	if err := dialTest(t, f, "1").Do(t.Context(), Breaks, nil, nil); err != nil {
		t.Error(err)
	}
}

// TestSlow sends a request byte by byte, while others are served.
func TestSlow(t *testing.T) {
	f := newFolder(t)
	serve(t, f, "1", echo)
	slow, other := raw(t, f, "1"), dialTest(t, f, "1")
	for _, b := range []byte(`{"command": "breaks"}` + "\n") {
		if _, err := slow.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
		if err := other.Do(t.Context(), Breaks, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if answer, err := bufio.NewReader(slow).ReadString('\n'); !strings.Contains(answer, `"ok":true`) {
		t.Errorf("answer %q (%v)", answer, err)
	}
}

// TestIdle closes connections that send nothing, or never end a line.
func TestIdle(t *testing.T) {
	defer func(d time.Duration) { idleTimeout = d }(idleTimeout)
	idleTimeout = 100 * time.Millisecond
	f := newFolder(t)
	_, stop := serve(t, f, "1", func(context.Context, Request) Answer {
		time.Sleep(3 * idleTimeout) // is not idle
		return Accepted(nil)
	})
	defer stop() // before the timeout is set back
	nothing, half := raw(t, f, "1"), raw(t, f, "1")
	go func() {
		for range 20 {
			io.WriteString(half, " ")
			time.Sleep(20 * time.Millisecond)
		}
	}()
	if err := dialTest(t, f, "1").Do(t.Context(), Breaks, nil, nil); err != nil {
		t.Error(err)
	}
	for _, conn := range []net.Conn{nothing, half} {
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, error %v", n, err)
		}
	}
}

func TestManyClients(t *testing.T) {
	f := newFolder(t)
	serve(t, f, "1", echo)
	var group sync.WaitGroup
	for i := range 20 {
		c := dialTest(t, f, "1")
		group.Go(func() {
			for n := range 50 {
				var got struct{ Command string }
				want := fmt.Sprintf("c%d.%d", i, n)
				if err := c.Do(context.Background(), want, nil, &got); err != nil || got.Command != want {
					t.Errorf("found %q (%v), expected %q", got.Command, err, want)
				}
			}
		})
	}
	group.Wait()
	for range maxConnections - 20 {
		if err := dialTest(t, f, "1").Do(t.Context(), Breaks, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	conn := raw(t, f, "1")
	if answer, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(answer, "64 connections") {
		t.Errorf("answer %q (%v)", answer, err)
	}
}

// TestClientGoes: a handler that waits is told when its client has gone, but not when
// the client has only finished writing.
func TestClientGoes(t *testing.T) {
	f := newFolder(t)
	ended := make(chan string, 10)
	goOn := make(chan bool)
	_, stop := serve(t, f, "1", func(ctx context.Context, r Request) Answer {
		select {
		case <-ctx.Done():
			ended <- "gone"
		case <-goOn:
			ended <- "answered"
		}
		return Accepted("here")
	})
	defer stop()
	gone, half := raw(t, f, "1"), raw(t, f, "1")
	io.WriteString(gone, `{"command":"continue"}`+"\n"+`{"command":"unread"}`+"\n")
	io.WriteString(half, `{"command":"continue"}`)
	half.CloseWrite()
	time.Sleep(3 * watchInterval)
	gone.Close()
	if got := <-ended; got != "gone" {
		t.Errorf("the first client %s", got)
	}
	time.Sleep(3 * watchInterval)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := dialTest(t, f, "1").Do(ctx, Continue, nil, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	goOn <- true
	if got := <-ended; runtime.GOOS == "linux" && got != "answered" {
		t.Errorf("the client that has finished writing %s", got)
	}
	if answer, err := io.ReadAll(half); runtime.GOOS == "linux" && !strings.Contains(string(answer), "here") {
		t.Errorf("answer %q (%v)", answer, err)
	}
}

// TestShutDown: answers in progress are sent, idle connections end, and handlers that
// never end do not keep the session alive.
func TestShutDown(t *testing.T) {
	defer func(d time.Duration) { grace = d }(grace)
	grace = 300 * time.Millisecond
	f := newFolder(t)
	started, release := make(chan bool), make(chan bool)
	var cancelled sync.WaitGroup
	cancelled.Add(1)
	r, stop := serve(t, f, "1", func(ctx context.Context, r Request) Answer {
		started <- true
		if r.Command == "forever" {
			<-ctx.Done()
			cancelled.Done()
		} else {
			<-release
		}
		return Accepted("done")
	})
	idle := raw(t, f, "1")
	waiting, forever := dialTest(t, f, "1"), dialTest(t, f, "1")
	results := make(chan error, 2)
	go func() { results <- waiting.Do(context.Background(), Continue, nil, nil) }()
	<-started
	go func() { results <- forever.Do(context.Background(), "forever", nil, nil) }()
	<-started
	go func() {
		time.Sleep(50 * time.Millisecond)
		release <- true
	}()
	stop()
	cancelled.Wait()
	if err := <-results; err != nil {
		t.Errorf("an answer in progress was not sent: %v", err)
	}
	if n, err := idle.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("%d bytes (%v) for an idle client", n, err)
	}
	code := 0
	if err := r.Close(Status{State: Finished, ExitCode: &code}); err != nil {
		t.Fatal(err)
	}
	var ended *EndedError
	if err := <-results; !errors.As(err, &ended) || ended.Status.State != Finished {
		t.Errorf("error %v", err)
	}
	f.holds(t, "1.json")
}

// TestOwnAnswer: Sessions prefers the answer of a session to its file, and does not
// wait for one that does not answer.
func TestOwnAnswer(t *testing.T) {
	f := newFolder(t)
	serve(t, f, "1", func(context.Context, Request) Answer { return Accepted(Status{Session: "x", State: Stopped}) })
	_, stop := serve(t, f, "2", func(ctx context.Context, _ Request) Answer {
		<-ctx.Done()
		return Answer{}
	})
	defer stop()
	serve(t, f, "3", func(context.Context, Request) Answer { return Accepted(Status{State: "dancing"}) })
	serve(t, f, "4", func(context.Context, Request) Answer { return Answer{OK: true, Result: []byte("broken")} })
	began := time.Now()
	all, err := f.Sessions()
	if got, want := statesOf(all), "1 stopped, 2 running, 3 running, 4 running"; err != nil || got != want {
		t.Errorf("found %q (%v), expected %q", got, err, want)
	}
	if d := time.Since(began); d > 4*askTimeout {
		t.Errorf("it took %v", d)
	}
}
