package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filehash"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/units"
)

// A Plan lists the files to download from a repository and how much of them the
// cache has already.
type Plan struct {
	Info  *Info
	Files []File // sorted by path
	// Index is the contents of model_index.json or modular_model_index.json. It is nil if the repository has
	// no such file or if the files were named by the user.
	Index []byte
	// Configs are the contents of config.json in folders with weights, if something has to be downloaded.
	Configs map[string][]byte
	// Adapter reports whether the files are a LoRA, judging by their names.
	Adapter bool
	// Bytes is the size of all files, Here the part that is in the cache.
	Bytes, Here int64

	cache string
	dir   string // the repository's folder in the cache
}

// Plan chooses the files that the repository's model is loaded from or, if names
// are given, these files together with their configs. With verify it hashes all
// files that are in the cache and removes damaged ones.
func (c *Client) Plan(ctx context.Context, info *Info, verify bool, names ...string) (*Plan, error) {
	cache, err := Cache()
	if err != nil {
		return nil, err
	}
	p := &Plan{Info: info, cache: cache, dir: filepath.Join(cache, folderName(info.Repo))}
	i := slices.IndexFunc(info.Files, func(f File) bool { return f.Path == indexName })
	if i < 0 {
		i = slices.IndexFunc(info.Files, func(f File) bool { return isIndex(f.Path) })
	}
	if i >= 0 && len(names) == 0 {
		if p.Index, err = c.small(ctx, p, info.Files[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", info.Repo, err)
		}
	}
	if len(names) > 0 {
		p.Files, err = named(info.Files, names)
	} else {
		p.Files, err = needed(info.Files, p.Index)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", info.Repo, err)
	}
	seen := map[string]bool{}
	for _, f := range p.Files {
		p.Adapter = p.Adapter || p.Index == nil && slices.Contains(adapters, path.Base(f.Path))
		if seen[f.Hash] {
			continue // the same contents under another name
		}
		seen[f.Hash] = true
		p.Bytes += f.Size
		if verify {
			if err := p.removeDamaged(ctx, f); err != nil {
				return nil, err
			}
		}
		if p.has(f) {
			p.Here += f.Size
			continue
		}
		d := download{blob: p.blob(f)}
		p.Here += spansOn(d.partName(), d.recordName(), f.Size).bytes()
	}
	if len(names) == 0 && !p.Complete() {
		c.readConfigs(ctx, p)
	}
	return p, nil
}

// readConfigs reads the configs of a plan's components with weights. They are for warnings, so those
// that cannot be read are left out.
func (c *Client) readConfigs(ctx context.Context, p *Plan) {
	p.Configs = map[string][]byte{}
	for _, f := range p.Files {
		weights := func(other File) bool {
			return path.Dir(other.Path) == path.Dir(f.Path) && path.Ext(other.Path) == suffix
		}
		if path.Base(f.Path) == "config.json" && slices.ContainsFunc(p.Files, weights) {
			if data, err := c.small(ctx, p, f); err == nil {
				p.Configs[path.Dir(f.Path)] = data
			}
		}
	}
}

// small reads a small file, from the cache if possible.
func (c *Client) small(ctx context.Context, p *Plan, f File) ([]byte, error) {
	for _, path := range []string{p.blob(f), p.entry(f)} {
		if data, err := os.ReadFile(path); err == nil && f.check(bytes.NewReader(data)) == nil {
			return data, nil
		}
	}
	return c.fetchSmall(ctx, p.Info, f)
}

func (p *Plan) blob(f File) string { return filepath.Join(p.dir, "blobs", f.Hash) }

func (p *Plan) entry(f File) string {
	return filepath.Join(p.dir, "snapshots", p.Info.Commit, filepath.FromSlash(f.Path))
}

// has reports whether the cache has a file: in blobs/, or in snapshots/ on file
// systems without symlinks.
func (p *Plan) has(f File) bool { return sizeIs(p.blob(f), f.Size) || p.linked(f) }

// linked reports whether the snapshot's entry for f is complete.
func (p *Plan) linked(f File) bool {
	target, err := os.Readlink(p.entry(f))
	return sizeIs(p.entry(f), f.Size) && (err != nil || filepath.Base(target) == f.Hash)
}

// removeDamaged removes a file whose hash is wrong from the cache.
func (p *Plan) removeDamaged(ctx context.Context, f File) error {
	for _, path := range []string{p.blob(f), p.entry(f)} {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		err = f.check(filehash.Reader(ctx, file))
		file.Close()
		var corrupt *corruptError
		if errors.As(err, &corrupt) {
			err = os.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, oserr.Bare(err))
		}
	}
	return nil
}

