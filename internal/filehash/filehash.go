// Package filehash hashes files.
package filehash

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"

	"github.com/gomflux/gomflux/internal/oserr"
)

// SHA256 returns the SHA-256 of a file in hexadecimal digits. Its errors do not
// contain the file's name. If the context is cancelled, the error is its cause.
func SHA256(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", oserr.Bare(err)
	}
	defer f.Close()
	return Sum(ctx, f)
}

// Sum is SHA256 of all that r has.
func Sum(ctx context.Context, r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, Reader(ctx, r)); err != nil {
		return "", oserr.Bare(err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Reader returns a reader of r that fails when the context is cancelled, with its cause.
func Reader(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(b)
}
