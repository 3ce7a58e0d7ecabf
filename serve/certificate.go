package serve

import (
	"crypto/tls"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/oserr"
)

// recheck is how long a certificate is used before its files are read again.
const recheck = time.Second

// A Certificate is a certificate in two files, which are read again when they change.
type Certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	pair    *tls.Certificate
	problem string    // of the last reading, "" without one
	checked time.Time // when the files were read
}

// ReadCertificate reads a certificate with its chain, and its key. Both are PEM.
func ReadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
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
			if time.Since(c.checked) >= recheck {
				before := c.problem
				if err := c.load(); err != nil && c.problem != before {
					problem(err)
				}
			}
			return c.pair, nil
		},
	}
}

// load reads the files, which takes less than a millisecond.
func (c *Certificate) load() error {
	c.checked, c.problem = time.Now(), ""
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		err = oserr.Bare(err)
		c.problem = err.Error()
		return err
	}
	c.pair = &pair
	return nil
}
