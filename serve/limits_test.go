package serve

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// reader makes /read read the body, and answer 400 if that fails.
func reader(s *Server) {
	s.mux.HandleFunc("POST /read", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%d bytes, %v", len(data), r.Context().Err())
	})
}

func TestBodySize(t *testing.T) {
	s, _, _ := newTest(t, nil)
	reader(s)
	address, _ := start(t, s)
	for _, test := range []struct {
		size    int
		chunked bool
		want    int
	}{{1000, false, 200}, {1001, false, 413}, {1000, true, 200}, {1001, true, 413}, {1 << 20, true, 413}, {0, false, 200}} {
		var body io.Reader = strings.NewReader(strings.Repeat("x", test.size))
		if test.chunked {
			body = io.MultiReader(body)
		}
		resp, err := http.Post("http://"+address+"/read", "text/plain", body)
		if err != nil {
			t.Errorf("%v: %v", test, err)
			continue
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != test.want {
			t.Errorf("%v: status %d, %s", test, resp.StatusCode, text)
		}
	}
	if !s.bodies.TryAcquire(bodiesAtOnce * 1000) {
		t.Error("not all bytes are free")
	}
}

// TestSlowBody: a client that sends a byte now and then is refused, whatever it sends to.
func TestSlowBody(t *testing.T) {
	s, _, _ := newTest(t, withTokens)
	s.timing.body, s.timing.rate = 300*time.Millisecond, 1000
	reader(s)
	address, _ := start(t, s)
	for token, want := range map[string]string{"0123456789abcdef": "408", "wrong": "401"} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		began := time.Now()
		fmt.Fprintf(c, "POST /read HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 900\r\n\r\n", token)
		go func() {
			for range 100 {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || fmt.Sprint(resp.StatusCode) != want || !resp.Close {
			t.Errorf("%s: %v, %v", token, resp, err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("%s: answered after %v", token, took)
		}
	}
}

// TestSlowHeader: a client that does not end its headers is cut off.
func TestSlowHeader(t *testing.T) {
	s, _, _ := newTest(t, nil)
	s.timing.header = 100 * time.Millisecond
	address, _ := start(t, s)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n")
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection was not closed: %v", err)
	}
}

// TestSlowReader: a client that does not read its answer does not keep the handler, and one that
// reads slowly gets all of it.
func TestSlowReader(t *testing.T) {
	s, _, _ := newTest(t, nil)
	s.timing.write = 300 * time.Millisecond
	failed := make(chan error, 1)
	s.mux.HandleFunc("GET /large", func(w http.ResponseWriter, r *http.Request) {
		_, err := w.Write(make([]byte, 64<<20))
		failed <- err
	})
	s.mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		for i := range 4 { // pauses that are longer than timing.write
			fmt.Fprintln(w, i)
			w.(http.Flusher).Flush()
			time.Sleep(400 * time.Millisecond)
		}
	})
	address, _ := start(t, s)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
	select {
	case err := <-failed:
		if err == nil {
			t.Error("nobody read the answer, and it was written")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler waits for a client that does not read")
	}
	resp, err := http.Get("http://" + address + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "0\n1\n2\n3\n" {
		t.Errorf("stream %q, %v", text, err)
	}
}

// TestGone: the context of a request ends with its client, after its body was read slowly too.
func TestGone(t *testing.T) {
	s, _, _ := newTest(t, nil)
	s.timing.body = 200 * time.Millisecond
	alive, gone := make(chan error, 1), make(chan struct{})
	s.mux.HandleFunc("POST /wait", func(w http.ResponseWriter, r *http.Request) {
		io.ReadAll(r.Body)
		r.Body.Read(make([]byte, 1))       // at the end once more, as decoders of JSON do
		time.Sleep(500 * time.Millisecond) // after the body's deadline
		alive <- r.Context().Err()
		<-r.Context().Done()
		close(gone)
	})
	address, _ := start(t, s)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
	if err := <-alive; err != nil {
		t.Errorf("the client is there, and the context has ended: %v", err)
	}
	c.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the client is gone, and the context goes on")
	}
}

// TestNoRoom: a body for which there is no room is refused after a while.
func TestNoRoom(t *testing.T) {
	s, _, _ := newTest(t, nil)
	s.timing.room = 10 * time.Millisecond
	reader(s)
	s.bodies = semaphore.NewWeighted(0)
	if w := ask(s, "POST", "/read", strings.NewReader("x")); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("no room for a body: status %d", w.Code)
	}
}

