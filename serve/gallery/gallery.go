// Package gallery keeps generated images in a folder. The names of its files are unguessable and
// contain the time and a hash of the owner, so it needs no index and survives a restart. An empty
// file with the same name and another ending makes an image a favourite. The gallery removes its
// oldest images, except favourites, when all exceed a size, and leaves other files in the folder alone.
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
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// DefaultSize is the limit on the size of a gallery where nothing else is configured, in bytes.
const DefaultSize = 2e9

// timeLayout is the time in names. Names of equal length sort by time.
const timeLayout = "20060102-150405.000000"

// ownName is the name of a file of the gallery: the time in UTC, a hash of the owner and 128
// random bits.
var ownName = regexp.MustCompile(`^gomflux-(\d{8}-\d{6}\.\d{6})-([0-9a-f]{16})-[0-9a-f]{32}\.png$`)

// markEnd is the end of the name of the file that makes an image a favourite.
const markEnd = ".favourite"

// ErrFull is the error of one favourite too many: half of the gallery is for other images.
var ErrFull = &api.Error{
	Status: http.StatusConflict, Code: "gallery_full", Message: "the favourites would exceed half of the gallery's size",
}

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

// An Entry is an image in a gallery. Its JSON is that of gomflux's own API.
type Entry struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"`
	owner   string    // hash

	favourite atomic.Bool

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
	names := map[string]bool{}
	for _, f := range files {
		names[f.Name()] = true
	}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), markEnd) + ".png"
		if strings.HasSuffix(f.Name(), markEnd) && ownName.MatchString(name) && !names[name] {
			g.root.Remove(f.Name()) // another program has removed the image
		}
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
	marked := map[string]bool{}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), markEnd) {
			marked[f.Name()] = true
		}
	}
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
		e := known[f.Name()]
		if e == nil || e.Bytes != info.Size() {
			e = &Entry{Name: f.Name(), Created: created, Bytes: info.Size(), owner: parts[2]}
		}
		e.favourite.Store(marked[mark(e.Name)])
		g.entries = append(g.entries, e)
	}
	return nil
}

// prune removes the oldest images that are not favourites, except the newest of all, until the rest
// has the size of the gallery.
func (g *Gallery) prune() error {
	total := sum(g.entries)
	for i := 0; i < len(g.entries)-1 && total > g.size; {
		e := g.entries[i]
		if e.Favourite() {
			i++
			continue
		}
		if err := g.remove(e); err != nil {
			return err
		}
		total -= e.Bytes
		g.entries = slices.Delete(g.entries, i, i+1)
	}
	return nil
}

// remove removes the files of an image, which another process may have removed.
func (g *Gallery) remove(e *Entry) error {
	for _, name := range []string{e.Name, mark(e.Name)} {
		if err := g.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", filepath.Join(g.dir, name), oserr.Bare(err))
		}
	}
	return nil
}

// mark returns the name of the file that makes an image a favourite.
func mark(name string) string { return strings.TrimSuffix(name, ".png") + markEnd }

// Favourite reports whether the image is a favourite, which is never removed automatically.
func (e *Entry) Favourite() bool { return e.favourite.Load() }

// SetFavourite makes an image of an owner, "" for all, a favourite, or not. The error for a name that
// is not there is [fs.ErrNotExist], and [ErrFull] if there are too many favourites.
func (g *Gallery) SetFavourite(owner, name string, on bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.find(owner, name)
	if err != nil || e.Favourite() == on {
		return err
	}
	if !on {
		if err := g.root.Remove(mark(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return g.wrap(err)
		}
		e.favourite.Store(false)
		return nil
	}
	total := e.Bytes
	for _, other := range g.entries {
		if other.Favourite() {
			total += other.Bytes
		}
	}
	if total > g.size/2 {
		return ErrFull
	}
	f, err := g.root.OpenFile(mark(name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return g.wrap(err)
	}
	e.favourite.Store(true)
	return f.Close()
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

// A Page is a part of the images of an owner. Its JSON is that of gomflux's own API.
type Page struct {
	Entries []*Entry `json:"-"` // newest first
	// Next is the name that the next page comes after, "" at the end. A page before it may have few
	// images, or no image, if few of many match.
	Next  string `json:"next,omitempty"`
	Count int    `json:"count"`     // of all images of the owner
	Bytes int64  `json:"bytes"`     // size of all images of the owner
	Size  int64  `json:"max_bytes"` // limit for the images of all owners
}

// A Query selects images. Its zero value stands for all.
type Query struct {
	Prompt    string // words of the prompt, in any order and case
	Model     string // a part of the model's name, in any case
	Favourite bool
}

// maxRead is how many images a page looks at for a query, since their files are read.
const maxRead = 1000

// List returns at most n images that match and are older than the image with a name, or the newest for
// "". The owner "" stands for all.
func (g *Gallery) List(ctx context.Context, owner, after string, n int, q Query) (Page, error) {
	g.mu.Lock()
	err := g.read()
	var own []*Entry
	for _, e := range g.entries {
		if e.of(owner) {
			own = append(own, e)
		}
	}
	g.mu.Unlock()
	if err != nil {
		return Page{}, err
	}
	p := Page{Count: len(own), Bytes: sum(own), Size: g.size}
	if after != "" {
		at, _ := slices.BinarySearchFunc(own, after, func(e *Entry, name string) int { return cmp.Compare(e.Name, name) })
		own = own[:at]
	}
	for i, e := range slices.Backward(own) {
		if ctx.Err() != nil {
			return Page{}, context.Cause(ctx)
		}
		if g.matches(ctx, e, q) {
			p.Entries = append(p.Entries, e)
		}
		if i > 0 && (len(p.Entries) == n || len(own)-i == maxRead) {
			p.Next = e.Name
			break
		}
	}
	return p, nil
}

// matches reports whether an image is what a query asks for.
func (g *Gallery) matches(ctx context.Context, e *Entry, q Query) bool {
	if q.Favourite && !e.Favourite() {
		return false
	}
	words := strings.Fields(strings.ToLower(q.Prompt))
	if len(words) == 0 && q.Model == "" {
		return true
	}
	found := g.Settings(ctx, e)
	if found == nil || !strings.Contains(strings.ToLower(found.Settings.Model), strings.ToLower(q.Model)) {
		return false
	}
	prompt := strings.ToLower(found.Settings.Prompt)
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(prompt, word) })
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
