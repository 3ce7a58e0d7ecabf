package promptcache

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// warnings collects what a cache complains about.
type warnings struct {
	sync.Mutex
	list []string
}

func (w *warnings) add(message string) {
	w.Lock()
	defer w.Unlock()
	w.list = append(w.list, message)
}

// open returns a cache that warns to a list.
func open(dir string, size int64) (*Cache, *warnings) {
	w := &warnings{}
	return New(dir, size, w.add), w
}

// embeds returns embeddings of n numbers that depend on a seed.
func embeds(seed, n int) *checkpoint.Array {
	a := &checkpoint.Array{Dtype: checkpoint.BF16, Shape: []int{n / 8, 8}, Data: make([]byte, 2*n)}
	for i := range a.Data {
		a.Data[i] = byte(seed + i*i)
	}
	return a
}

func same(a, b *checkpoint.Array) bool {
	return a != nil && a.String() == b.String() && bytes.Equal(a.Data, b.Data)
}

// file returns the only file of embeddings in a folder.
func file(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil || len(names) != 1 {
		t.Fatalf("files %q, %v, expected one", names, err)
	}
	return names[0]
}

func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "prompts")
	c, warned := open(dir, DefaultSize)
	a, b := []byte("a red circle"), []byte("two blue squares")
	if c.Has(a) || c.Get(a) != nil {
		t.Error("an empty cache has a prompt")
	}
	if u, err := c.Usage(); u != (Usage{}) || err != nil {
		t.Errorf("an empty cache uses %v, %v", u, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("reading has created the folder")
	}
	c.Put(a, embeds(1, 64), "")
	c.Put(b, embeds(2, 128), "")
	other, _ := open(dir, DefaultSize) // of another process
	for _, c := range []*Cache{c, other} {
		if !c.Has(a) || !same(c.Get(a), embeds(1, 64)) || !same(c.Get(b), embeds(2, 128)) {
			t.Error("the cache has not what was stored")
		}
		if c.Has([]byte("a red circl")) || c.Get([]byte("a red circl")) != nil {
			t.Error("the cache has what was not stored")
		}
	}
	c.Put(a, embeds(3, 64), "")
	if !same(c.Get(a), embeds(3, 64)) {
		t.Error("the second value for a key does not replace the first")
	}
	if u, err := c.Usage(); u.Files != 2 || u.Bytes < 2*192 || u.Bytes > 2*192+2*headerSize || err != nil {
		t.Errorf("the cache uses %v, %v", u, err)
	}
	checkPrivate(t, dir, a)
	if u, err := c.Clear(); u.Files != 2 || err != nil {
		t.Errorf("Clear removed %v, %v", u, err)
	}
	if _, err := os.Stat(dir); err == nil || c.Has(a) {
		t.Error("Clear has left the folder")
	}
	if len(warned.list) > 0 {
		t.Errorf("warnings %q", warned.list)
	}
}

// checkPrivate checks modes, and that neither names nor contents have the key.
func checkPrivate(t *testing.T, dir string, key []byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, expected %v", name, info.Mode(), want)
		}
		if d.IsDir() {
			return nil
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, key) || strings.Contains(name, string(key)) {
			t.Errorf("%s contains the key", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSecrets checks that the same key has other names in another cache.
func TestSecrets(t *testing.T) {
	key := []byte("a red circle")
	var names []string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "prompts")
		c, _ := open(dir, DefaultSize)
		c.Put(key, embeds(1, 64), "")
		names = append(names, filepath.Base(file(t, dir)))
	}
	if names[0] == names[1] {
		t.Errorf("both caches have the name %s", names[0])
	}
}

