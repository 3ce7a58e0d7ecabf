package mlx

import "golang.org/x/sys/unix"

// lost is after how many seconds without an answer a connection of the ring is lost. TCP alone waits for a
// quarter of an hour if something was sent, and for ever if not.
const lost = 15

// watchSockets makes the system notice that a network was unplugged: it asks the other ends of all of this
// process's TCP connections, the ring's among them, to which MLX gives no access, whether they are there. A
// computation that waits for one that is not then fails.
func watchSockets() {
	const most = 1024 // more than the files that are open when a group begins
	for fd := range most {
		peer, err := unix.Getpeername(fd)
		if _, ip := peer.(*unix.SockaddrInet4); err != nil || !ip {
			continue
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		for option, value := range keepAlive { // an option that a system lacks makes it later
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value)
		}
	}
}
