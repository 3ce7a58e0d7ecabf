package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestConnections: idle and slow clients hold no more connections than allowed, and others are
// answered when those are closed.
func TestConnections(t *testing.T) {
	s, _, _ := newTest(t, nil)
	s.most = 3
	s.timing.header, s.timing.idle = 500*time.Millisecond, 500*time.Millisecond
	address, stop := start(t, s)
	var slow []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n") // without the end
		slow = append(slow, c)
	}
	began := time.Now()
	for _, c := range slow[3:] { // which were not accepted yet
		c.Close()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if took := time.Since(began); resp.StatusCode != 200 || took < 300*time.Millisecond {
		t.Errorf("status %d after %v: expected an answer when the slow clients were cut off", resp.StatusCode, took)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A pipeListener accepts ends of pipes.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipeListener) Close() error   { close(l.conns); return nil }
func (l pipeListener) Addr() net.Addr { return nil }

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(chan net.Conn, 10)
		for range 10 {
			a, b := net.Pipe()
			defer a.Close()
			conns <- b
		}
		l := limit(pipeListener{conns}, 2, func() {})
		accepted := make(chan net.Conn, 10)
		failed := make(chan error, 1)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					failed <- err
					return
				}
				accepted <- c
			}
		}()
		for range 3 {
			synctest.Wait()
			if n := len(accepted); n != 2 {
				t.Errorf("%d connections are open, expected 2", n)
			}
			c := <-accepted
			c.Close()
			c.Close() // gives one place back
		}
		synctest.Wait()
		l.Close() // while Accept waits
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; err != net.ErrClosed {
			t.Error(err)
		}
		for range 2 {
			(<-accepted).Close()
		}
	})
}

// writeCertificate writes a certificate with a number, and its key.
func writeCertificate(t *testing.T, certFile, keyFile string, number int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		modified := time.Now().Add(time.Duration(number) * time.Second) // file systems may have coarse clocks
		if err := os.Chtimes(name, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificate: a renewed certificate is used without a restart, and one that is damaged is not.
func TestCertificate(t *testing.T) {
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	if _, err := ReadCertificate(certFile, keyFile); err == nil {
		t.Fatal("files that are missing were read")
	}
	writeCertificate(t, certFile, keyFile, 1)
	certificate, err := ReadCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	problems := make(chan error, 10)
	s, _, _ := newTest(t, func(c *Config) { c.TLS = certificate.Config(func(err error) { problems <- err }) })
	address, _ := start(t, s)
	number := func() int64 {
		t.Helper()
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	later := func() { // without waiting
		certificate.mu.Lock()
		defer certificate.mu.Unlock()
		certificate.checked = certificate.checked.Add(-recheck)
	}
	for i, step := range []struct {
		change   func()
		want     int64
		problems int
	}{
		{func() {}, 1, 0},
		{func() { writeCertificate(t, certFile, keyFile, 2); later() }, 2, 0},
		{func() { writeCertificate(t, certFile, filepath.Join(folder, "other"), 3); later() }, 2, 1}, // the key is still missing
		{later, 2, 0},
		{func() { os.Rename(filepath.Join(folder, "other"), keyFile); later() }, 3, 0},
		{func() { os.Remove(certFile); later() }, 3, 1},
		{func() { writeCertificate(t, certFile, keyFile, 4); later() }, 4, 0},
	} {
		step.change()
		if n := number(); n != step.want {
			t.Errorf("step %d: certificate %d, expected %d", i, n, step.want)
		}
		if n := len(problems); n != step.problems {
			t.Errorf("step %d: %d problems, expected %d", i, n, step.problems)
		}
		for len(problems) > 0 {
			<-problems
		}
	}
}

// TestWaiting: connections without a request make room for others, those of the address that has most of
// them first. Connections with a request are not touched.
func TestWaiting(t *testing.T) {
	s, _, _ := newTest(t, nil)
	asked, release := make(chan struct{}), make(chan struct{})
	s.mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-release
		io.WriteString(w, "done")
	})
	s.most, s.timing.spare = 20, 100*time.Millisecond
	address, stop := start(t, s)
	busy := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + address + "/slow")
		if err != nil {
			busy <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		busy <- string(text)
	}()
	<-asked
	var idle []net.Conn
	for i := range 3 * s.most {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			io.WriteString(c, "GET /healthz HTTP/1.1\r\n") // without the end
		}
		idle = append(idle, c)
	}
	client := &http.Client{Timeout: 5 * time.Second} // half of usualTiming.header
	resp, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	idle[0].SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := idle[0].Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the oldest connection is open: %v", err)
	}
	newest := idle[len(idle)-1]
	newest.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := newest.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the newest connection: %v", err)
	}
	close(release)
	if text := <-busy; text != "done" {
		t.Errorf("the request of a connection: %s", text)
	}
	for _, c := range idle {
		c.Close()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A connFrom is a connection from an address.
type connFrom struct {
	net.Conn
	from   string
	closed chan string
}

func (c *connFrom) RemoteAddr() net.Addr { return pipeAddr(c.from) }
func (c *connFrom) Close() error         { c.closed <- c.from; return nil }

type pipeAddr string

func (a pipeAddr) Network() string { return "tcp" }
func (a pipeAddr) String() string  { return string(a) }

func TestMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v waiting
		closed := make(chan string, 10)
		conns := map[string]*connFrom{}
		for _, from := range []string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.2:2", "192.0.2.2:3", "192.0.2.3:1"} {
			conns[from] = &connFrom{from: from, closed: closed}
			v.changed(conns[from], http.StateNew)
			time.Sleep(time.Second)
		}
		expect := func(patience time.Duration, want string) {
			t.Helper()
			v.makeRoom(patience)
			synctest.Wait()
			got := ""
			if len(closed) > 0 {
				got = <-closed
			}
			if got != want {
				t.Errorf("closed %q, expected %q", got, want)
			}
		}
		v.leave(conns["192.0.2.2:1"]) // has a request
		expect(10*time.Second, "")
		expect(time.Second, "192.0.2.2:2")
		v.changed(conns["192.0.2.2:1"], http.StateIdle)
		expect(time.Second, "192.0.2.2:3")
		v.changed(conns["192.0.2.1:1"], http.StateClosed)
		v.changed(conns["192.0.2.3:1"], http.StateClosed)
		expect(time.Second, "")
		expect(0, "192.0.2.2:1")
	})
}
