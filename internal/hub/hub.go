// Package hub finds models in the cache that Hugging Face's tools keep, and
// fetches models into it.
package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// repoName is what a repository's name looks like: an owner and a name.
var repoName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$`)

// IsRepo says whether a name has the form owner/name of a repository.
func IsRepo(name string) bool { return repoName.MatchString(name) }

// ErrNotCached is wrapped by the errors about repositories that are not in the
// cache.
var ErrNotCached = errors.New("not in the Hugging Face cache")

// Cache is the cache's folder, by the environment variables that Hugging Face's
// tools heed: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME. As to them ~ and $NAME mean
// something in these, for there may have been no shell to replace them.
func Cache() (string, error) {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return filepath.Clean(expand(dir)), nil
	}
	home, err := hfHome()
	if err != nil {
		return "", fmt.Errorf("cannot find the Hugging Face cache (set HF_HUB_CACHE): %w", err)
	}
	return filepath.Join(home, "hub"), nil
}

// hfHome is the folder of Hugging Face's tools, with the cache and the token.
func hfHome() (string, error) {
	for _, v := range []struct{ name, below string }{{"HF_HOME", ""}, {"XDG_CACHE_HOME", "huggingface"}} {
		if dir := os.Getenv(v.name); dir != "" {
			return filepath.Join(expand(dir), v.below), nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".cache", "huggingface"), nil
}

var variable = regexp.MustCompile(`\$(\w+|\{[^}]*\})`)

// expand is Python's os.path.expandvars(os.path.expanduser(path)), but for other
// users' homes: a variable that is not set stays as it is written.
func expand(path string) string {
	if rest, ok := strings.CutPrefix(path+"/", "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			path = filepath.Join(home, rest)
		}
	}
	return variable.ReplaceAllStringFunc(path, func(s string) string {
		if value, ok := os.LookupEnv(strings.Trim(s, "${}")); ok {
			return value
		}
		return s
	})
}

// folderPrefix begins the names of the cache's folders of models, which go on
// with owner--name.
const folderPrefix = "models--"

func folderName(repo string) string {
	return folderPrefix + strings.ReplaceAll(repo, "/", "--")
}

// RepoOf returns the repository, owner/name, that a folder is a snapshot of, by
// where it lies in a cache: models--owner--name/snapshots/COMMIT.
func RepoOf(folder string) (repo string, ok bool) {
	snapshots := filepath.Dir(filepath.Clean(folder))
	name, ok := strings.CutPrefix(filepath.Base(filepath.Dir(snapshots)), folderPrefix)
	repo = strings.Replace(name, "--", "/", 1)
	if !ok || filepath.Base(snapshots) != "snapshots" || !IsRepo(repo) {
		return "", false
	}
	return repo, true
}

// A Repo is a repository of a model in the cache.
type Repo struct {
	Name     string // owner/name
	Snapshot string // the folder that Find returns; "" with Err
	Err      error  // why Find finds none
	// Unfinished are the files whose download was begun and has not ended, by
	// path. What they will be is not recorded.
	Unfinished []string
	// Blobs says whether there are files in the cache, of whatever snapshot.
	Blobs bool
}

// List returns the repositories of models in the cache, by name. A cache that
// is not there has none. What Find does not take, such as the names without an
// owner that there once were, is left out.
func List() ([]Repo, error) {
	cache, err := Cache()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the Hugging Face cache: %w", err)
	}
	var repos []Repo
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), folderPrefix)
		name = strings.Replace(name, "--", "/", 1)
		if !ok || !IsRepo(name) {
			continue
		}
		r := Repo{Name: name}
		r.Snapshot, r.Err = Find(name, "")
		blobs := filepath.Join(cache, e.Name(), "blobs")
		files, _ := os.ReadDir(blobs) // a cache without links has none
		for _, f := range files {
			if strings.HasSuffix(f.Name(), ".incomplete") {
				r.Unfinished = append(r.Unfinished, filepath.Join(blobs, f.Name()))
			}
			r.Blobs = true
		}
		repos = append(repos, r)
	}
	slices.SortFunc(repos, func(a, b Repo) int { return strings.Compare(a.Name, b.Name) })
	return repos, nil
}

// Address is how a repository, a revision of it and a file in that are named
// together: owner/name@revision:file, where the last two can be left out ("").
func Address(repo, revision, file string) string {
	if revision != "" {
		repo += "@" + revision
	}
	if file != "" {
		repo += ":" + file
	}
	return repo
}

// ParseAddress takes apart what Address has put together. ok is false for what
// is none.
func ParseAddress(address string) (repo, revision, file string, ok bool) {
	at, file, hasFile := strings.Cut(address, ":")
	repo, revision, pinned := strings.Cut(at, "@")
	ok = IsRepo(repo) && (!pinned || IsRevision(revision)) && (!hasFile || checkPath(file) == nil)
	if !ok {
		return "", "", "", false
	}
	return repo, revision, file, true
}

// FindFile returns the path of a file in the snapshot that Find returns.
func FindFile(repo, revision, file string) (string, error) {
	if err := checkPath(file); err != nil {
		return "", fmt.Errorf("%s: %q is not the name of a file in a repository", repo, file)
	}
	snapshot, err := find(repo, revision, file)
	if err != nil {
		return "", err
	}
	path := filepath.Join(snapshot, filepath.FromSlash(file))
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", fmt.Errorf("%s: %w: %s does not have %s (to get it: gomflux pull %s)", repo, ErrNotCached, snapshot, file, Address(repo, revision, file))
	case err != nil:
		return "", fmt.Errorf("%s: %w", repo, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: %s is no file", repo, path)
	}
	return path, nil
}

// readRef reads a reference, a file with the name of a commit, as far as such a
// name can go.
func readRef(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: is no file", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 4096))
}

// Find returns the folder of a repository's snapshot in the cache: that of a
// branch, a tag or a commit. With none ("") it is that of the main branch or,
// where no branch is recorded, the only one there is.
func Find(repo, revision string) (string, error) { return find(repo, revision, "") }

// find is Find for somebody who wants a file, or all ("").
func find(repo, revision, file string) (string, error) {
	if !IsRepo(repo) {
		return "", fmt.Errorf("%q is not the name of a repository (owner/name)", repo)
	}
	if revision != "" && !IsRevision(revision) {
		return "", fmt.Errorf("%s: %q is not the name of a revision", repo, revision)
	}
	get := "to get it: gomflux pull " + Address(repo, revision, file)
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, folderName(repo))
	snapshots := filepath.Join(dir, "snapshots")
	ref := filepath.Join(dir, "refs", filepath.FromSlash(cmp.Or(revision, "main")))
	commit, err := readRef(ref)
	switch {
	case err == nil:
		name := strings.TrimSpace(string(commit))
		if !filepath.IsLocal(name) || name != filepath.Base(name) || name == "." || strings.ContainsAny(name, "\\\x00") {
			return "", fmt.Errorf("%s: %.80q is not a snapshot's name", ref, name)
		}
		snapshot := filepath.Join(snapshots, name)
		if _, err := os.Stat(snapshot); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s: %w", repo, err)
		} else if err != nil {
			what := "its main branch"
			if revision != "" {
				what = revision
			}
			return "", fmt.Errorf("%s: %w: %s is at %s, and that snapshot is not there (is the download complete?)", repo, ErrNotCached, what, name)
		}
		return snapshot, nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EISDIR):
		return "", err
	}
	if revision != "" {
		// a commit's name has no slash, so that nothing but a snapshot is found
		snapshot := filepath.Join(snapshots, revision)
		if info, err := os.Stat(snapshot); err == nil && info.IsDir() && !strings.Contains(revision, "/") {
			return snapshot, nil
		}
		return "", fmt.Errorf("%s: %w %s at the revision %s (%s)", repo, ErrNotCached, cache, revision, get)
	}
	entries, err := os.ReadDir(snapshots)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return "", fmt.Errorf("%s: %w %s (%s)", repo, ErrNotCached, cache, get)
	}
	if err != nil {
		return "", err
	}
	if len(entries) > 1 {
		return "", fmt.Errorf("%s: %d snapshots in %s and no main branch: give one of them as %s@COMMIT", repo, len(entries), snapshots, repo)
	}
	return filepath.Join(snapshots, entries[0].Name()), nil
}
