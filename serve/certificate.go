package serve

import (
	"crypto/tls"
	"os"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/oserr"
)

// recheck is how long a certificate is used before its files are looked at again.
const recheck = time.Second

// A Certificate is a certificate in two files, which are read again when they change.
type Certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	pair    *tls.Certificate
	read    [2]fileState // of the files when pair was read, or could not be
	checked time.Time
}

// A fileState tells versions of a file apart.
type fileState struct {
	modified time.Time
	size     int64
}

// ReadCertificate reads a certificate with its chain, and its key. Both are PEM.
func ReadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, checked: time.Now()}
	c.read = c.state()
	return c, c.load()
}

// Config returns the configuration of a server with the certificate. problem is called when changed
// files cannot be used; the old certificate stays then.
func (c *Certificate) Config(problem func(error)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if now := time.Now(); now.Sub(c.checked) >= recheck {
				c.checked = now
				if state := c.state(); state != c.read {
					c.read = state
					if err := c.load(); err != nil {
						problem(err)
					}
				}
			}
			return c.pair, nil
		},
	}
}

// state returns the states of both files, the zero value for one that is missing.
func (c *Certificate) state() (s [2]fileState) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			s[i] = fileState{info.ModTime(), info.Size()}
		}
	}
	return s
}

func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return oserr.Bare(err)
	}
	c.pair = &pair
	return nil
}