// Missing returns the number of bytes left to download.
func (p *Plan) Missing() int64 { return p.Bytes - p.Here }

// Complete reports whether the cache has all files.
func (p *Plan) Complete() bool {
	return !slices.ContainsFunc(p.Files, func(f File) bool { return !p.has(f) })
}

// Progress is the state of a running Pull.
type Progress struct {
	Here  int64 `json:"bytes"`       // as in Plan; grows during the download
	Bytes int64 `json:"total_bytes"` // as in Plan
	// PerSecond is the number of bytes per second, 0 while it is unknown.
	PerSecond float64 `json:"bytes_per_second"`
	// Left is how long the rest takes, 0 while that is unknown.
	Left time.Duration `json:"-"`
	// Waiting is the path of a file that another process is downloading, or "".
	Waiting string `json:"waiting_for,omitempty"`
}

// ErrSpace is wrapped by errors about full disks.
var ErrSpace = errors.New("not enough space on the disk")

// Pull downloads the missing files and returns the snapshot's folder, which it
// creates when all files are complete. It calls report, if not nil, a few times
// a second, from one goroutine at a time. If Pull fails, is cancelled or is
// killed, the next Pull resumes the download.
func (c *Client) Pull(ctx context.Context, p *Plan, report func(Progress)) (folder string, err error) {
	if err := p.CheckSpace(); err != nil {
		return "", err
	}
	for _, name := range []string{"blobs", "refs", "snapshots"} { // all that huggingface_hub expects of a repository
		if err := os.MkdirAll(filepath.Join(p.dir, name), 0o777); err != nil {
			return "", fmt.Errorf("the Hugging Face cache: %w", err)
		}
	}
	state := &pullState{total: p.Bytes}
	state.waiting.Store("")
	ctx, cancel := context.WithCancel(ctx)
	stop := func() {}
	if report != nil {
		stop = every(ctx, 200*time.Millisecond, func() { report(state.progress()) })
	}
	defer func() {
		cancel()
		stop()
		if err == nil && report != nil {
			report(state.progress())
		}
	}()
	fresh := map[string]bool{} // hashes of blobs that no other snapshot has
	for _, f := range p.Files {
		fresh[f.Hash] = !sizeIs(p.blob(f), f.Size)
	}
	if err := c.fetchAll(ctx, p, state); err != nil {
		return "", err
	}
	release, err := lock(ctx, filepath.Join(locksFolder(p.cache, p.Info.Repo), p.Info.Commit+".snapshot.lock"), func() {})
	if err == nil {
		err = p.link(fresh)
		release()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.Info.Repo, err)
	}
	return filepath.Join(p.dir, "snapshots", p.Info.Commit), nil
}

// pullState is the progress of a Pull, updated by its downloads.
type pullState struct {
	total   int64 // bytes
	here    atomic.Int64
	waiting atomic.Value // string, see Progress.Waiting
	rate    rate         // is used by progress alone
}

// progress is called from one goroutine at a time.
func (s *pullState) progress() Progress {
	p := Progress{Here: s.here.Load(), Bytes: s.total, Waiting: s.waiting.Load().(string)}
	s.rate.add(time.Now(), p.Here)
	p.PerSecond, p.Left = s.rate.perSecond(), s.rate.left(p.Bytes-p.Here)
	return p
}

// every calls f at regular intervals, from a goroutine of its own, until the
// context is cancelled. The returned function waits for the goroutine to end.
func every(ctx context.Context, interval time.Duration, f func()) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() {
		for tick := time.Tick(interval); ; {
			select {
			case <-tick:
				f()
			case <-ctx.Done():
				return
			}
		}
	})
	return running.Wait
}

