package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/picture"
)

// TestPackedLatents gives generate initial noise as tokens, the shape of diffusers'
// argument latents: the image is that of the run's own noise.
func TestPackedLatents(t *testing.T) {
	dir := t.TempDir()
	generate := func(name string, args ...string) []byte {
		t.Helper()
		name = filepath.Join(dir, name)
		var out, errs bytes.Buffer
		args = append([]string{"generate", "-m", tinyFlux, "-p", "a red circle", "-H", "48", "-W", "64", "-s", "2", "-o", name}, args...)
		if code := run(args, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, &errs)
		}
		p, err := picture.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return p.Image.Pix
	}
	saved := func(logs string) string { return filepath.Join(logs, "runs", "latest", "gomflux") }
	own := filepath.Join(dir, "own")
	want := generate("own.png", "-S", "7", "--debug-save", "latents.init", "--log-dir", own)

	plain := filepath.Join(saved(own), "tensors", "latents.init.safetensors")
	noise, err := checkpoint.Reference{File: plain}.Read("latents.init")
	if err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(dir, "tokens.npy")
	if err := checkpoint.WriteFile(tokens, []*checkpoint.Array{pack(t, noise)}, nil); err != nil {
		t.Fatal(err)
	}
	if got := generate("plain.png", "-S", "8", "--debug-load", "latents.init="+plain); !bytes.Equal(got, want) {
		t.Error("another picture from the noise as it was saved")
	}
	logs := filepath.Join(dir, "packed")
	got := generate("packed.png", "-S", "8", "--debug-load", "latents.init="+tokens, "--debug-save", "latents.init", "--log-dir", logs)
	if !bytes.Equal(got, want) {
		t.Error("another picture from packed noise")
	}
	again, err := checkpoint.Reference{File: filepath.Join(saved(logs), "tensors", "latents.init.safetensors")}.Read("latents.init")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.Shape, noise.Shape) || !bytes.Equal(again.Data, noise.Data) {
		t.Errorf("saved are other latents, of shape %v", again.Shape)
	}
	var settings struct {
		Replaced map[string]string
		Packed   []string
	}
	text, err := os.ReadFile(filepath.Join(saved(logs), "settings.json"))
	if err == nil {
		err = json.Unmarshal(text, &settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	if settings.Replaced["latents.init"] == "" || !slices.Equal(settings.Packed, []string{"latents.init"}) {
		t.Errorf("recorded is that %v were replaced, packed %v", settings.Replaced, settings.Packed)
	}
}

// pack makes tokens [1, h/2*w/2, C*4] of latents [1, C, h, w]: each is a square of
// two by two, channel by channel.
func pack(t *testing.T, x *checkpoint.Array) *checkpoint.Array {
	t.Helper()
	c, h, w := x.Shape[1], x.Shape[2], x.Shape[3]
	from := x.Float32s()
	var to []float32
	for y := 0; y < h; y += 2 {
		for x := 0; x < w; x += 2 {
			for channel := range c {
				for _, at := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
					to = append(to, from[(channel*h+y+at[0])*w+x+at[1]])
				}
			}
		}
	}
	packed, err := checkpoint.FromFloat32("tokens", []int{1, h / 2 * (w / 2), c * 4}, to)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}
