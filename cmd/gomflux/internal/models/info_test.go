package models

import (
	gobytes "bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// TestInfoParameters reads an image with nothing but the parameters text.
func TestInfoParameters(t *testing.T) {
	var b gobytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 4))); err != nil {
		t.Fatal(err)
	}
	const head = 8 + 25 // signature and IHDR
	chunk := []byte("tEXtparameters\x00a fox\nNegative prompt: a dog\nSteps: 20, Sampler: Euler a, CFG scale: 7, " +
		"Seed: 5, Size: 8x4, Model: fox_v2")
	text := binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-4))
	text = append(text, chunk...)
	text = binary.BigEndian.AppendUint32(text, crc32.ChecksumIEEE(chunk))
	name := filepath.Join(t.TempDir(), "x.png")
	file := append(append(b.Bytes()[:head:head], text...), b.Bytes()[head:]...)
	if err := os.WriteFile(name, file, 0o666); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	if err := info(&ui.Output{Stdout: &out, Stderr: &out}, []string{name}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"prompt               a fox\nnegative_prompt      a dog\n", "(PNG, 8x4, parameters metadata)\n", "\nmodel                fox_v2\n",
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
	if err := info(&ui.Output{Stdout: &out, Stderr: &out}, []string{name}); err != nil {
		t.Fatal(err)
	}
	if want := "(PNG, parameters metadata)\n"; !strings.Contains(out.String(), want) {
		t.Errorf("damaged: found %q, expected %q in it", out.String(), want)
	}
}
