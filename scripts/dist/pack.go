package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// pack writes the files below dir into a .tar.gz, under the folder name. The
// same files give the same bytes: names are in order, owners and times fixed.
func pack(archive, dir, name string, when time.Time) error {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		return packFile(t, file, path.Join(name, filepath.ToSlash(rel)), d, when)
	})
	if err = errors.Join(err, t.Close(), z.Close(), f.Close()); err != nil {
		os.Remove(archive)
		return fmt.Errorf("%s: %w", archive, err)
	}
	return nil
}

func packFile(t *tar.Writer, file, name string, d fs.DirEntry, when time.Time) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, ModTime: when, Format: tar.FormatPAX}
	switch {
	case d.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
		return t.WriteHeader(h)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", file)
	}
	h.Typeflag, h.Size, h.Mode = tar.TypeReg, info.Size(), 0o644
	if info.Mode()&0o111 != 0 {
		h.Mode = 0o755
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(t, in)
	return err
}
