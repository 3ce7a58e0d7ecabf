package serve

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxConnections is how many connections are open at once. Others wait until they are accepted, for which
// connections without a request make room.
const maxConnections = 1024

// waiting are the connections without a request, oldest first, by the network of their address.
type waiting struct {
	mu  sync.Mutex
	all map[string][]waitingConn
}

type waitingConn struct {
	net.Conn
	since time.Time
}

// changed is the ConnState of a server.
func (v *waiting) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew, http.StateIdle:
		v.add(c)
	case http.StateClosed, http.StateHijacked:
		v.leave(c)
	}
}

func (v *waiting) add(c net.Conn) {
	v.leave(c) // HTTP/2 begins with an idle connection
	from := networkOf(c.RemoteAddr().String())
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil {
		v.all = map[string][]waitingConn{}
	}
	v.all[from] = append(v.all[from], waitingConn{c, time.Now()})
}

// leave removes a connection: it has a request, or was closed.
func (v *waiting) leave(c net.Conn) {
	if c == nil {
		return
	}
	from := networkOf(c.RemoteAddr().String())
	v.mu.Lock()
	defer v.mu.Unlock()
	if left := slices.DeleteFunc(v.all[from], func(w waitingConn) bool { return w.Conn == c }); len(left) > 0 {
		v.all[from] = left
	} else {
		delete(v.all, from)
	}
}

// makeRoom closes the oldest connection of the network that has most of them, if it has waited for some
// time.
func (v *waiting) makeRoom(patience time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var most []waitingConn
	for _, all := range v.all {
		if len(all) > len(most) {
			most = all
		}
	}
	if len(most) > 0 && time.Since(most[0].since) >= patience {
		from := networkOf(most[0].RemoteAddr().String())
		go most[0].Close() // that of TLS writes to the client
		v.all[from] = slices.Delete(most, 0, 1)
	}
}

// networkOf returns the address in host:port, and in IPv6 the network of which a customer has all addresses.
func networkOf(remote string) string {
	address, err := netip.ParseAddrPort(remote)
	ip := address.Addr().Unmap()
	if part, err := ip.Prefix(64); err == nil && ip.Is6() {
		return part.String()
	}
	if err != nil {
		return remote
	}
	return ip.String()
}

type connKey struct{}

// withConn is the ConnContext of a server.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the connection of a request, nil in tests without one.
func connOf(r *http.Request) net.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return c
}

// A limited listener accepts a connection when fewer than some number are open.
type limited struct {
	net.Listener
	places chan struct{} // has an element for each open connection
	closed chan struct{}
	close  func() error
	full   func() // is called now and then while no place is free
}

func limit(l net.Listener, n int, full func()) *limited {
	closed := make(chan struct{})
	return &limited{Listener: l, places: make(chan struct{}, n), closed: closed, full: full, close: sync.OnceValue(func() error {
		close(closed)
		return l.Close()
	})}
}

func (l *limited) Accept() (net.Conn, error) {
	if err := l.takePlace(); err != nil {
		return nil, err
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{c, sync.OnceFunc(func() { <-l.places })}, nil
}

// takePlace waits until a connection can be open.
func (l *limited) takePlace() error {
	for {
		select {
		case l.places <- struct{}{}:
			return nil
		default:
			l.full()
		}
		select {
		case l.places <- struct{}{}:
			return nil
		case <-time.After(20 * time.Millisecond):
		case <-l.closed:
			return net.ErrClosed
		}
	}
}

func (l *limited) Close() error { return l.close() }

// A limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
