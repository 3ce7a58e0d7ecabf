package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/textfile"
)

// A Token lets a client in, under a name.
type Token struct{ Name, Secret string }

const (
	shortest  = 16      // characters of a token
	tokenFile = 1 << 20 // bytes, at most
)

var tokenName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ReadTokens reads a file of tokens, a name:token on each line. Empty lines and those that begin
// with # are ignored. Nobody but the file's owner may be able to read it.
func ReadTokens(name string) ([]Token, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, oserr.Bare(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a file", name)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s: has mode %#o, and only its owner may read it (chmod 600 %s)", name, info.Mode().Perm(), name)
	case info.Size() > tokenFile:
		return nil, fmt.Errorf("%s: has %d bytes, expected at most %d", name, info.Size(), tokenFile)
	}
	data, err := io.ReadAll(io.LimitReader(f, tokenFile))
	if err == nil {
		data, err = textfile.Decode(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	var tokens []Token
	for n, line := range strings.Split(string(data), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		t, err := parseToken(line, tokens)
		if err != nil { // without the line, which may be a secret
			return nil, fmt.Errorf("%s, line %d: %w", name, n+1, err)
		}
		tokens = append(tokens, t)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s: has no token (expected lines of name:token)", name)
	}
	return tokens, nil
}

// parseToken parses a line, which must differ from those before.
func parseToken(line string, before []Token) (Token, error) {
	name, secret, ok := strings.Cut(line, ":")
	switch {
	case !ok:
		return Token{}, fmt.Errorf("expected name:token")
	case !tokenName.MatchString(name):
		return Token{}, fmt.Errorf("expected a name of up to 64 letters, digits, - and _ before the colon")
	case len(secret) < shortest:
		return Token{}, fmt.Errorf("the token of %s has %d characters, expected %d or more (openssl rand -hex 32 prints one)",
			name, len(secret), shortest)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Token{}, fmt.Errorf("the token of %s has a character that is not printable ASCII", name)
	}
	for _, t := range before {
		if t.Name == name {
			return Token{}, fmt.Errorf("a second token of %s", name)
		}
		if t.Secret == secret {
			return Token{}, fmt.Errorf("%s has the token of %s", name, t.Name)
		}
	}
	return Token{name, secret}, nil
}

// clientOf returns the name of a request's client: that of its token or, without tokens, its
// address.
func (s *Server) clientOf(r *http.Request) (name string, ok bool) {
	if len(s.Tokens) == 0 {
		return addressOf(r), true
	}
	if secret, given := givenToken(r); given {
		return s.nameOf(secret)
	}
	found, ok := s.sessionOf(r)
	return found.client, ok
}

// givenToken returns the token of an Authorization header.
func givenToken(r *http.Request) (secret string, given bool) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", false
	}
	if _, password, ok := r.BasicAuth(); ok {
		return password, true
	}
	if scheme, secret, ok := strings.Cut(header, " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(secret), true
	}
	return "", true
}

// nameOf returns the name of a token. It takes the same time for all.
func (s *Server) nameOf(secret string) (name string, ok bool) {
	given := sha256.Sum256([]byte(secret))
	for _, t := range s.Tokens {
		want := sha256.Sum256([]byte(t.Secret))
		if subtle.ConstantTimeCompare(given[:], want[:]) == 1 {
			name, ok = t.Name, true
		}
	}
	return name, ok
}

// addressOf returns the address of a client; all of this machine are one.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return "local"
	}
	return host
}

// A wrongToken is when an address sent wrong tokens.
type wrongToken struct {
	times int
	last  time.Time
}

const (
	typos      = 5 // wrong tokens of an address that are answered at once
	firstDelay = 250 * time.Millisecond
	lastDelay  = 4 * time.Second
	forgiven   = 10 * time.Minute // after which the wrong tokens of an address are forgotten
	addresses  = 10_000           // that are remembered
)

// wrongTokens slows down addresses that send one wrong token after the other. Right ones are not delayed.
type wrongTokens struct {
	mu  sync.Mutex
	all map[string]wrongToken // by address
}

// delay returns how long the answer to another wrong token of an address is held back.
func (w *wrongTokens) delay(address string, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) >= addresses || w.all == nil {
		old := w.all
		w.all = map[string]wrongToken{}
		for other, v := range old {
			if now.Sub(v.last) < forgiven && len(w.all) < addresses/2 {
				w.all[other] = v
			}
		}
	}
	v := w.all[address]
	if now.Sub(v.last) >= forgiven {
		v.times = 0
	}
	v.times++
	v.last = now
	w.all[address] = v
	if v.times <= typos {
		return 0
	}
	return min(lastDelay, firstDelay<<min(10, v.times-typos-1))
}

// slowDown waits before a wrong token of a request is answered.
func (s *Server) slowDown(r *http.Request) {
	if c := connOf(r); c != nil {
		s.waiting.add(c)
		defer s.waiting.leave(c)
	}
	select {
	case <-time.After(s.wrong.delay(networkOf(r.RemoteAddr), time.Now())):
	case <-r.Context().Done():
	}
}
