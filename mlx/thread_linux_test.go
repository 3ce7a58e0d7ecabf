package mlx_test

import "syscall"

// threadID returns the ID of the caller's OS thread.
func threadID() int { return syscall.Gettid() }
