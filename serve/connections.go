package serve

import (
	"net"
	"sync"
)

// maxConnections is how many connections are open at once. Others wait until they are accepted.
const maxConnections = 1024

// A limited listener accepts a connection when fewer than some number are open.
type limited struct {
	net.Listener
	places chan struct{} // has an element for each open connection
	closed chan struct{}
	close  func() error
}

func limit(l net.Listener, n int) *limited {
	closed := make(chan struct{})
	return &limited{l, make(chan struct{}, n), closed, sync.OnceValue(func() error {
		close(closed)
		return l.Close()
	})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{c, sync.OnceFunc(func() { <-l.places })}, nil
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
