// Package serve is the HTTP server: it checks who asks, bounds what is read and how long that
// takes, and answers for what all APIs share. The APIs are in the packages below it.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
	"github.com/gomflux/gomflux/serve/pulls"
)

// A Config configures a server.
type Config struct {
	Engine *engine.Engine
	// Address is what the server listens on, as host:port. Its host may stand in Host headers.
	Address string
	// Hosts are other names that may stand in Host headers, such as that of a proxy.
	Hosts []string
	// BaseURL is where clients find the server behind a proxy, "" without one. Its host may stand in
	// Host headers.
	BaseURL string
	// AllowedOrigins are those of other servers, such as https://example.org, whose pages may use
	// the APIs.
	AllowedOrigins []string
	// Tokens are those of the clients; without any, nobody needs one.
	Tokens []Token
	// Sessions is the file that has the sessions of the login page that people have ended, "" for none.
	Sessions string
	// MaxBody is the largest size of a request's body, in bytes.
	MaxBody int64
	// MaxPixels is the largest number of pixels of an image that is generated.
	MaxPixels int
	// MaxSteps is the largest number of steps of an image, 0 for [api.DefaultSteps].
	MaxSteps int
	// Gallery stores images, unless it is nil.
	Gallery *gallery.Gallery
	// Pulls downloads models, unless it is nil.
	Pulls *pulls.Puller
	// LoRAs lists names of LoRAs, if it is not nil.
	LoRAs func() []string
	// TLS, if set, has the certificate for HTTPS.
	TLS *tls.Config
	// Grace is how long the running job may go on when the server shuts down.
	Grace time.Duration
	// Log gets a line for every request, without prompts unless LogPrompts is set.
	Log        *slog.Logger
	LogPrompts bool
	// Version is that of the program.
	Version string
	// Ranks is the number of processes that generate images.
	Ranks int
}

// A Server answers requests.
type Server struct {
	Config
	hosts    map[string]bool // names in Host headers; loopback names and IP addresses are checked without it
	anyIP    bool            // listens on all addresses
	mux      api.Mux
	origins  *http.CrossOriginProtection
	readers  []string // Config.AllowedOrigins as browsers write them
	timing   timing
	bodies   *semaphore.Weighted // bytes of the bodies that are read
	most     int                 // connections
	waiting  waiting
	wrong    wrongTokens
	revoked  revoked
	answered [1000]atomic.Int64 // answers by status
	started  time.Time
	closing  atomic.Bool
	finish   func(context.Context) error // waits until images are stored
	hangUp   func()                      // ends the streams that have no end
}

// timing is how long the server waits for clients.
type timing struct {
	header, idle time.Duration
	// spare is how long a connection has no request before it is closed when another one needs its place.
	spare time.Duration
	// body is how long a body may take, and a second more for each rate bytes.
	body time.Duration
	rate int64
	// room is how long a request waits until the bodies of others have been read.
	room time.Duration
	// write is how long a client may take to read a piece of an answer.
	write time.Duration
	// answers is how long clients may take to read their answers when the server shuts down.
	answers time.Duration
}

var usualTiming = timing{
	header: 10 * time.Second, idle: 2 * time.Minute, spare: time.Second, body: 20 * time.Second, rate: 32 << 10, room: 30 * time.Second,
	write: 30 * time.Second, answers: 10 * time.Second,
}

// bodiesAtOnce is how many bodies of the largest size are read at once. Others wait.
const bodiesAtOnce = 4

// New returns a server.
func New(c Config) *Server {
	s := &Server{
		Config: c, hosts: map[string]bool{}, origins: http.NewCrossOriginProtection(),
		timing: usualTiming, bodies: semaphore.NewWeighted(bodiesAtOnce * c.MaxBody), most: maxConnections, started: time.Now(),
	}
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		host = c.Address
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		s.anyIP = true
	}
	for _, name := range append([]string{host}, c.Hosts...) {
		s.hosts[strings.ToLower(strings.TrimSuffix(name, "."))] = true
	}
	s.mux.Refuse = s.missing
	s.revoked.file = c.Sessions
	if err := s.revoked.read(); err != nil {
		s.Log.Warn("reading which sessions have ended", "error", err.Error())
	}
	s.trust()
	s.mountOwn()
	s.mountAPIs()
	return s
}

// IsLoopback reports whether a host of an address can only be reached from this machine.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// Serve answers the requests of a listener until ctx is done. Then there are no new jobs, the
// running one may go on for Config.Grace, clients get their answers, and Serve returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: s.timing.header, IdleTimeout: s.timing.idle, MaxHeaderBytes: 64 << 10,
		ConnContext: withConn, ConnState: s.waiting.changed,
		TLSConfig: s.TLS, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	l = limit(l, s.most, func() { s.waiting.makeRoom(s.timing.spare) })
	failed := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			failed <- server.ServeTLS(l, "", "")
			return
		}
		failed <- server.Serve(l)
	}()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.closing.Store(true)
	s.Log.Info("shutting down")
	if s.Pulls != nil {
		s.Pulls.Close()
	}
	late := context.WithoutCancel(ctx)
	grace, cancel := context.WithTimeout(late, s.Grace)
	defer cancel()
	if closed := s.Engine.Close(grace); closed != nil && !errors.Is(closed, context.DeadlineExceeded) {
		s.Log.Warn("closing the models", "error", closed.Error())
	}
	s.hangUp()
	answers, cancel := context.WithTimeout(late, s.timing.answers)
	defer cancel()
	if server.Shutdown(answers) != nil {
		server.Close() // clients that do not read
	}
	if unfinished := s.finish(answers); unfinished != nil {
		s.Log.Warn("storing images", "error", unfinished.Error())
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("listening on %s: %w", s.Address, err)
	}
	return nil
}
