package main

import (
	gobytes "bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInfoParameters is about a picture of a program that writes nothing but
// the parameters text.
func TestInfoParameters(t *testing.T) {
	var b gobytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 4))); err != nil {
		t.Fatal(err)
	}
	const head = 8 + 25 // signature and IHDR
	chunk := []byte("tEXtparameters\x00a fox\nNegative prompt: a dog\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 5, Size: 8x4, Model: fox_v2")
	text := binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-4))
	text = append(text, chunk...)
	text = binary.BigEndian.AppendUint32(text, crc32.ChecksumIEEE(chunk))
	name := filepath.Join(t.TempDir(), "x.png")
	file := append(append(b.Bytes()[:head:head], text...), b.Bytes()[head:]...)
	if err := os.WriteFile(name, file, 0o666); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	if err := info(&out, &out, []string{name}, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"prompt               a fox\nnegative_prompt      a dog\n", "(PNG of 8x4, settings of kind parameters)\n", "\nmodel                fox_v2\n",
		"\nseed                 5\n", "\nagain                gomflux generate -C " + name + " -m MODEL\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("found %q, expected %q in it", out.String(), want)
		}
	}

	file[head-1] ^= 1 // IHDR's checksum
	if err := os.WriteFile(name, file, 0o666); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := info(&out, &out, []string{name}, false); err != nil {
		t.Fatal(err)
	}
	if want := "(PNG, settings of kind parameters)\n"; !strings.Contains(out.String(), want) {
		t.Errorf("damaged: found %q, expected %q in it", out.String(), want)
	}
}

func TestShellQuote(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	for s, want := range map[string]string{
		"a/b-c_1.png":         "a/b-c_1.png",
		"":                    "''",
		"é.png":               "é.png",
		"a b":                 "'a b'",
		"$(x)`y`":             "'$(x)`y`'",
		"it's":                `'it'\''s'`,
		"~/x":                 "'~/x'",
		"\x1b[0m'\"\\é\n\xff": `$'\x1b[0m\'"\\\u00e9\n\xff'`,
	} {
		got := shellQuote(s)
		if got != want {
			t.Errorf("%q is quoted as %s, expected %s", s, got, want)
		}
		cmd := exec.Command(bash, "-c", "printf %s "+got)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		if out, err := cmd.Output(); err != nil || string(out) != s {
			t.Errorf("%q is quoted as %s, which bash takes as %q, %v", s, got, out, err)
		}
	}
}
