package serve

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/serve/engine"
)

const (
	cookieName = "gomflux_login"
	loggedIn   = 30 * 24 * time.Hour
)

// newCookie returns a cookie that stands for a token until it expires: name.expiry.session.mac. It has no
// trace of the token, and ends with it.
func (s *Server) newCookie(name string, secure bool) *http.Cookie {
	expires := time.Now().Add(loggedIn)
	text := name + "." + strconv.FormatInt(expires.Unix(), 10) + "." + engine.NewID()
	return &http.Cookie{
		Name: cookieName, Value: text + "." + s.mac(name, text), Path: "/", Expires: expires,
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	}
}

// mac returns the code that only the token of a name yields for a text, "" for unknown names.
func (s *Server) mac(name, text string) string {
	for _, t := range s.Tokens {
		if t.Name == name {
			h := hmac.New(sha256.New, []byte(t.Secret))
			fmt.Fprintf(h, "gomflux login cookie, version 2: %s", text)
			return hex.EncodeToString(h.Sum(nil))
		}
	}
	return ""
}

// A session is what a valid cookie stands for.
type session struct {
	client, id string
	expires    time.Time
}

// sessionOf returns the session of a cookie that is valid, has not expired and was not revoked.
func (s *Server) sessionOf(r *http.Request) (session, bool) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return session{}, false
	}
	parts := strings.Split(c.Value, ".")
	if len(parts) != 4 {
		return session{}, false
	}
	want := s.mac(parts[0], strings.Join(parts[:3], "."))
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || want == "" || subtle.ConstantTimeCompare([]byte(want), []byte(parts[3])) != 1 {
		return session{}, false
	}
	found := session{parts[0], parts[2], time.Unix(seconds, 0)}
	return found, time.Now().Before(found.expires) && !s.revoked.has(found.id)
}

// revoked has the sessions that people have ended, until they expire. They are kept in a file, so that
// they do not come back when the server is started again.
type revoked struct {
	file string // "" for no file

	mu       sync.Mutex
	sessions map[string]time.Time // when they expire, by id
}

// read adds the sessions of the file. mu must be held.
func (v *revoked) read() error {
	if v.sessions == nil {
		v.sessions = map[string]time.Time{}
	}
	if v.file == "" {
		return nil
	}
	data, err := os.ReadFile(v.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(data)) {
		id, expires, _ := strings.Cut(strings.TrimSpace(line), " ")
		if seconds, err := strconv.ParseInt(expires, 10, 64); err == nil {
			v.sessions[id] = time.Unix(seconds, 0)
		}
	}
	return nil
}

func (v *revoked) has(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.sessions[id]
	return ok
}

// add revokes a session. The file keeps those of other servers of the same user.
func (v *revoked) add(ended session) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.read()
	v.sessions[ended.id] = ended.expires
	var text bytes.Buffer
	for id, expires := range v.sessions {
		if time.Now().After(expires) {
			delete(v.sessions, id)
			continue
		}
		fmt.Fprintf(&text, "%s %d\n", id, expires.Unix())
	}
	if v.file == "" || err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(v.file), 0o700); err != nil {
		return err
	}
	return atomicfile.ReplacePrivate(v.file, func(w io.Writer) error {
		_, err := text.WriteTo(w)
		return err
	})
}
