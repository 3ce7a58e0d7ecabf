package macos

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOfKernel(t *testing.T) {
	for release, want := range map[string]Version{
		"20.6.0": {11, 6}, "23.4.0": {14, 4}, "24.6.0": {15, 6}, "25.0.0": {26, 0}, "25.2.0": {26, 2}, "25.10.1": {26, 10},
		"26.1.0": {27, 1}, "25": {}, "19.6.0": {}, "": {}, "6.8.0-45-generic": {}, "x.y": {},
	} {
		if got := ofKernel(release); got != want {
			t.Errorf("kernel %q: macOS %v, expected %v", release, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{"26.2": "26.2", "15": "15.0", "26.10": "26.10", "": "", "26.2.1": "", "-1": "", "a.b": ""} {
		v, err := Parse(text)
		if err != nil && want != "" || err == nil && v.String() != want {
			t.Errorf("%q: %v, %v, expected %q", text, v, err, want)
		}
	}
	for _, c := range []struct {
		v, w Version
		want int
	}{
		{Version{26, 2}, Version{26, 10}, -1}, {Version{15, 9}, Version{26, 0}, -1}, {Version{26, 2}, Version{26, 2}, 0},
		{Version{26, 0}, Version{}, 1},
	} {
		if got := c.v.Compare(c.w); got != c.want {
			t.Errorf("%v compared with %v: %d, expected %d", c.v, c.w, got, c.want)
		}
	}
}

// object makes the head of a Mach-O library with these load commands.
func object(commands ...[]uint32) []byte {
	size := 0
	for _, c := range commands {
		size += 4 * len(c)
	}
	words := []uint32{0xfeedfacf, 0x0100000c, 0, 6, uint32(len(commands)), uint32(size), 0, 0}
	for _, c := range commands {
		words = append(words, c...)
	}
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, words)
	return b.Bytes()
}

func TestMinimum(t *testing.T) {
	uuid := []uint32{0x1b, 24, 1, 2, 3, 4}
	build := []uint32{buildVersion, 24, 1, 26<<16 | 2<<8 | 1, 26<<16 | 5<<8, 0}
	for _, c := range []struct {
		name string
		file []byte
		want Version
		err  string
	}{
		{"a library", object(uuid, build), Version{26, 2}, ""},
		{"without the command", object(uuid), Version{}, "no LC_BUILD_VERSION"},
		{"cut short", object(uuid, build)[:40], Version{}, "EOF"},
		{"text", []byte("a text that is longer than a header of Mach-O"), Version{}, "invalid magic"},
	} {
		path := filepath.Join(t.TempDir(), "lib.dylib")
		if err := os.WriteFile(path, c.file, 0o666); err != nil {
			t.Fatal(err)
		}
		got, err := Minimum(path)
		if got != c.want || (err == nil) != (c.err == "") {
			t.Errorf("%s: %v, %v, expected %v, %q", c.name, got, err, c.want, c.err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: error %v, expected %q with the path", c.name, err, c.err)
		}
	}
}
