package catalog

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// An overlay is a model folder in diffusers' layout that combines files from several
// places.
type overlay struct {
	name   string                 // the model's name, for messages
	lower  fs.FS                  // everything that is not in files; may be nil
	hidden map[string]bool        // top-level folders of lower that are not visible
	files  map[string]overlayFile // the overlay's own files by path
}

// An overlayFile is a file of another folder, or a text.
type overlayFile struct {
	fsys   fs.FS  // the file's folder, nil for a text
	path   string // in fsys
	text   []byte
	origin string // where the text comes from, for messages
}

// FullName returns the real name of a file; see checkpoint.FullName.
func (o *overlay) FullName(name string) string {
	if f, ok := o.files[name]; ok && f.fsys != nil {
		return checkpoint.FullName(f.fsys, f.path)
	}
	if o.fromLower(name) && name != "" && name != "." {
		if _, err := fs.Stat(o.lower, name); err == nil {
			return checkpoint.FullName(o.lower, name)
		}
	}
	switch f := o.files[name]; {
	case name == "" || name == ".":
		return o.name
	case f.origin != "":
		return fmt.Sprintf("%s (%s, %s)", o.name, name, f.origin)
	}
	return fmt.Sprintf("%s (%s)", o.name, name)
}

// Generated reports whether a file is a text, and not a file of a folder; see checkpoint.Checkpoint.
func (o *overlay) Generated(name string) bool {
	f, own := o.files[name]
	return own && f.fsys == nil
}

// fromLower reports whether a path refers to the lower file system.
func (o *overlay) fromLower(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return o.lower != nil && !o.hidden[top] && fs.ValidPath(name)
}

// isDir reports whether a path is a folder of the overlay's own files.
func (o *overlay) isDir(name string) bool {
	for file := range o.files {
		if name == "." || strings.HasPrefix(file, name+"/") {
			return true
		}
	}
	return false
}

// locate returns the file system that has a file or a folder, and its name there. A folder of the overlay's own
// files is empty there. op is for the error.
func (o *overlay) locate(op, name string) (fsys fs.FS, at string, err error) {
	f, own := o.files[name]
	switch {
	case !fs.ValidPath(name):
		return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	case own && f.fsys == nil:
		return fstest.MapFS{name: {Data: f.text, Mode: 0o444}}, name, nil
	case own:
		return f.fsys, f.path, nil
	case name == "." || o.isDir(name):
		return fstest.MapFS{name: {Mode: fs.ModeDir | 0o555}}, name, nil
	case o.fromLower(name):
		return o.lower, name, nil
	}
	return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// Open implements fs.FS. Files of other folders are returned as they are, because
// package checkpoint passes the descriptors of operating system files to MLX.
func (o *overlay) Open(name string) (fs.File, error) {
	fsys, at, err := o.locate("open", name)
	if err != nil {
		return nil, err
	}
	f, err := fsys.Open(at)
	if err == nil && (name == "." || o.isDir(name)) {
		entries, err := o.ReadDir(name)
		return &overlayDir{File: f, entries: entries}, err
	}
	return f, err
}

// Stat implements fs.StatFS.
func (o *overlay) Stat(name string) (fs.FileInfo, error) {
	fsys, at, err := o.locate("stat", name)
	if err != nil {
		return nil, err
	}
	return fs.Stat(fsys, at)
}

// Lstat implements fs.ReadLinkFS. The overlay's own files are never reported as links.
func (o *overlay) Lstat(name string) (fs.FileInfo, error) {
	if _, own := o.files[name]; !own && !o.isDir(name) && o.fromLower(name) {
		return fs.Lstat(o.lower, name)
	}
	return o.Stat(name)
}

// ReadLink implements fs.ReadLinkFS.
func (o *overlay) ReadLink(name string) (string, error) {
	fsys, at, err := o.locate("readlink", name)
	if err != nil {
		return "", err
	}
	return fs.ReadLink(fsys, at)
}

// ReadDir implements fs.ReadDirFS.
func (o *overlay) ReadDir(name string) ([]fs.DirEntry, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	entries := map[string]fs.DirEntry{}
	var err error = &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	if o.fromLower(name) {
		var list []fs.DirEntry
		list, err = fs.ReadDir(o.lower, name)
		for _, e := range list {
			if name != "." || !o.hidden[e.Name()] {
				entries[e.Name()] = e
			}
		}
	}
	for file := range o.files {
		rest := file
		if name != "." {
			var ok bool
			if rest, ok = strings.CutPrefix(file, name+"/"); !ok {
				continue
			}
		}
		child, _, _ := strings.Cut(rest, "/")
		if info, statErr := o.Stat(path.Join(name, child)); statErr == nil {
			entries[child] = namedEntry{fs.FileInfoToDirEntry(info), child}
		}
	}
	if len(entries) == 0 && name != "." {
		return nil, err
	}
	var list []fs.DirEntry
	for _, child := range slices.Sorted(maps.Keys(entries)) {
		list = append(list, entries[child])
	}
	return list, nil
}

// namedEntry is a directory entry under another name than that of its file.
type namedEntry struct {
	fs.DirEntry
	name string
}

func (e namedEntry) Name() string { return e.name }

// overlayDir is an open folder with the entries of the overlay.
type overlayDir struct {
	fs.File
	entries []fs.DirEntry
}

func (d *overlayDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(d.entries)
	} else if len(d.entries) == 0 {
		return nil, io.EOF
	}
	list := d.entries[:min(n, len(d.entries))]
	d.entries = d.entries[len(list):]
	return list, nil
}
