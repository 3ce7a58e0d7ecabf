package protocol

import "net"

// peerUID returns the user of a client's process.
func peerUID(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) { uid, err = socketUser(int(fd)) })
	if controlErr != nil {
		return 0, controlErr
	}
	return uid, err
}
