// Package promptcache keeps prompt embeddings in a folder, so that a prompt that was
// encoded before needs no text encoder.
//
// The folder has mode 0700, its files have mode 0600. A file holds the output of one
// text encoder. Its name is a keyed hash (HMAC-SHA256) of everything that the output
// depends on, so neither the names nor the files contain a prompt, and a guessed
// prompt cannot be confirmed without the folder's secret. A keyed hash of the elements
// in the file's metadata detects damaged files and those of another cache. Several
// processes can use a folder at once: files appear complete, and one process at a time
// writes.
package promptcache

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/oserr"
)

// DefaultSize is the default limit of a cache's size, in bytes. The embeddings of a
// prompt of 512 tokens with 4096 numbers each take 4 MB in bfloat16.
const DefaultSize = 512_000_000

// lockWait is how long a process waits for others that write to the cache.
const lockWait = 10 * time.Second

const (
	format     = "gomflux prompt embeddings 2"
	tensorName = "embeds"
	suffix     = ".safetensors"
	secretName = "secret"
	lockName   = "lock"
	secretSize = 32
	headerSize = 1 << 10 // of a file, at most
)

var fileName = regexp.MustCompile(`^[0-9a-f]{64}\.safetensors$`)

// A Cache is a folder of prompt embeddings. It is safe for concurrent use.
type Cache struct {
	dir  string
	size int64
	warn func(string)
	once sync.Once // for warn
}

// New returns the cache in a folder, which is created when something is stored. The
// files are kept below a size in bytes by removing those that were used least
// recently. warn, which may be nil, is called for the first problem: a folder that
// cannot be used, or a damaged file. The cache then continues as if it were empty.
func New(dir string, size int64, warn func(string)) *Cache {
	return &Cache{dir: dir, size: size, warn: warn}
}

// DefaultFolder returns the folder of the user's cache: gomflux/prompts in
// $XDG_CACHE_HOME or ~/.cache, on a Mac in ~/Library/Caches.
func DefaultFolder() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "gomflux", "prompts"), nil
}

// Note returns the note that was stored with the embeddings of a key, or "". The file
// may be damaged.
func (c *Cache) Note(key []byte) string {
	secret, err := c.secret()
	if err != nil || secret == nil {
		return ""
	}
	f, err := checkpoint.OpenArrays(c.path(secret, key))
	if err != nil {
		return ""
	}
	defer f.Close()
	return f.Metadata["note"]
}

// Has reports whether the cache has a file for a key. The file may be damaged.
func (c *Cache) Has(key []byte) bool {
	secret, err := c.secret()
	if err != nil || secret == nil {
		return false
	}
	info, err := os.Stat(c.path(secret, key))
	return err == nil && info.Mode().IsRegular()
}

// Get returns the embeddings that were stored under a key, or nil.
func (c *Cache) Get(key []byte) *checkpoint.Array {
	secret, err := c.secret()
	if err != nil {
		c.problem(fmt.Errorf("the cache of prompt embeddings is not used: %w", err))
	}
	if secret == nil {
		return nil
	}
	path := c.path(secret, key)
	found, err := read(path, secret)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		c.problem(fmt.Errorf("a file in the cache of prompt embeddings is not used: %w", err))
		return nil
	}
	now := time.Now()
	os.Chtimes(path, now, now) // on a read-only disk the order of use stays as it is
	return found
}

// Put stores embeddings and a note under a key. Embeddings that are larger than the whole cache
// are not stored.
func (c *Cache) Put(key []byte, embeds *checkpoint.Array, note string) {
	if err := c.put(key, embeds, note); err != nil {
		c.problem(fmt.Errorf("prompt embeddings are not cached: %w", err))
	}
}

func (c *Cache) put(key []byte, embeds *checkpoint.Array, note string) error {
	need := int64(len(embeds.Data)) + headerSize
	if need > c.size {
		return nil
	}
	release, err := c.lock()
	if release == nil || err != nil {
		return err
	}
	defer release()
	secret, err := c.secret()
	if errors.Is(err, errSecret) || err == nil && secret == nil {
		if err != nil {
			c.problem(fmt.Errorf("the cache of prompt embeddings starts anew: %w", err))
		}
		secret, err = c.newSecret()
	}
	if err != nil {
		return err
	}
	path := c.path(secret, key)
	if err := c.makeRoom(need); err != nil {
		return err
	}
	tensor := &checkpoint.Array{Name: tensorName, Dtype: embeds.Dtype, Shape: embeds.Shape, Data: embeds.Data}
	metadata := map[string]string{"format": format, "note": note, "mac": mac(secret, path, tensor, note)}
	return checkpoint.WritePrivateFile(path, []*checkpoint.Array{tensor}, metadata)
}

