package checkpoint

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

// The files in testdata are what the field's own libraries write. With torch
// 2.15, safetensors 0.8.0, huggingface_hub and mlx 0.32.2, in this folder:
//
//	import os, torch
//	import mlx.core as mx
//	from safetensors.torch import save_file
//	from huggingface_hub import save_torch_state_dict
//	g = torch.Generator().manual_seed(1)
//	t = lambda *s: torch.randn(*s, generator=g)
//	save_file({
//	    "bf16": t(3, 5).bfloat16(), "f16": t(7).half(), "f32": t(2, 3, 4), "f64": t(3).double(),
//	    "i64": torch.arange(4), "u8": torch.arange(5).byte(), "bool": torch.ones(3, dtype=torch.bool),
//	    "fp8": t(9).to(torch.float8_e4m3fn), "c64": torch.ones(2, dtype=torch.complex64),
//	    "scalar": torch.tensor(0.5), "empty": torch.zeros(0, 4), "näme \"q\"\t.weight": t(2),
//	}, "testdata/torch.safetensors", metadata={"format": "pt", "note": "a \"quoted\" é \n line"})
//	save_file({}, "testdata/none.safetensors")
//	save_file({"f4": torch.zeros(3, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, "testdata/f4.safetensors")
//	os.makedirs("testdata/sharded")
//	save_torch_state_dict({f"layers.{i}.weight": t(4, 8) for i in range(5)}, "testdata/sharded",
//	    filename_pattern="diffusion_pytorch_model{suffix}.safetensors", max_shard_size=300)
//	mx.save_safetensors("testdata/mlx.safetensors",
//	    {"z": mx.ones((2, 3)), "a": mx.arange(4), "m.weight": mx.zeros((3,), mx.bfloat16)})
//
//go:embed testdata/*.safetensors testdata/sharded
var embedded embed.FS

// sources gives the same files from a folder on disk and from the program.
func sources(t *testing.T) map[string]fs.FS {
	t.Helper()
	folder, err := OpenFolder("testdata")
	if err != nil {
		t.Fatal(err)
	}
	sub, err := fs.Sub(embedded, "testdata")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]fs.FS{"folder": folder, "embedded": sub, "named": Folder{sub, "built-in"}}
}

func TestOpenRealFiles(t *testing.T) {
	want := map[string]string{
		"torch.safetensors": "i64 I64[4] f64 F64[3] c64 C64[2] empty F32[0 4] f32 F32[2 3 4] näme \"q\"\t.weight F32[2] " +
			"scalar F32[] bf16 BF16[3 5] f16 F16[7] fp8 F8_E4M3[9] u8 U8[5] bool BOOL[3]",
		"none.safetensors": "",
		"f4.safetensors":   "f4 F4[3 4]",
		"mlx.safetensors":  "m.weight BF16[3] a I32[4] z F32[2 3]",
	}
	for source, fsys := range sources(t) {
		for name, want := range want {
			t.Run(source+"/"+name, func(t *testing.T) {
				f, err := Open(fsys, name)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				var got []string
				for _, name := range f.Header.Names {
					tensor := f.Header.Tensors[name]
					got = append(got, fmt.Sprint(name, " ", tensor.Dtype, tensor.Shape))
					if tensor.File != f.Name {
						t.Errorf("tensor %q: File %q, want %q", name, tensor.File, f.Name)
					}
				}
				if got := strings.Join(got, " "); got != want {
					t.Errorf("tensors %q\nwant    %q", got, want)
				}
				if name == "torch.safetensors" && f.Header.Metadata["note"] != "a \"quoted\" é \n line" {
					t.Errorf("metadata %q", f.Header.Metadata)
				}
			})
		}
	}
}

