// Package gallery keeps generated images in a folder. The names of its files are unguessable and
// contain the time and a hash of the owner, so it needs no index and survives a restart. It removes
// its oldest files when they exceed a size, and leaves other files in the folder alone.
package gallery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// DefaultSize is a limit on the size of a gallery, in bytes.
const DefaultSize = 10 << 30

// timeLayout is the time in names. Names of equal length sort by time.
const timeLayout = "20060102-150405.000000"

// ownName is the name of a file of the gallery: the time in UTC, a hash of the owner and 128
// random bits.
var ownName = regexp.MustCompile(`^gomflux-(\d{8}-\d{6}\.\d{6})-([0-9a-f]{16})-[0-9a-f]{32}\.png$`)

// abandoned is the age of a temporary file that no process writes any more.
const abandoned = 24 * time.Hour

// A Gallery is a folder with images. Its methods may be called from several goroutines, and several
// processes may use a folder.
type Gallery struct {
	dir  string
	size int64
	root *os.Root

	mu      sync.Mutex
	entries []*Entry  // oldest first
	changed time.Time // modification time of the folder when it was read
	last    time.Time // in the newest name that was made
}

// An Entry is an image in a gallery.
type Entry struct {
	Name    string
	Created time.Time
	Bytes   int64
	owner   string // hash

	once  sync.Once
	found *picture.Found
}

// Folder returns the default folder: gomflux/pictures in the user's data folder.
func Folder() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gomflux", "pictures"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "gomflux", "pictures"), nil
	}
	return filepath.Join(home, ".local", "share", "gomflux", "pictures"), nil
}

// Open opens the gallery in a folder, which it creates if necessary, readable by its owner alone.
// size is the limit on the size of all images in bytes, of which the newest is always kept.
func Open(dir string, size int64) (*Gallery, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder for images %s: %w", dir, oserr.Bare(err))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("folder for images %s: %w", dir, oserr.Bare(err))
	}
	g := &Gallery{dir: dir, size: size, root: root}
	if err := g.clean(); err != nil {
		root.Close()
		return nil, err
	}
	return g, nil
}

// Close closes the folder.
func (g *Gallery) Close() error { return g.root.Close() }

// clean removes what a killed process left, and what exceeds the size.
func (g *Gallery) clean() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.read(); err != nil {
		return err
	}
	files, err := fs.ReadDir(g.root.FS(), ".")
	if err != nil {
		return g.wrap(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && atomicfile.IsTemporary(f.Name()) && time.Since(info.ModTime()) > abandoned {
			g.root.Remove(f.Name())
		}
	}
	return g.prune()
}

func (g *Gallery) wrap(err error) error {
	return fmt.Errorf("folder for images %s: %w", g.dir, oserr.Bare(err))
}

// read lists the folder again if it has changed.
func (g *Gallery) read() error {
	info, err := g.root.Stat(".")
	if err != nil {
		return g.wrap(err)
	}
	if info.ModTime().Equal(g.changed) && time.Since(g.changed) > time.Second { // clocks of file systems are coarse
		return nil
	}
	files, err := fs.ReadDir(g.root.FS(), ".") // sorted by name
	if err != nil {
		return g.wrap(err)
	}
	known := map[string]*Entry{}
	for _, e := range g.entries {
		known[e.Name] = e
	}
	g.entries, g.changed = nil, info.ModTime()
	for _, f := range files {
		parts := ownName.FindStringSubmatch(f.Name())
		if parts == nil || !f.Type().IsRegular() {
			continue
		}
		created, err := time.Parse(timeLayout, parts[1])
		info, infoErr := f.Info()
		if err != nil || infoErr != nil {
			continue
		}
		if e := known[f.Name()]; e != nil && e.Bytes == info.Size() {
			g.entries = append(g.entries, e)
			continue
		}
		g.entries = append(g.entries, &Entry{Name: f.Name(), Created: created, Bytes: info.Size(), owner: parts[2]})
	}
	return nil
}

// prune removes the oldest images until the rest has the size of the gallery.
func (g *Gallery) prune() error {
	total := sum(g.entries)
	for len(g.entries) > 1 && total > g.size {
		if err := g.remove(g.entries[0]); err != nil {
			return err
		}
		total -= g.entries[0].Bytes
		g.entries = g.entries[1:]
	}
	return nil
}

// remove removes a file, which another process may have removed.
func (g *Gallery) remove(e *Entry) error {
	if err := g.root.Remove(e.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", filepath.Join(g.dir, e.Name), oserr.Bare(err))
	}
	return nil
}