// TestDamaged damages files in many ways. Each is ignored with one warning, and replaced.
func TestDamaged(t *testing.T) {
	key, value := []byte("a red circle"), embeds(1, 64)
	elsewhere := filepath.Join(t.TempDir(), "prompts")
	foreign, _ := open(elsewhere, DefaultSize)
	foreign.Put(key, value, "")
	ofAnother, err := os.ReadFile(file(t, elsewhere))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(data []byte) []byte{
		"empty":         func([]byte) []byte { return nil },
		"text":          func([]byte) []byte { return []byte("this is no safetensors file, but a text of some length") },
		"header only":   func(data []byte) []byte { return data[:len(data)-128] },
		"one byte less": func(data []byte) []byte { return data[:len(data)-1] },
		"one byte more": func(data []byte) []byte { return append(data, 0) },
		"first number":  func(data []byte) []byte { data[len(data)-128] ^= 1; return data },
		"last number":   func(data []byte) []byte { data[len(data)-1] ^= 128; return data },
		"shape":         func(data []byte) []byte { return bytes.Replace(data, []byte("[8,8]"), []byte("[4,16]"), 1) },
		"dtype":         func(data []byte) []byte { return bytes.Replace(data, []byte("BF16"), []byte("F16 "), 1) },
		"name":          func(data []byte) []byte { return bytes.Replace(data, []byte("embeds\":{"), []byte("embedz\":{"), 1) },
		"note":          func(data []byte) []byte { return bytes.Replace(data, []byte("1 2 0"), []byte("1 3 0"), 1) },
		"version": func(data []byte) []byte {
			return bytes.Replace(data, []byte("embeddings 2"), []byte("embeddings 9"), 1)
		},
		"other dtype":    func(data []byte) []byte { return bytes.Replace(data, []byte(`"BF16"`), []byte(`"I16" `), 1) },
		"other cache's":  func([]byte) []byte { return ofAnother },
		"hash":           func(data []byte) []byte { return bytes.Replace(data, []byte(`"mac":"`), []byte(`"mac":"0`), 1) },
		"without a hash": func(data []byte) []byte { return bytes.Replace(data, []byte(`"mac"`), []byte(`"cam"`), 1) },
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "prompts")
			writer, _ := open(dir, DefaultSize)
			writer.Put(key, value, "1 2 0")
			path := file(t, dir)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := damage(bytes.Clone(data))
			if bytes.Equal(damaged, data) {
				t.Fatal("the test has not damaged the file")
			}
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			c, warned := open(dir, DefaultSize)
			for range 2 { // the second one without another warning
				if c.Get(key) != nil {
					t.Error("a damaged file is used")
				}
			}
			if len(warned.list) != 1 || !strings.Contains(warned.list[0], path) || strings.Contains(warned.list[0], "\n") {
				t.Errorf("warnings %q, expected one line about %s", warned.list, path)
			}
			c.Put(key, value, "")
			if !same(c.Get(key), value) {
				t.Error("the damaged file is not replaced")
			}
		})
	}
}

// TestRenamed checks that a file under the name of another prompt is not used.
func TestRenamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	c, warned := open(dir, DefaultSize)
	c.Put([]byte("a"), embeds(1, 64), "")
	a := file(t, dir)
	c.Put([]byte("b"), embeds(2, 64), "")
	secret, err := c.secret()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a, c.path(secret, []byte("b"))); err != nil {
		t.Fatal(err)
	}
	if c.Get([]byte("b")) != nil || len(warned.list) != 1 {
		t.Errorf("the file of another prompt is used; warnings %q", warned.list)
	}
}