// What Path names is the file that was validated, each time from its start,
// whatever happens to the name it was opened under.
func TestFilePath(t *testing.T) {
	want, err := os.ReadFile("testdata/torch.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "100% sure %s.safetensors", want)
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	read := func(t *testing.T, f *File) {
		t.Helper()
		for range 2 {
			path, err := f.Path()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(path, "%") || !strings.HasPrefix(path, "/dev/fd/") {
				t.Errorf("path %s", path)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s holds other bytes than %s", path, f.Name)
			}
			// Leave the offset somewhere else.
			if _, err := io.ReadFull(f.f, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("folder", func(t *testing.T) {
		f, err := Open(folder, "100% sure %s.safetensors")
		if err != nil {
			t.Fatal(err)
		}
		read(t, f)
		if err := os.Remove(f.Name); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "100% sure %s.safetensors", []byte("another file"))
		read(t, f)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if _, err := f.Path(); !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), f.Name) {
			t.Errorf("path of a closed file: error %v", err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	})
	t.Run("embedded", func(t *testing.T) {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		f, err := Open(sources(t)["embedded"], "torch.safetensors")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		left, err := os.ReadDir(tmp)
		if err != nil || len(left) > 0 {
			t.Errorf("temporary files %v, error %v", left, err)
		}
		read(t, f)
	})
}

// Neither a refused nor a closed file keeps its descriptor.
func TestNoDescriptorLeft(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("counts /proc/self/fd")
	}
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	fsys := fstest.MapFS{"bad.safetensors": {Data: blob(`{}`, 1)}}
	dir := t.TempDir()
	write(t, dir, "bad.safetensors", blob(`{}`, 1))
	before := count()
	for range 20 {
		for _, fsys := range []fs.FS{fsys, os.DirFS(dir)} {
			if _, err := Open(fsys, "bad.safetensors"); err == nil {
				t.Fatal("accepted")
			}
		}
		c, err := OpenCheckpoint(embedded, "testdata/sharded")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestTemporaryFileFails(t *testing.T) {
	fsys := Folder{fstest.MapFS{"m.safetensors": {Data: blob(`{}`, 0)}}, "built-in"}
	gone := filepath.Join(t.TempDir(), "gone")
	t.Setenv("TMPDIR", gone)
	_, err := Open(fsys, "m.safetensors")
	wantError(t, err, filepath.Join("built-in", "m.safetensors"), "temporary file", "set TMPDIR", gone)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v does not wrap the cause", err)
	}

	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	_, err = Open(brokenFS{fsys, errors.New("no space left")}, "m.safetensors")
	wantError(t, err, "temporary file in "+tmp, "no space left")
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("temporary files %v, error %v", left, err)
	}
}

// brokenFS has files whose reads fail.
type brokenFS struct {
	fs.FS
	err error
}

type brokenFile struct {
	fs.File
	err error
}

func (b brokenFS) Open(name string) (fs.File, error) {
	f, err := b.FS.Open(name)
	return brokenFile{f, b.err}, err
}

func (b brokenFile) Read([]byte) (int, error) { return 0, b.err }

func TestOpenFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "file", nil)
	for _, test := range []struct{ path, want string }{
		{"", "is empty"},
		{filepath.Join(dir, "none"), filepath.Join(dir, "none") + ": no such file or directory"},
		{filepath.Join(dir, "file"), filepath.Join(dir, "file") + ": expected a folder, found a file"},
		{filepath.Join(dir, "file", "in"), "not a directory"},
	} {
		_, err := OpenFolder(test.path)
		wantError(t, err, test.want)
	}
	if _, err := OpenFolder(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v does not wrap the cause", err)
	}
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(folder, "file"); err != nil {
		t.Error(err)
	}
}

// Errors name the whole path, also in a folder within a folder.
func TestErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "sub/bad.safetensors", blob(entry("F32", "[2]", "[0,4]"), 4))
	write(t, dir, "sub/bad.json", []byte("{\n\n\"a\" 1}"))
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := fs.Sub(folder, "sub")
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, "sub", name) + ": " }
	_, err = Open(folder, "sub/bad.safetensors")
	wantError(t, err, at("bad.safetensors"), `tensor "a"`, "expected 8 bytes", "(4 bytes)")
	_, err = Open(sub, "bad.safetensors")
	wantError(t, err, at("bad.safetensors"))
	_, err = Open(sub, "none.safetensors")
	wantError(t, err, at("none.safetensors")+"no such file or directory")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v does not wrap the cause", err)
	}
	wantError(t, ReadJSON(sub, "bad.json", new(any)), at("bad.json")+"line 3: invalid character '1' after object key")
	wantError(t, ReadJSON(sub, "none.json", new(any)), at("none.json")+"no such file or directory")
	_, err = ReadFile(sub, "none.json", 10)
	wantError(t, err, at("none.json")+"no such file or directory")
	_, err = ReadFile(sub, "bad.json", 4)
	wantError(t, err, at("bad.json")+"file is too large: 9 bytes or more, expected at most 4")
	if data, err := ReadFile(sub, "bad.json", 9); err != nil || string(data) != "{\n\n\"a\" 1}" {
		t.Errorf("read %q, error %v", data, err)
	}
	_, err = OpenCheckpoint(folder, "none")
	wantError(t, err, filepath.Join(dir, "none")+": no such file or directory")
	_, err = Open(folder, "../x.safetensors")
	wantError(t, err, "invalid argument")
}

// What is not a regular file is refused, and a named pipe is not waited for.
func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Skip(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	link(t, "pipe", filepath.Join(dir, "link to pipe"))
	link(t, "folder", filepath.Join(dir, "link to folder"))
	link(t, "/dev/zero", filepath.Join(dir, "zero"))
	link(t, "blobs/gone", filepath.Join(dir, "dangling"))
	link(t, "loop", filepath.Join(dir, "loop"))
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"pipe":           "expected a file, found a named pipe",
		"link to pipe":   "expected a file, found a named pipe",
		"folder":         "expected a file, found a folder",
		"link to folder": "expected a file, found a folder",
		"zero":           "expected a file, found a device",
		"dangling":       "is a link to blobs/gone, which does not exist",
		"loop":           "too many levels of symbolic links",
	} {
		for _, fsys := range []fs.FS{folder, folder.FS} {
			done := make(chan [2]error, 1)
			go func() {
				_, err := Open(fsys, name)
				done <- [2]error{err, ReadJSON(fsys, name, new(any))}
			}()
			select {
			case errs := <-done:
				wantError(t, errs[0], name, want)
				wantError(t, errs[1], name, want)
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: still waiting", name)
			}
		}
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	if missing := slices.DeleteFunc(slices.Clone(parts),
		func(p string) bool { return strings.Contains(err.Error(), p) }); len(missing) > 0 {
		t.Errorf("error %q lacks %q", err, missing)
	}
}

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}