// TestShutdown: the running job ends, those that wait fail, all are answered.
func TestShutdown(t *testing.T) {
	for _, test := range []struct {
		grace   time.Duration
		release bool
		want    [2]string
	}{
		{10 * time.Second, true, [2]string{"<nil>", engine.ErrClosed.Error()}},
		{50 * time.Millisecond, false, [2]string{"", engine.ErrClosed.Error()}}, // the first is canceled
	} {
		s, _, m := newTest(t, func(c *Config) { c.Grace = test.grace })
		b := &Backend{api.Adapted{Engine: s.Engine}, s, nil}
		started := make(chan struct{}, 2)
		s.mux.HandleFunc("POST /job", func(w http.ResponseWriter, r *http.Request) {
			j, err := b.Submit(r.Context(), engine.Request{Seeds: []uint64{1}, Options: gomflux.Options{Steps: 1}})
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			started <- struct{}{}
			fmt.Fprint(w, j.Wait(r.Context()))
		})
		address, stop := start(t, s)
		answers := [2]string{}
		var clients sync.WaitGroup
		for i := range answers {
			clients.Go(func() {
				resp, err := http.Post("http://"+address+"/job", "", nil)
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Errorf("client %d: %v", i, err)
				}
				answers[i] = string(text)
			})
			<-started
		}
		for s.Engine.Stats().Jobs[engine.Running] == 0 {
			time.Sleep(time.Millisecond)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		if test.release {
			for !s.closing.Load() {
				time.Sleep(time.Millisecond)
			}
			if w := ask(s, "GET", "/healthz", nil); w.Code != 503 {
				t.Errorf("health while shutting down: %d", w.Code)
			}
			close(m.release)
		}
		if err := <-stopped; err != nil {
			t.Errorf("Serve: %v", err)
		}
		clients.Wait()
		for i, want := range test.want {
			if answers[i] == "" || want != "" && answers[i] != want {
				t.Errorf("grace %v, client %d: %q, expected %q", test.grace, i, answers[i], want)
			}
		}
		if _, err := net.Dial("tcp", address); err == nil {
			t.Error("the server still listens")
		}
	}
}

// TestHTTP2: the deadlines of pieces end no stream that pauses.
func TestHTTP2(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.EnableHTTP2 = true
	certified.StartTLS()
	defer certified.Close()
	s, _, _ := newTest(t, func(c *Config) {
		withTokens(c)
		c.TLS = &tls.Config{Certificates: certified.TLS.Certificates}
	})
	s.timing.write, s.timing.body = 200*time.Millisecond, 200*time.Millisecond
	s.mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
		for range 3 {
			http.NewResponseController(w).Flush()
			time.Sleep(300 * time.Millisecond)
			fmt.Fprint(w, ".")
		}
		fmt.Fprint(w, r.Context().Err())
	})
	address, _ := start(t, s)
	r, _ := http.NewRequest("POST", "https://"+address+"/stream", strings.NewReader("body"))
	r.Header.Set("Authorization", "Bearer 0123456789abcdef")
	resp, err := certified.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || string(text) != "body...<nil>" || resp.ProtoMajor != 2 {
		t.Errorf("%s: %q, %v", resp.Proto, text, err)
	}
	w := ask(s, "POST", "/login", strings.NewReader("token=0123456789abcdef"), "Content-Type", "application/x-www-form-urlencoded")
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].Secure {
		t.Errorf("cookies %v", c)
	}
}

// TestManyClients: all of 200 clients at once are answered, though their bodies do not fit.
func TestManyClients(t *testing.T) {
	s, _, _ := newTest(t, nil)
	reader(s)
	address, _ := start(t, s)
	var clients sync.WaitGroup
	for range 200 {
		clients.Go(func() {
			resp, err := http.Post("http://"+address+"/read", "text/plain", strings.NewReader(strings.Repeat("x", 1000)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "1000 bytes, <nil>" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	clients.Wait()
	if !s.bodies.TryAcquire(bodiesAtOnce * 1000) {
		t.Error("not all bytes are free")
	}
}
