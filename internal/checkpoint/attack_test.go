package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/hostiletest"
)

// attacks has a part of the expected error for each file in testdata/attacks.
var attacks = map[string]string{
	"length-2-60":      "header length is 1152921504606846976 bytes, expected at most 100000000",
	"length-wraps":     "header length is 18446744073709551613 bytes",
	"length-negative":  "header length is 9223372036854775808 bytes",
	"length-past-end":  "header length is 1000 bytes, but only 86 follow it",
	"length-over-cap":  "header length is 100000001 bytes",
	"length-zero":      "expected '{' as the first byte",
	"start-space":      "expected '{' as the first byte",
	"start-array":      "expected '{' as the first byte",
	"duplicate-key":    `duplicate key "t"`,
	"not-utf8":         "the text is not UTF-8",
	"deep-json":        `__metadata__: key "a": at byte 21: expected a string, found an object`,
	"nul-name":         `tensor name "t\x00.weight" contains a NUL`,
	"shape-wraps-to-0": "axis 0 is too large: 4294967296",
	"shape-wraps-to-1": "F32 of shape [998724481 1119412321 33] overflows",
	"shape-wraps-32":   "axis 0 is too large: 4294967300",
	"shape-negative":   `expected a whole number, found "-2"`,
	"shape-float":      `expected a whole number, found "4.0"`,
	"shape-huge":       `expected a whole number, found "1e+308"`,
	"shape-many-axes":  "more than 64 axes",
	"shape-over-data":  "expected 4000000 bytes for F32 of shape [1000 1000], found data_offsets 0, 4 (4 bytes)",
	"shape-under-data": "expected 32 bytes for F32 of shape [4 2], found data_offsets 0, 4096",
	"dtype-unknown":    `unknown dtype "F128"`,
	"offsets-overlap":  `begins at byte 0 of the data, inside tensor "weight_0"`,
	"offsets-hole":     `tensor "b": begins at byte 12 of the data, expected 4`,
	"offsets-outside":  `tensor "b": begins at byte 1099511627776 of the data, expected 16`,

	"offsets-backwards": "data_offsets 16, 0 are in the wrong order",
	"offsets-wrap":      "number \"18446744073709551608\" is too large",
	"offsets-one":       "expected 2 numbers, found 1",
	"empty-inside":      `tensor "z": begins at byte 8 of the data, inside tensor "a"`,
	"truncated":         `tensor "b": ends at byte 40 of the data, but the file has only 24`,
	"zip-appended":      "belong to no tensor",
	"pickle-protocol-2": "it is a pickle file, which can run arbitrary code (use a safetensors file",
	"pickle-protocol-0": "header length is 8391184065724903267 bytes",
	"pickle-zip":        "it is a zip archive, as torch.save writes (load the model with",
	"numpy-bomb":        "it is a NumPy file",
	"hdf5":              "it is an HDF5 file",
	"gguf-string-1gib":  "it is a GGUF file (use a safetensors file",
	"gguf-alignment":    "it is a GGUF file (use a safetensors file",
	"gguf-counts":       "it is a GGUF file (use a safetensors file",
}

// TestAttacks opens what was published as an attack, alone and as a shard.
func TestAttacks(t *testing.T) {
	files, err := filepath.Glob("testdata/attacks/*" + suffix)
	if err != nil || len(files) != len(attacks) {
		t.Fatalf("%d files, %v, expected the %d of the table", len(files), err, len(attacks))
	}
	about, err := os.ReadFile("testdata/attacks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), suffix)
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(about), "| `"+name+"` |") {
				t.Error("is not in the README")
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp("", "") // without the attack's name
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			write(t, dir, "alone/model.safetensors", data)
			write(t, dir, "shards/a.safetensors", blob(`{`+u8("a", 0, 1)+`}`, 1))
			write(t, dir, "shards/b.safetensors", data)
			write(t, dir, "shards/model.safetensors.index.json", index(`{"a":"a.safetensors","t":"b.safetensors"}`))
			for dir, at := range map[string]string{filepath.Join(dir, "alone"): "model", filepath.Join(dir, "shards"): "b"} {
				folder, err := OpenFolder(dir)
				if err != nil {
					t.Fatal(err)
				}
				hostiletest.Bounded(t, func() {
					_, err := OpenCheckpoint(folder, ".")
					wantError(t, err, filepath.Join(dir, at+suffix)+": ", attacks[name])
				})
			}
		})
	}
}

// Headers with 100,000 tensors and more, and of the largest size that there can
// be, are read in bounded time, whether there is something wrong with them or not.
func TestAttacksBySize(t *testing.T) {
	good := manyTensors(100_000)
	// names that share their beginning are the slowest to sort, the last one is twice
	var twice strings.Builder
	twice.WriteString("{")
	for i := range 100_000 {
		twice.WriteString(u8(strings.Repeat("a", 300)+fmt.Sprint(i), 0, 0) + ",")
	}
	twice.WriteString(u8(strings.Repeat("a", 300)+"99999", 0, 0) + "}")
	spaces := blob("{"+strings.Repeat(" ", maxHeader-2)+"}", 0)
	strung := blob(`{"__metadata__":{"a":"`+strings.Repeat(`\n`, 49_999_980)+`"}}`, 0)
	for _, test := range []struct {
		name   string
		file   []byte
		err    string
		memory int // MB, with the header's text
	}{
		{"100,000 tensors", good, "", 150},
		{"100,000 tensors and one byte more", append(good[:len(good):len(good)], 0), "the last 1 belong to no tensor", 150},
		{"100,000 names, one of them twice", blob(twice.String(), 0), "duplicate key", 250},
		{"100 MB of spaces", spaces, "", 200},
		{"100 MB of escapes", strung, "", 500},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "model.safetensors", test.file)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			ck, err := OpenCheckpoint(Folder{os.DirFS(dir), dir}, ".")
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if test.err != "" {
				wantError(t, err, "model.safetensors: ", test.err)
			} else if err != nil {
				t.Error(err)
			} else {
				ck.Close()
			}
			if took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > uint64(test.memory) {
				t.Errorf("allocated %d MiB for %d", n, len(test.file)>>20)
			}
			t.Logf("%v, %d MiB allocated", took, (after.TotalAlloc-before.TotalAlloc)>>20)
		})
	}
}