// lock creates the folder and takes its lock. The function it returns is nil if
// other processes hold the lock for long.
func (c *Cache) lock() (release func(), err error) {
	for deadline := time.Now().Add(lockWait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if release, err = c.tryLock(); release != nil || err != nil {
			return release, err
		}
	}
	return nil, nil
}

// tryLock is lock without waiting.
func (c *Cache) tryLock() (release func(), err error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder %s: %w", c.dir, oserr.Bare(err))
	}
	if err := c.checkFolder(); errors.Is(err, fs.ErrNotExist) { // another process has removed it
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	path := filepath.Join(c.dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		f.Close()
		release, err = filelock.Try(path)
	}
	switch {
	case errors.Is(err, filelock.ErrHeld), errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("folder %s: %w", c.dir, oserr.Bare(err))
	}
	return release, nil
}

// checkFolder returns an error if other users could read or write the folder.
func (c *Cache) checkFolder() error {
	info, err := os.Stat(c.dir)
	switch {
	case err != nil:
		return fmt.Errorf("folder %s: %w", c.dir, oserr.Bare(err))
	case !info.IsDir():
		return fmt.Errorf("%s: expected a folder, found a file", c.dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("folder %s: must be private, found mode %04o (chmod 700 makes it so, or choose another folder)",
			c.dir, info.Mode().Perm())
	}
	return nil
}

// errSecret is wrapped by errors about a secret that is damaged.
var errSecret = errors.New("is damaged")

// secret reads the folder's secret. It returns nil if there is no secret yet.
func (c *Cache) secret() ([]byte, error) {
	if err := c.checkFolder(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	path := filepath.Join(c.dir, secretName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	defer f.Close()
	secret, err := io.ReadAll(io.LimitReader(f, secretSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	if len(secret) != secretSize {
		return nil, fmt.Errorf("%s: %w: expected %d bytes", path, errSecret, secretSize)
	}
	return secret, nil
}

// newSecret writes a new secret. The caller holds the lock.
func (c *Cache) newSecret() ([]byte, error) {
	secret := make([]byte, secretSize)
	rand.Read(secret) // never fails
	path := filepath.Join(c.dir, secretName)
	err := atomicfile.ReplacePrivate(path, func(w io.Writer) error {
		_, err := w.Write(secret)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return secret, nil
}

// path returns the file of a key.
func (c *Cache) path(secret, key []byte) string {
	return filepath.Join(c.dir, keyedHash(secret, []byte("name"), key)+suffix)
}

// keyedHash returns the HMAC-SHA256 of some parts in hexadecimal digits.
func keyedHash(secret []byte, parts ...[]byte) string {
	h := hmac.New(sha256.New, secret)
	for _, part := range parts {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// mac returns the keyed hash of a file: of its name, so that a renamed file is
// detected, of its tensor and of its note.
func mac(secret []byte, path string, t *checkpoint.Array, note string) string {
	return keyedHash(secret, []byte(format), []byte(filepath.Base(path)), []byte(t.String()), t.Data, []byte(note))
}

// read reads a file and compares its keyed hash.
func read(path string, secret []byte) (*checkpoint.Array, error) {
	f, err := checkpoint.OpenArrays(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if found := f.Metadata["format"]; f.Format != "safetensors" || found != format {
		return nil, fmt.Errorf("%s: was not written by this version of gomflux", path)
	}
	t, err := f.Read(tensorName)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal([]byte(f.Metadata["mac"]), []byte(mac(secret, path, t, f.Metadata["note"]))) {
		return nil, fmt.Errorf("%s: is damaged, or a file of another cache", path)
	}
	return t, nil
}

// problem reports the first problem.
func (c *Cache) problem(err error) {
	c.once.Do(func() {
		if c.warn != nil {
			c.warn(err.Error())
		}
	})
}
