package gomflux_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/picture"
)

// ofTiny writes a LoRA for the small model.
func ofTiny(t *testing.T, seed uint64, modules ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "random.safetensors")
	if err := modeltest.WriteLoRA(name, tiny, seed, modules...); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestWeights checks that quantizations and LoRAs change the image and are recorded in its
// settings, which generate it again.
func TestWeights(t *testing.T) {
	first, second := ofTiny(t, 1), ofTiny(t, 2)
	data, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	made := map[string][]byte{}
	for name, o := range map[string]*gomflux.OpenOptions{
		"plain":    nil,
		"8":        {Quantize: "8"},
		"4":        {Quantize: "4", GroupSize: 32},
		"mxfp4":    {Quantize: "mxfp4"},
		"LoRA":     {LoRAs: []gomflux.LoRA{{Path: first}}},
		"half":     {LoRAs: []gomflux.LoRA{{Path: first, Scale: 0.5}}},
		"negative": {LoRAs: []gomflux.LoRA{{Path: first, Scale: -1}}},
		"two":      {LoRAs: []gomflux.LoRA{{Path: first}, {Path: second}}},
		"runtime":  {LoRAs: []gomflux.LoRA{{Path: first}}, RuntimeLoRA: true},
		"both":     {LoRAs: []gomflux.LoRA{{Path: first}}, Quantize: "4"},
	} {
		m := open(t, o)
		r, err := m.Generate(context.Background(), options(7))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := r.Settings
		if o == nil {
			o = &gomflux.OpenOptions{}
		}
		if s.Quantize != string(o.Quantize) || s.GroupSize != o.GroupSize || s.RuntimeLoRA != o.RuntimeLoRA ||
			len(s.LoRAs) != len(o.LoRAs) || len(m.LoRAs()) != len(o.LoRAs) {
			t.Errorf("%s: the settings are %+v", name, s)
		}
		if name == "half" && s.LoRAs[0] != (picture.LoRA{Path: first, Scale: 0.5, SHA256: hex.EncodeToString(sum[:])}) {
			t.Errorf("the settings have the LoRAs %+v", s.LoRAs)
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		again, err := open(t, gomflux.OpenOptionsFrom(&s)).Generate(context.Background(), gomflux.OptionsFrom(&s))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(again.Image.Pix, r.Image.Pix) {
			t.Errorf("%s: the settings do not make the picture again", name)
		}
		for other, pixels := range made {
			if bytes.Equal(pixels, r.Image.Pix) && name != "runtime" && other != "runtime" {
				t.Errorf("%s and %s make the same picture", name, other)
			}
		}
		made[name] = r.Image.Pix
	}
	if off := furthest(made["LoRA"], made["runtime"]); off > 2 {
		t.Errorf("beside the weights a LoRA makes a picture that is off by %d", off)
	}
}

// furthest is how far two pictures' values are apart at most.
func furthest(a, b []byte) (most int) {
	for i := range a {
		most = max(most, int(a[i])-int(b[i]), int(b[i])-int(a[i]))
	}
	return most
}

func TestBadWeights(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	file := ofTiny(t, 1)
	damaged := filepath.Join(t.TempDir(), "damaged.safetensors")
	if err := os.WriteFile(damaged, []byte("not one"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		o    gomflux.OpenOptions
		want string
		is   error
	}{
		{gomflux.OpenOptions{Quantize: "7"}, "expected 3, 4, 5, 6, 8", gomflux.ErrRequest},
		{gomflux.OpenOptions{Quantize: "4", GroupSize: 48}, "expected 32, 64 or 128", gomflux.ErrRequest},
		{gomflux.OpenOptions{GroupSize: 64}, "a group size needs a quantization", gomflux.ErrRequest},
		{gomflux.OpenOptions{LoRAs: []gomflux.LoRA{{Path: file, Scale: math.NaN()}}},
			"scale: expected a finite number, found NaN", gomflux.ErrRequest},
		{gomflux.OpenOptions{LoRAs: []gomflux.LoRA{{Path: file}, {Path: "nothing"}}}, "no LoRA nothing", gomflux.ErrNotFound},
		{gomflux.OpenOptions{LoRAs: []gomflux.LoRA{{Path: "me/lora"}}}, "gomflux pull me/lora", gomflux.ErrNotFound},
		{gomflux.OpenOptions{LoRAs: []gomflux.LoRA{{Path: damaged}}}, "damaged.safetensors", nil},
		{gomflux.OpenOptions{LoRAs: []gomflux.LoRA{{Path: ofTiny(t, 1, "blocks.0.nothing")}}},
			"transformer.blocks.0.nothing.lora_A.weight", nil},
	} {
		m, err := gomflux.Open(context.Background(), tiny, &test.o)
		switch {
		case err == nil:
			m.Close()
			t.Errorf("%+v was taken, expected %q", test.o, test.want)
		case !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is):
			t.Errorf("%+v: error %v, expected %q", test.o, err, test.want)
		case test.is == nil:
			if _, ok := errors.AsType[*gomflux.LoRAError](err); !ok {
				t.Errorf("%+v: error %T", test.o, err)
			}
		}
	}
}
