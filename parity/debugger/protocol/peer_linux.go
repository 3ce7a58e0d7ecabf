package protocol

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUID returns the user of a client's process.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = peerErr
	}
	if err != nil {
		return 0, err
	}
	return int(peer.Uid), nil
}
