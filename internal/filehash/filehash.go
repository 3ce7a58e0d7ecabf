// Package filehash hashes files.
package filehash

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
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
	if _, err := io.Copy(untilDone{ctx, sum}, r); err != nil {
		return "", oserr.Bare(err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// untilDone is a hash that fails when a context is cancelled.
type untilDone struct {
	ctx context.Context
	hash.Hash
}

func (w untilDone) Write(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.Hash.Write(p)
}
