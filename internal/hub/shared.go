package hub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// Newer versions of huggingface_hub keep the contents of files in Xet storage once
// for all repositories, as blobs/xx/HASH in the cache. The blob of a repository is
// then a link to it. Beside it, HASH.refs lists these links, perhaps with some
// that are gone, and HASH.lock is locked by who changes them.
var (
	sharedMarker = filepath.Join("blobs", ".huggingface-shared-blobs") // without it the folder is somebody else's
	sharedBlob   = regexp.MustCompile(`^blobs/[0-9a-f]{2}/[0-9a-f]{64}$`)
)

// sharedBy returns the shared file that a repository's blob links to, or "".
func sharedBy(cache, blob string) string {
	target, err := os.Readlink(blob)
	if err != nil {
		return ""
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(blob), target)
	}
	name, err := filepath.Rel(cache, target)
	if err != nil || !sharedBlob.MatchString(filepath.ToSlash(name)) {
		return ""
	}
	if info, err := os.Lstat(target); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return target
}

// links returns the blobs that link to a shared file, if that is known.
func links(cache, shared string) (blobs []string, ok bool) {
	list, err := os.ReadFile(shared + ".refs")
	if err != nil {
		return nil, false
	}
	for line := range strings.Lines(string(list)) {
		name := filepath.FromSlash(strings.TrimRight(line, "\r\n"))
		blob := filepath.Join(cache, name)
		if _, err := os.Lstat(blob); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return nil, false // in another user's folder
		}
		if filepath.IsLocal(name) && sharedBy(cache, blob) == shared {
			blobs = append(blobs, blob)
		}
	}
	return blobs, true
}

// addShared finds the shared files that the blobs link to, and counts those that no
// other blob does.
func (r *Removal) addShared(blobs []string) {
	cache := filepath.Dir(r.dir)
	if version, err := os.ReadFile(filepath.Join(cache, sharedMarker)); err != nil || string(version) != "1\n" {
		return
	}
	for _, blob := range blobs {
		shared := sharedBy(cache, blob)
		if shared == "" || slices.Contains(r.shared, shared) {
			continue
		}
		r.shared = append(r.shared, shared)
		others, known := links(cache, shared)
		if info, err := os.Lstat(shared); known && err == nil &&
			!slices.ContainsFunc(others, func(other string) bool { return !slices.Contains(blobs, other) }) {
			r.Bytes += info.Size()
		}
	}
}

// removeShared deletes the shared files that no blob links to any more. As in
// huggingface_hub, one of which that is not known stays.
func (r *Removal) removeShared() error {
	for _, shared := range r.shared {
		release, err := tryLock(shared + ".lock")
		if err != nil {
			continue // somebody is about to link to it
		}
		if left, known := links(filepath.Dir(r.dir), shared); known && len(left) == 0 {
			if err = os.Remove(shared); err == nil {
				err = os.Remove(shared + ".refs")
			}
		}
		release()
		if err != nil {
			return err
		}
	}
	return nil
}
