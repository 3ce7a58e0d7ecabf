package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/textfile"
)

// Folder is a file system that knows its name, so that errors can give the full
// path of a file. The FS of a folder on disk is an os.DirFS, which follows links,
// as the Hugging Face cache requires. That of a built-in model is an embed.FS.
type Folder struct {
	fs.FS
	// Name is the prefix of file names in errors.
	Name string
}

// OpenFolder returns the folder at path. It fails if path is not a folder.
func OpenFolder(path string) (Folder, error) {
	if path == "" {
		return Folder{}, errors.New("the path of the model folder is empty")
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

// FullName returns the name of a file of the folder for errors.
func (f Folder) FullName(name string) string {
	return filepath.Join(f.Name, filepath.FromSlash(name))
}

// Stat implements fs.StatFS. Without it fs.Stat would open the file, which hangs
// if that is a named pipe.
func (f Folder) Stat(name string) (fs.FileInfo, error) { return fs.Stat(f.FS, name) }

// ReadDir implements fs.ReadDirFS.
func (f Folder) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(f.FS, name) }

// ReadLink implements fs.ReadLinkFS.
func (f Folder) ReadLink(name string) (string, error) { return fs.ReadLink(f.FS, name) }

// Lstat implements fs.ReadLinkFS.
func (f Folder) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(f.FS, name) }

// Sub implements fs.SubFS. The result is a Folder with a full name.
func (f Folder) Sub(dir string) (fs.FS, error) {
	sub, err := fs.Sub(f.FS, dir)
	if err != nil {
		return nil, err
	}
	return Folder{sub, f.FullName(dir)}, nil
}

// FullName returns the name of a file of fsys for messages. It includes the
// folder if fsys has a FullName method, as a Folder does.
func FullName(fsys fs.FS, name string) string {
	if f, ok := fsys.(interface{ FullName(string) string }); ok {
		return f.FullName(name)
	}
	return name
}

// kind describes the type of a file.
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
	// Check before opening, because opening a named pipe waits for a writer, and
	// again afterwards, because the file may have been replaced in between.
	info, err := fs.Stat(fsys, name)
	if err != nil {
		if target, linkErr := fs.ReadLink(fsys, name); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
			return nil, 0, fmt.Errorf("is a link to %s, which does not exist (is the download complete?): %w", target, oserr.Bare(err))
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

// ReadFile reads a regular file of at most limit bytes. Errors contain its full
// name.
func ReadFile(fsys fs.FS, name string, limit int64) ([]byte, error) {
	data, err := readSmall(fsys, name, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", FullName(fsys, name), err)
	}
	return data, nil
}

// ReadText is [ReadFile] for a text, which it decodes as [textfile.Decode] does.
func ReadText(fsys fs.FS, name string, limit int64) ([]byte, error) {
	data, err := ReadFile(fsys, name, limit)
	if err != nil {
		return nil, err
	}
	if data, err = textfile.Decode(data); err != nil {
		return nil, fmt.Errorf("%s: %w", FullName(fsys, name), err)
	}
	return data, nil
}

// readSmall is ReadFile without the name in errors.
func readSmall(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, size, err := openRegular(fsys, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size <= limit {
		// the file may have grown in the meantime
		data := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
		if size, err = data.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
			return nil, oserr.Bare(err)
		}
		if size <= limit {
			return data.Bytes(), nil
		}
	}
	return nil, fmt.Errorf("file is too large: %d bytes or more, expected at most %d", size, limit)
}
