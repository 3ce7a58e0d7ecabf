//go:build !linux

package mlx_test

// threadID has no portable form.
func threadID() int { return 0 }
