package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/oserr"
)

// Folder is a source of files that knows its own name, so that errors about a
// file in it can say where it is. The FS of a folder on disk is an os.DirFS, in
// which links are followed, as the Hugging Face cache needs; that of a built-in
// model is an embed.FS.
type Folder struct {
	fs.FS
	// Name is put before the names of files in errors.
	Name string
}

// OpenFolder returns the folder at path. It fails if nothing is there, or
// something else than a folder.
func OpenFolder(path string) (Folder, error) {
	if path == "" {
		return Folder{}, errors.New("no model folder given: its path is empty")
	}
	info, err := os.Stat(path)
	if err != nil {
		return Folder{}, fmt.Errorf("model folder %s: %w", path, oserr.Bare(err))
	}
	if !info.IsDir() {
		return Folder{}, fmt.Errorf("model folder %s: expected a folder, found %s", path, kind(info.Mode()))
	}
	return Folder{os.DirFS(path), path}, nil
}

// FullName returns the name that errors give to a file of the folder.
func (f Folder) FullName(name string) string {
	return filepath.Join(f.Name, filepath.FromSlash(name))
}

// Stat implements fs.StatFS: fs.Stat would otherwise open the file, which hangs
// on a named pipe.
func (f Folder) Stat(name string) (fs.FileInfo, error) { return fs.Stat(f.FS, name) }

// ReadDir implements fs.ReadDirFS.
func (f Folder) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(f.FS, name) }

// ReadLink implements fs.ReadLinkFS.
func (f Folder) ReadLink(name string) (string, error) { return fs.ReadLink(f.FS, name) }

// Lstat implements fs.ReadLinkFS.
func (f Folder) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(f.FS, name) }

// Sub implements fs.SubFS: a folder within the folder keeps its full name.
func (f Folder) Sub(dir string) (fs.FS, error) {
	sub, err := fs.Sub(f.FS, dir)
	if err != nil {
		return nil, err
	}
	return Folder{sub, f.FullName(dir)}, nil
}

// FullName names a file of fsys for messages: with its folder's name where fsys
// has one, as a Folder does.
func FullName(fsys fs.FS, name string) string {
	if f, ok := fsys.(interface{ FullName(string) string }); ok {
		return f.FullName(name)
	}
	return name
}

// kind names what a file is.
func kind(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "a file"
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// openRegular opens a regular file, or a link to one. Its errors do not name
// the file.
func openRegular(fsys fs.FS, name string) (fs.File, int64, error) {
	// Looked at before it is opened, because opening a named pipe waits for a
	// writer, and after, because what was looked at may be gone.
	info, err := fs.Stat(fsys, name)
	if err != nil {
		if target, linkErr := fs.ReadLink(fsys, name); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
			return nil, 0, fmt.Errorf("is a link to %s, which is not there (an unfinished download?): %w", target, oserr.Bare(err))
		}
		return nil, 0, oserr.Bare(err)
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("expected a file, found %s", kind(info.Mode()))
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, 0, oserr.Bare(err)
	}
	info, err = f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("expected a file, found %s", kind(info.Mode()))
	}
	if err != nil {
		f.Close()
		return nil, 0, oserr.Bare(err)
	}
	return f, info.Size(), nil
}

// ReadFile reads a whole regular file of at most limit bytes. Errors name the
// file in full.
func ReadFile(fsys fs.FS, name string, limit int64) ([]byte, error) {
	data, err := readSmall(fsys, name, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", FullName(fsys, name), err)
	}
	return data, nil
}

// readSmall is ReadFile without the name in its errors.
func readSmall(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, size, err := openRegular(fsys, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size <= limit {
		// The file may have grown since.
		data, err := io.ReadAll(io.LimitReader(f, limit+1))
		if err != nil {
			return nil, oserr.Bare(err)
		}
		size = int64(len(data))
		if size <= limit {
			return data, nil
		}
	}
	return nil, fmt.Errorf("is too large: %d bytes or more, at most %d", size, limit)
}
