package mlx_test

import "syscall"

// threadID is the number of the OS thread that runs the caller.
func threadID() int { return syscall.Gettid() }
