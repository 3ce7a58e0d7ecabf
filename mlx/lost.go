package mlx

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// lost is after how many seconds without an answer a connection of the ring is lost. TCP alone waits for a
// quarter of an hour if something was sent, and for ever if not.
const lost = 15

// sockets are the files of the ring's connections, which MLX leaves open.
var sockets atomic.Pointer[[]int]

// watchSockets makes the system notice that a network was unplugged: it asks the other ends of all of this
// process's TCP connections, the ring's among them, to which MLX gives no access, whether they are there.
func watchSockets() {
	const most = 1024 // more than the files that are open when a group begins
	var found []int
	for fd := range most {
		peer, err := unix.Getpeername(fd)
		if _, ip := peer.(*unix.SockaddrInet4); err != nil || !ip {
			continue
		}
		found = append(found, fd)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		for option, value := range keepAlive { // an option that a system lacks makes it later
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value)
		}
	}
	sockets.CompareAndSwap(nil, &found)
}

// LostConnections is how many of the ring's connections are lost. MLX notices that in some collectives only: others wait
// for ever. A connection to a process that has ended may be lost too.
func LostConnections() (n int) {
	if found := sockets.Load(); found != nil {
		for _, fd := range *found {
			if _, err := unix.Getpeername(fd); err == unix.ENOTCONN || err == unix.EINVAL {
				n++
			}
		}
	}
	return n
}
