package hub

import (
	"bytes"
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

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/units"
)

// A Plan is what of a repository is needed, and how much of that is not here.
type Plan struct {
	Info  *Info
	Files []File // by path
	// Index is model_index.json, nil in a repository without one, and where files
	// were asked for by their names.
	Index []byte
	// Adapter says that it is a LoRA, by the name of its file.
	Adapter bool
	// Bytes is the size of all files, Here what of it is in the cache already.
	Bytes, Here int64

	cache string
	dir   string // the repository's folder in it
}

// Plan chooses what a repository's model is loaded from or, if there are names of
// files, these and what belongs to them. With verify, files that are here count
// only if they have the right hash: it reads them all.
func (c *Client) Plan(ctx context.Context, info *Info, verify bool, names ...string) (*Plan, error) {
	cache, err := Cache()
	if err != nil {
		return nil, err
	}
	p := &Plan{Info: info, cache: cache, dir: filepath.Join(cache, folderName(info.Repo))}
	if i := slices.IndexFunc(info.Files, func(f File) bool { return f.Path == indexName }); i >= 0 && len(names) == 0 {
		if p.Index, err = c.index(ctx, p, info.Files[i]); err != nil {
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
			continue // the same bytes under another name
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
	return p, nil
}

// index reads model_index.json, from the cache if it is there.
func (c *Client) index(ctx context.Context, p *Plan, f File) ([]byte, error) {
	if data, err := os.ReadFile(p.blob(f)); err == nil && f.check(bytes.NewReader(data)) == nil {
		return data, nil
	}
	return c.small(ctx, p.Info, f)
}

func (p *Plan) blob(f File) string { return filepath.Join(p.dir, "blobs", f.Hash) }

func (p *Plan) entry(f File) string {
	return filepath.Join(p.dir, "snapshots", p.Info.Commit, filepath.FromSlash(f.Path))
}

// has says whether a file is in the cache: as a blob, or, where no links could
// be made, in the snapshot.
func (p *Plan) has(f File) bool { return sizeIs(p.blob(f), f.Size) || p.linked(f) }

// linked says whether a snapshot's entry is the file.
func (p *Plan) linked(f File) bool {
	target, err := os.Readlink(p.entry(f))
	return sizeIs(p.entry(f), f.Size) && (err != nil || filepath.Base(target) == f.Hash)
}

// removeDamaged takes a file that has another hash out of the cache.
func (p *Plan) removeDamaged(ctx context.Context, f File) error {
	for _, path := range []string{p.blob(f), p.entry(f)} {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		err = f.check(readerWith(ctx, file))
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

// Missing is how many bytes are still to be fetched.
func (p *Plan) Missing() int64 { return p.Bytes - p.Here }

// Complete says whether nothing is to be fetched.
func (p *Plan) Complete() bool {
	return !slices.ContainsFunc(p.Files, func(f File) bool { return !p.has(f) })
}

// A Progress tells how far a Pull is.
type Progress struct {
	Here, Bytes int64 // of the plan, the first as it is now
	// Waiting is a file that another process is fetching; "" for none.
	Waiting string
}

// ErrSpace is wrapped by the errors about disks that are too small.
var ErrSpace = errors.New("not enough space on the disk")

// Pull fetches what is missing, and returns the snapshot's folder, which is made
// when all of it is there. It calls report, if not nil, a few times a second,
// from one goroutine at a time. What it has when it fails, when the context
// ends, or when the process does, the next Pull goes on from.
func (c *Client) Pull(ctx context.Context, p *Plan, report func(Progress)) (folder string, err error) {
	if err := checkSpace(p); err != nil {
		return "", fmt.Errorf("%s: %w", p.Info.Repo, err)
	}
	for _, dir := range []string{filepath.Join(p.dir, "blobs"), filepath.Join(p.dir, "refs")} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return "", fmt.Errorf("the Hugging Face cache: %w", err)
		}
	}
	var here atomic.Int64
	var waiting atomic.Value
	waiting.Store("")
	tell := func() {
		if report != nil {
			report(Progress{Here: here.Load(), Bytes: p.Bytes, Waiting: waiting.Load().(string)})
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				tell()
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel(nil)
		<-stopped
		if err == nil {
			tell()
		}
	}()

	slots := make(chan struct{}, connections)
	files := make(chan struct{}, connections/2) // at a time
	var wait sync.WaitGroup
	seen := map[string]bool{}
	for _, f := range p.Files {
		if seen[f.Hash] {
			continue
		}
		seen[f.Hash] = true
		if p.has(f) {
			here.Add(f.Size)
			continue
		}
		select {
		case files <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wait.Go(func() {
			d := &download{client: c, info: p.Info, file: f, blob: p.blob(f), slots: slots, progress: func(n int64) { here.Add(n) }}
			err := p.fetch(ctx, d, func(path string) { waiting.Store(path) })
			<-files
			if err != nil {
				cancel(fileError(ctx, p.Info.Repo, f, err))
			}
		})
	}
	wait.Wait()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	release, err := lock(ctx, filepath.Join(locksFolder(p.cache, p.Info.Repo), p.Info.Commit+".snapshot.lock"), func() {})
	if err == nil {
		err = p.link()
		release()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.Info.Repo, err)
	}
	return filepath.Join(p.dir, "snapshots", p.Info.Commit), nil
}

// fileError names the file, unless the error is that all of it has been ended.
func fileError(ctx context.Context, repo string, f File, err error) error {
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return err
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: %s: %w", repo, f.Path, ErrSpace)
	}
	return fmt.Errorf("%s: %s: %w", repo, f.Path, err)
}

// fetch fetches a file under its lock, unless another process has just done so.
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

// link makes the snapshot, model_index.json last, and then the reference: an
// interruption leaves nothing that looks like a whole model.
func (p *Plan) link() error {
	files := slices.Clone(p.Files)
	slices.SortStableFunc(files, func(a, b File) int {
		return strings.Compare(fmt.Sprint(a.Path == indexName), fmt.Sprint(b.Path == indexName))
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
		temporary := entry + ".gomflux.tmp"
		os.Remove(temporary) // of a process that was killed
		if err := makeLink(target, p.blob(f), temporary); err != nil {
			return err
		}
		if err := os.Rename(temporary, entry); err != nil {
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

// symlink is os.Symlink, but in tests.
var symlink = os.Symlink

// makeLink makes path a link to the blob or, on file systems without links, a
// copy.
func makeLink(target, blob, path string) error {
	if symlink(target, path) == nil {
		return nil
	}
	in, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

// checkSpace compares what is to be fetched with what the disk has room for.
func checkSpace(p *Plan) error {
	dir := disk.Existing(p.dir)
	free, err := freeSpace(dir)
	if err != nil {
		return nil // not all file systems tell
	}
	if missing := p.Missing(); missing > free {
		return fmt.Errorf("%w: %s still to be fetched, and %s has %s free (HF_HUB_CACHE puts the cache elsewhere)", ErrSpace, units.Megabytes(missing), dir, units.Megabytes(free))
	}
	return nil
}

// freeSpace is disk.Free, but in tests.
var freeSpace = disk.Free
