package mlx

import "golang.org/x/sys/unix"

// keepAlive are options of TCP: questions after 5 s of silence, every 5 s, and how long nothing may be confirmed.
var keepAlive = map[int]int{unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: (lost - 5) / 5,
	unix.TCP_USER_TIMEOUT: 1000 * lost}