// TestSecretDamaged checks that a cache without its secret starts anew.
func TestSecretDamaged(t *testing.T) {
	for _, secret := range []string{"", "short", strings.Repeat("x", secretSize+1)} {
		dir := filepath.Join(t.TempDir(), "prompts")
		c, warned := open(dir, DefaultSize)
		c.Put([]byte("a"), embeds(1, 64), "")
		if err := os.WriteFile(filepath.Join(dir, secretName), []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		if c.Has([]byte("a")) || c.Get([]byte("a")) != nil || len(warned.list) != 1 {
			t.Errorf("secret %q: warnings %q, expected one", secret, warned.list)
		}
		c.Put([]byte("a"), embeds(2, 64), "")
		if !same(c.Get([]byte("a")), embeds(2, 64)) || len(warned.list) != 1 {
			t.Errorf("secret %q: the cache does not start anew; warnings %q", secret, warned.list)
		}
	}
}

// TestUnusable checks folders that cannot be used: one warning, no panic, and nothing is written.
func TestUnusable(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, dir string) string // returns the cache's folder
		want string
	}{
		{"a file", func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "x"))
			return filepath.Join(dir, "x")
		}, "x: not a directory"},
		{"in a file", func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "x"))
			return filepath.Join(dir, "x", "prompts")
		}, "not a directory"},
		{"where no folder can be", func(t *testing.T, dir string) string {
			if _, err := os.Stat("/proc/self"); err != nil {
				t.Skip("only Linux has such a folder")
			}
			return "/proc/self/prompts"
		}, "no such file or directory"},
		{"readable by others", func(t *testing.T, dir string) string {
			chmod(t, dir, 0o755)
			return dir
		}, "must be private, found mode 0755 (chmod 700 makes it so, or choose another folder)"},
		{"writable by others", func(t *testing.T, dir string) string {
			chmod(t, dir, 0o722)
			return dir
		}, "must be private, found mode 0722"},
		{"a folder in place of the secret", func(t *testing.T, dir string) string {
			chmod(t, dir, 0o700)
			if err := os.Mkdir(filepath.Join(dir, secretName), 0o700); err != nil {
				t.Fatal(err)
			}
			return dir
		}, "is a directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := test.make(t, t.TempDir())
			c, warned := open(dir, DefaultSize)
			c.Put([]byte("a"), embeds(1, 64), "")
			c.Put([]byte("b"), embeds(1, 64), "")
			if c.Has([]byte("a")) || c.Get([]byte("a")) != nil {
				t.Error("the folder was used")
			}
			if len(warned.list) != 1 || !strings.Contains(warned.list[0], test.want) {
				t.Errorf("warnings %q, expected one with %q", warned.list, test.want)
			}
			if names, _ := filepath.Glob(filepath.Join(dir, "*"+suffix)); len(names) > 0 {
				t.Errorf("files %q were written", names)
			}
		})
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestSize checks that the least recently used embeddings are removed, and nothing else.
func TestSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	const n, most = 10_000, 4 // 20 kB each
	c, warned := open(dir, most*(2*n+headerSize))
	key := func(i int) []byte { return fmt.Appendf(nil, "prompt %d", i) }
	c.Put(key(0), embeds(0, n), "")
	foreign := filepath.Join(dir, "holiday.safetensors")
	write(t, foreign)
	for i := 1; i < 10; i++ {
		if c.Get(key(0)) == nil { // used all the time
			t.Errorf("after %d others the prompt that is used most recently is gone", i)
		}
		time.Sleep(10 * time.Millisecond) // longer than a tick of the file system's clock
		c.Put(key(i), embeds(i, n), "")
		time.Sleep(10 * time.Millisecond)
		u, err := c.Usage()
		if err != nil || u.Bytes > c.size || u.Files != min(i+1, most) {
			t.Errorf("after %d prompts the cache uses %v, %v", i+1, u, err)
		}
	}
	for i := 1; i < 10; i++ {
		if has := i > 10-most; c.Has(key(i)) != has {
			t.Errorf("prompt %d: in the cache %v, expected %v", i, !has, has)
		}
	}
	c.Put(key(11), embeds(11, most*n*2), "") // larger than all
	if c.Has(key(11)) || !c.Has(key(9)) {
		t.Error("embeddings larger than the cache have displaced others")
	}
	if _, err := c.Clear(); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 || names[0].Name() != filepath.Base(foreign) {
		t.Errorf("Clear left %v, expected only the file that is not the cache's", names)
	}
	if len(warned.list) > 0 {
		t.Errorf("warnings %q", warned.list)
	}
}

// TestConcurrent lets several caches read, write and clear one folder.
func TestConcurrent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	var wait sync.WaitGroup
	_, warned := open(dir, 0)
	for worker := range 4 {
		c := New(dir, 8*(2*640+headerSize), warned.add)
		wait.Go(func() {
			for i := range 60 {
				n := (worker + i) % 12
				key := fmt.Appendf(nil, "prompt %d", n)
				if got := c.Get(key); got != nil && !same(got, embeds(n, 640)) {
					t.Errorf("prompt %d: other embeddings", n)
				}
				c.Put(key, embeds(n, 640), "")
				if worker == 0 && (i == 19 || i == 39) {
					if _, err := c.Clear(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
	if len(warned.list) > 0 {
		t.Errorf("warnings %q", warned.list)
	}
	c, _ := open(dir, DefaultSize)
	if u, err := c.Usage(); err != nil || u.Files == 0 || u.Bytes > 8*(2*640+headerSize) {
		t.Errorf("the cache uses %v, %v", u, err)
	}
}

// FuzzRead reads files of any content under a known secret.
func FuzzRead(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "prompts")
	c, _ := open(dir, DefaultSize)
	c.Put([]byte("a"), embeds(1, 64), "")
	secret, err := c.secret()
	if err != nil {
		f.Fatal(err)
	}
	path := c.path(secret, []byte("a"))
	written, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(written)
	f.Add(written[:len(written)-1])
	f.Add(bytes.Replace(written, []byte("[8,8]"), []byte("[64]"), 1))
	f.Add([]byte("\x93NUMPY\x01\x00"))
	f.Add([]byte("PK\x03\x04"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := read(path, secret)
		if err == nil && !same(found, embeds(1, 64)) {
			t.Errorf("read %v, which was never stored", found)
		}
	})
}