// fetchAll downloads the missing files of a plan, several at a time. The first
// error cancels the others.
func (c *Client) fetchAll(ctx context.Context, p *Plan, state *pullState) error {
	slots := semaphore.NewWeighted(connections)
	files, ctx := errgroup.WithContext(ctx)
	files.SetLimit(connections / 2)
	seen := map[string]bool{}
	for _, f := range p.Files {
		if seen[f.Hash] {
			continue
		}
		seen[f.Hash] = true
		if p.has(f) {
			state.here.Add(f.Size)
			continue
		}
		files.Go(func() error {
			progress := func(n int64) { state.here.Add(n) }
			d := &download{client: c, info: p.Info, file: f, blob: p.blob(f), slots: slots, progress: progress}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fileError(ctx, p.Info.Repo, f, p.fetch(ctx, d, func(path string) { state.waiting.Store(path) }))
		})
	}
	return files.Wait()
}

// fileError adds the file's name to err, unless that is nil or the context's.
func fileError(ctx context.Context, repo string, f File, err error) error {
	switch {
	case err == nil || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return err
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: %s: %w", repo, f.Path, ErrSpace)
	}
	return fmt.Errorf("%s: %s: %w", repo, f.Path, err)
}

// fetch downloads a file under its lock, unless another process did so while
// fetch waited for the lock.
func (p *Plan) fetch(ctx context.Context, d *download, waiting func(string)) error {
	release, err := lock(ctx, filepath.Join(locksFolder(p.cache, p.Info.Repo), d.file.Hash+".lock"), func() { waiting(d.file.Path) })
	if err != nil {
		return err
	}
	defer release()
	waiting("")
	if p.has(d.file) {
		d.progress(d.file.Size)
		return nil
	}
	return d.run(ctx)
}

// link creates the snapshot, with the index last, and then the file of
// refs/. An interruption leaves nothing that looks like a complete model. fresh
// are the hashes of blobs that may be moved.
func (p *Plan) link(fresh map[string]bool) error {
	files := slices.Clone(p.Files)
	slices.SortStableFunc(files, func(a, b File) int {
		return strings.Compare(fmt.Sprint(isIndex(a.Path)), fmt.Sprint(isIndex(b.Path)))
	})
	for _, f := range files {
		if p.linked(f) {
			continue
		}
		entry := p.entry(f)
		if err := os.MkdirAll(filepath.Dir(entry), 0o777); err != nil {
			return err
		}
		target, err := filepath.Rel(filepath.Dir(entry), p.blob(f))
		if err != nil {
			return err
		}
		from, move := p.blob(f), fresh[f.Hash]
		for _, other := range files {
			if !sizeIs(from, f.Size) && other.Hash == f.Hash && p.linked(other) {
				from, move = p.entry(other), false // where the blob was moved
			}
		}
		if err := makeEntry(entry, target, from, move); err != nil {
			return err
		}
	}
	if p.Info.Revision == p.Info.Commit {
		return nil
	}
	ref := filepath.Join(p.dir, "refs", filepath.FromSlash(p.Info.Revision))
	if old, err := os.ReadFile(ref); err == nil && string(old) == p.Info.Commit {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(ref), 0o777); err != nil {
		return err
	}
	return replaceFile(ref, []byte(p.Info.Commit))
}

// symlink is os.Symlink, except in tests.
var symlink = os.Symlink

// makeEntry creates an entry as a symlink to the target, the blob. On file systems
// without symlinks, or without the user's permission, it moves the blob there or
// copies it, as huggingface_hub does.
func makeEntry(entry, target, blob string, move bool) error {
	temporary := entry + ".gomflux.tmp"
	os.Remove(temporary) // left by a process that was killed
	if isTrue(os.Getenv("HF_HUB_DISABLE_SYMLINKS")) || symlink(target, temporary) != nil {
		if move {
			return os.Rename(blob, entry)
		}
		in, err := os.Open(blob)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		if err = cmp.Or(err, out.Close()); err != nil {
			return err
		}
	}
	return os.Rename(temporary, entry)
}

// CheckSpace compares the missing bytes with the free space of the disk. Its error wraps
// [ErrSpace].
func (p *Plan) CheckSpace() error {
	dir := disk.Existing(p.dir)
	free, err := freeSpace(dir)
	if err != nil {
		return nil // some file systems do not report it
	}
	if missing := p.Missing(); missing > free {
		return fmt.Errorf("%s: %w: %s left to download, %s has %s free (set HF_HUB_CACHE to put the cache elsewhere)",
			p.Info.Repo, ErrSpace, units.Megabytes(missing), dir, units.Megabytes(free))
	}
	return nil
}

// freeSpace is disk.Free, except in tests.
var freeSpace = disk.Free
