package serve

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLogout: a session ends for good, also if the server is started again, and others of its client go on.
func TestLogout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gomflux", "ended")
	server := func() *Server {
		s, _, _ := newTest(t, func(c *Config) { withTokens(c); c.Sessions, c.MaxBody = file, 1<<20 })
		whoami(s)
		return s
	}
	login := func(s *Server) *http.Cookie {
		w := ask(s, "POST", "/login", strings.NewReader(url.Values{"token": {"fedcba9876543210"}}.Encode()),
			"Content-Type", "application/x-www-form-urlencoded")
		if len(w.Result().Cookies()) != 1 {
			t.Fatalf("status %d", w.Code)
		}
		return w.Result().Cookies()[0]
	}
	status := func(s *Server, method, path string, c *http.Cookie) int {
		return ask(s, method, path, nil, "Cookie", c.Name+"="+c.Value).Code
	}
	s, other := server(), server()
	first, second, third := login(s), login(s), login(s)
	if got := status(s, "POST", "/logout", first); got != 303 {
		t.Errorf("logout: %d", got)
	}
	if got := status(other, "POST", "/logout", third); got != 303 {
		t.Errorf("logout at another server: %d", got)
	}
	again := server()
	for name, test := range map[string]struct {
		s    *Server
		c    *http.Cookie
		want int
	}{
		"ended": {s, first, 401}, "ended, after a start": {again, first, 401}, "ended elsewhere, after a start": {again, third, 401},
		"another one": {s, second, 200}, "another one, after a start": {again, second, 200},
	} {
		if got := status(test.s, "GET", "/whoami", test.c); got != test.want {
			t.Errorf("a session that is %s: %d, expected %d", name, got, test.want)
		}
	}
	if got := status(s, "POST", "/logout", first); got != 401 {
		t.Errorf("a second logout: %d", got)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info, err)
	}
	if err := s.revoked.add(session{"bob", "old", time.Now().Add(-time.Hour)}); err != nil || s.revoked.has("old") {
		t.Errorf("an expired session is kept: %v", err)
	}
	// without a place for the file it ends all the same
	os.RemoveAll(filepath.Dir(file))
	os.WriteFile(filepath.Dir(file), nil, 0o600)
	if got := status(s, "POST", "/logout", second); got != 303 || status(s, "GET", "/whoami", second) != 401 {
		t.Errorf("logout: %d", got)
	}
}

// TestWrongTokens: wrong tokens of an address are answered more and more slowly, right ones at once.
func TestWrongTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newTest(t, withTokens)
		whoami(s)
		defer s.Engine.Close(t.Context())
		took := func(token string, want int) time.Duration {
			began := time.Now()
			if w := ask(s, "GET", "/whoami", nil, "Authorization", "Bearer "+token); w.Code != want {
				t.Errorf("token %s: %d", token, w.Code)
			}
			return time.Since(began)
		}
		for i, want := range []time.Duration{0, 0, 0, 0, 0, 250, 500, 1000, 2000, 4000, 4000} {
			if d := took("wrong", 401); d != want*time.Millisecond {
				t.Errorf("wrong token %d: %v, expected %v", i+1, d, want*time.Millisecond)
			}
			if d := took("fedcba9876543210", 200); d != 0 {
				t.Errorf("a right token: %v", d)
			}
		}
		if d := s.wrong.delay("192.0.2.1", time.Now()); d != 0 {
			t.Errorf("another address: %v", d)
		}
		time.Sleep(forgiven)
		if d := took("wrong", 401); d != 0 {
			t.Errorf("after ten minutes: %v", d)
		}
		for i := range 3 * addresses {
			s.wrong.delay(time.Duration(i).String(), time.Now())
		}
		if n := len(s.wrong.all); n > addresses {
			t.Errorf("%d addresses are remembered", n)
		}
	})
}

func TestNetworkOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7", "[::ffff:192.0.2.7]:80": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "pipe": "pipe",
	} {
		if got := networkOf(remote); got != want {
			t.Errorf("%s: %s, expected %s", remote, got, want)
		}
	}
}
