//go:build !linux

package mlx_test

// threadID returns 0, since no portable call returns the ID.
func threadID() int { return 0 }
