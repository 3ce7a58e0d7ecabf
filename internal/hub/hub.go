// Package hub finds models in the Hugging Face cache and downloads models into it.
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

	"github.com/gomflux/gomflux/internal/disk"
)

// repoName matches the name of a repository: owner/name.
var repoName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$`)

// IsRepo reports whether name has the form owner/name.
func IsRepo(name string) bool { return repoName.MatchString(name) }

// ErrNotCached is wrapped by errors about repositories, revisions and files that
// are not in the cache.
var ErrNotCached = errors.New("not in the Hugging Face cache")

// Cache returns the folder of the Hugging Face cache. It follows the environment
// variables of Hugging Face's tools: HF_HUB_CACHE, its older name
// HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME. As in those tools, ~ and $NAME in
// the values are expanded, since a shell may not have done so.
func Cache() (string, error) {
	if dir := cmp.Or(os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE")); dir != "" {
		return filepath.Clean(expand(dir)), nil
	}
	home, err := hfHome()
	if err != nil {
		return "", fmt.Errorf("cannot find the Hugging Face cache (set HF_HUB_CACHE): %w", err)
	}
	return filepath.Join(home, "hub"), nil
}

// hfHome returns the folder in which Hugging Face's tools keep cache and token.
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

// expand does what Python's os.path.expandvars(os.path.expanduser(path)) does,
// except for other users' homes. Variables that are not set stay in the path.
func expand(path string) string {
	return variable.ReplaceAllStringFunc(disk.ExpandHome(path), func(s string) string {
		if value, ok := os.LookupEnv(strings.Trim(s, "${}")); ok {
			return value
		}
		return s
	})
}

// folderPrefix begins the name of a model's folder in the cache:
// models--owner--name.
const folderPrefix = "models--"

func folderName(repo string) string {
	return folderPrefix + strings.ReplaceAll(repo, "/", "--")
}

// RepoOf returns the repository, owner/name, of a snapshot's folder, judging by
// its path: models--owner--name/snapshots/COMMIT. ok reports whether the path
// has that form.
func RepoOf(folder string) (repo string, ok bool) {
	snapshots := filepath.Dir(filepath.Clean(folder))
	name, ok := strings.CutPrefix(filepath.Base(filepath.Dir(snapshots)), folderPrefix)
	repo = strings.Replace(name, "--", "/", 1)
	if !ok || filepath.Base(snapshots) != "snapshots" || !IsRepo(repo) {
		return "", false
	}
	return repo, true
}

// A Repo is a model repository in the cache.
type Repo struct {
	Name     string // owner/name
	Snapshot string // the folder that Find returns; "" if Err is set
	Err      error  // the error of Find
	// Unfinished lists the paths of partial downloads. The cache does not record
	// which files they will become.
	Unfinished []string
	// Blobs reports whether the cache has any file of the repository, complete or
	// not.
	Blobs bool
}

// List returns the model repositories in the cache, sorted by name. If the cache
// does not exist, the list is empty. Names that Find rejects, such as old ones
// without an owner, are left out.
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
		files, _ := os.ReadDir(blobs) // does not exist in a cache without symlinks
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

// Address joins a repository, a revision and a file to
// owner/name@revision:file. An empty revision or file is left out.
func Address(repo, revision, file string) string {
	if revision != "" {
		repo += "@" + revision
	}
	if file != "" {
		repo += ":" + file
	}
	return repo
}

// ParseAddress splits an address made by Address. ok is false if address is not
// valid.
func ParseAddress(address string) (repo, revision, file string, ok bool) {
	at, file, hasFile := strings.Cut(address, ":")
	repo, revision, pinned := strings.Cut(at, "@")
	ok = IsRepo(repo) && (!pinned || IsRevision(revision)) && (!hasFile || checkPath(file) == nil)
	if !ok {
		return "", "", "", false
	}
	return repo, revision, file, true
}

// FindFile returns the path of a file in the snapshot that Find returns for repo
// and revision.
func FindFile(repo, revision, file string) (string, error) {
	if err := checkPath(file); err != nil {
		return "", fmt.Errorf("%s: %q is not a valid name of a file in a repository", repo, file)
	}
	snapshot, err := find(repo, revision, file)
	if err != nil {
		return "", err
	}
	path := filepath.Join(snapshot, filepath.FromSlash(file))
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", fmt.Errorf("%s: %w: no %s in %s (to get it: gomflux pull %s)",
			repo, ErrNotCached, file, snapshot, Address(repo, revision, file))
	case err != nil:
		return "", fmt.Errorf("%s: %w", repo, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: %s is not a regular file", repo, path)
	}
	return path, nil
}

// readRef reads a file of refs/, which contains the name of a commit. It reads at
// most 4096 bytes.
func readRef(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
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

// Find returns the folder of a repository's snapshot in the cache. revision is a
// branch, a tag or a commit. If it is "", Find returns the snapshot of the main
// branch or, if the cache records no main branch, the only snapshot.
func Find(repo, revision string) (string, error) { return find(repo, revision, "") }

// find is Find with the name of the wanted file for the hint in the error; "" for
// the whole model.
func find(repo, revision, file string) (string, error) {
	if !IsRepo(repo) {
		return "", fmt.Errorf("%q is not the name of a repository (owner/name)", repo)
	}
	if revision != "" && !IsRevision(revision) {
		return "", fmt.Errorf("%s: %q is not a valid name of a revision", repo, revision)
	}
	hint := "to get it: gomflux pull " + Address(repo, revision, file)
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
			return "", fmt.Errorf("%s: contains %.80q, expected the name of a snapshot", ref, name)
		}
		snapshot := filepath.Join(snapshots, name)
		if _, err := os.Stat(snapshot); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s: %w", repo, err)
		} else if err != nil {
			what := "its main branch"
			if revision != "" {
				what = revision
			}
			return "", fmt.Errorf("%s: %w: %s is at %s, but this snapshot does not exist (is the download complete?)",
				repo, ErrNotCached, what, name)
		}
		return snapshot, nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EISDIR):
		return "", err
	}
	if revision != "" {
		// without a slash the path can only be that of a snapshot
		snapshot := filepath.Join(snapshots, revision)
		if info, err := os.Stat(snapshot); err == nil && info.IsDir() && !strings.Contains(revision, "/") {
			return snapshot, nil
		}
		return "", fmt.Errorf("%s: %w %s at revision %s (%s)", repo, ErrNotCached, cache, revision, hint)
	}
	entries, err := os.ReadDir(snapshots)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return "", fmt.Errorf("%s: %w %s (%s)", repo, ErrNotCached, cache, hint)
	}
	if err != nil {
		return "", err
	}
	if len(entries) > 1 {
		return "", fmt.Errorf("%s: %d snapshots in %s and no main branch (choose one with %s@COMMIT)",
			repo, len(entries), snapshots, repo)
	}
	return filepath.Join(snapshots, entries[0].Name()), nil
}