func sum(entries []*Entry) (n int64) {
	for _, e := range entries {
		n += e.Bytes
	}
	return n
}

// hash returns what the names of an owner's files contain.
func hash(owner string) string {
	h := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(h[:8])
}

// Add stores an image as PNG with its settings, as gomflux generate writes it, and returns its
// entry. Settings that cannot be stored are left out.
func (g *Gallery) Add(owner string, img image.Image, s picture.Settings) (*Entry, error) {
	name, created := g.newName(owner)
	path := filepath.Join(g.dir, name)
	f, err := atomicfile.New(path)
	if err != nil {
		return nil, g.wrap(err)
	}
	defer f.Discard()
	if err := f.Fill(func(w io.Writer) error { return api.EncodePNG(w, img, s) }); err != nil {
		return nil, g.wrap(err)
	}
	if err := f.Create(path); err != nil {
		return nil, g.wrap(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changed = time.Time{}
	if err := g.read(); err != nil {
		return nil, err
	}
	e := g.entry(owner, name)
	if e == nil {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	e.Created = created
	return e, g.prune()
}

// newName returns an unguessable name, later than those before.
func (g *Gallery) newName(owner string) (string, time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now().UTC().Truncate(time.Microsecond)
	if !now.After(g.last) {
		now = g.last.Add(time.Microsecond)
	}
	g.last = now
	return fmt.Sprintf("gomflux-%s-%s-%s.png", now.Format(timeLayout), hash(owner), engine.NewID()), now
}

// A Page is a part of the images of an owner.
type Page struct {
	Entries []*Entry // newest first
	// Next is the name that the next page comes after, "" at the end.
	Next  string
	Count int   // of all images of the owner
	Bytes int64 // size of all images of the owner
	Size  int64 // limit for the images of all owners
}

// List returns at most n images that are older than the image with a name, or the newest for "". The
// owner "" stands for all.
func (g *Gallery) List(owner, after string, n int) (Page, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.read(); err != nil {
		return Page{}, err
	}
	var own []*Entry
	for _, e := range g.entries {
		if e.of(owner) {
			own = append(own, e)
		}
	}
	p := Page{Count: len(own), Bytes: sum(own), Size: g.size}
	if after != "" {
		at, _ := slices.BinarySearchFunc(own, after, func(e *Entry, name string) int { return cmp.Compare(e.Name, name) })
		own = own[:at]
	}
	if len(own) > n {
		own = own[len(own)-n:]
		p.Next = own[0].Name
	}
	p.Entries = slices.Clone(own)
	slices.Reverse(p.Entries)
	return p, nil
}

func (e *Entry) of(owner string) bool { return owner == "" || e.owner == hash(owner) }

// entry returns an owner's image, nil if there is no image with the name.
func (g *Gallery) entry(owner, name string) *Entry {
	for _, e := range g.entries {
		if e.Name == name && e.of(owner) {
			return e
		}
	}
	return nil
}

// find is entry after reading the folder, or [fs.ErrNotExist].
func (g *Gallery) find(owner, name string) (*Entry, error) {
	if err := g.read(); err != nil {
		return nil, err
	}
	if e := g.entry(owner, name); e != nil {
		return e, nil
	}
	return nil, fs.ErrNotExist
}

// Open opens an image of an owner, "" for all. The name is looked up among those of the gallery and
// is never used as a path. The error for a name that is not there is [fs.ErrNotExist].
func (g *Gallery) Open(owner, name string) (*os.File, *Entry, error) {
	g.mu.Lock()
	e, err := g.find(owner, name)
	g.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	f, err := g.root.Open(e.Name)
	return f, e, err
}

// Remove removes an image of an owner, "" for all. The error for a name that is not there is
// [fs.ErrNotExist].
func (g *Gallery) Remove(owner, name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.find(owner, name)
	if err != nil {
		return err
	}
	if err := g.remove(e); err != nil {
		return err
	}
	g.entries = slices.DeleteFunc(g.entries, func(o *Entry) bool { return o == e })
	return nil
}

// Settings returns the settings in an image, nil if it has no valid settings.
func (g *Gallery) Settings(ctx context.Context, e *Entry) *picture.Found {
	if ctx.Err() != nil {
		return nil
	}
	e.once.Do(func() {
		f, err := g.root.Open(e.Name)
		if err != nil {
			return
		}
		defer f.Close()
		if found, err := picture.ReadSettings(f); err == nil {
			// the strings are parts of nothing large: they were decoded
			found.JSON, found.Parameters = nil, strings.Clone(found.Parameters)
			e.found = found
		}
	})
	return e.found
}
