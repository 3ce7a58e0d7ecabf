package gomflux_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"reflect"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/modeltest"
)

// Processes that generate images of their own, of every model, gather those of one process, with their settings,
// and give an image without a seed the same one.
func TestGroup(t *testing.T) {
	if !grouptest.Member() {
		grouptest.Run(t, 2)
		return
	}
	g, err := gomflux.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range modeltest.Networks() {
		m, err := gomflux.Open(t.Context(), modeltest.Folder(t, c.Name), onCPU(&gomflux.OpenOptions{Group: g}))
		if err != nil {
			t.Fatal(err)
		}
		o := gomflux.Options{Prompt: "a red circle", Height: 64, Width: 64, Steps: 1, Split: gomflux.SplitPictures, MaxSequenceLength: 64}
		for range c.References {
			o.References = append(o.References, image.NewRGBA(image.Rect(0, 0, 64, 64)))
		}
		if c.Fills {
			o.Image = image.NewRGBA(image.Rect(0, 0, 64, 64))
			mask := image.NewGray(image.Rect(0, 0, 64, 64))
			mask.Pix[64*32+32] = 255
			o.Mask = mask
		}
		one := func(rank int) *gomflux.Result {
			o.Seed = ptr(uint64(7 + rank))
			result, err := m.Generate(t.Context(), o)
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			return result
		}
		own := one(g.Rank())
		text, err := json.Marshal(own)
		if err != nil {
			t.Fatal(err)
		}
		all, err := g.Gather(t.Context(), text)
		if err != nil || len(all) != 2 {
			t.Fatalf("%d results, %v", len(all), err)
		}
		if i%2 == g.Rank() { // each compares half of the models with what it generates itself
			var other gomflux.Result
			if err := json.Unmarshal(all[1-g.Rank()], &other); err != nil {
				t.Fatal(err)
			}
			want := one(1 - g.Rank())
			other.Settings.Seconds, want.Settings.Seconds = 0, 0
			other.Settings.Created = want.Settings.Created
			if !bytes.Equal(other.Image.Pix, want.Image.Pix) || bytes.Equal(own.Image.Pix, want.Image.Pix) ||
				!reflect.DeepEqual(other.Settings, want.Settings) || len(other.Layers) != len(want.Layers) {
				t.Errorf("%s: the image of the other process differs: %+v, expected %+v", c.Name, other.Settings, want.Settings)
			}
			if other.Settings.Split != "pictures" || other.Settings.Ranks != 2 {
				t.Errorf("%s: recorded as split %q of %d", c.Name, other.Settings.Split, other.Settings.Ranks)
			}
		}
		if i == 0 {
			o.Seed, o.Split = nil, gomflux.AutoSplit
			o.Guidance = ptr(3.0)
			result, err := m.Generate(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			seeds, err := g.Gather(t.Context(), fmt.Append(nil, result.Settings.Seed, result.Settings.Split))
			if err != nil || !bytes.Equal(seeds[0], seeds[1]) || !strings.HasSuffix(string(seeds[0]), "passes") {
				t.Errorf("seeds and splits are %q, %v", seeds, err)
			}
		}
		m.Close()
	}
}

// What one of two processes cannot do neither does, with its reason, and both stop after the same step. The group goes
// on.
func TestGroupAgrees(t *testing.T) {
	if !grouptest.Member() {
		grouptest.Run(t, 2)
		return
	}
	g, err := gomflux.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := func(rank int, err error, want string, request bool) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, gomflux.ErrRequest) != request ||
			strings.HasPrefix(err.Error(), fmt.Sprintf("rank %d (", rank)) == (g.Rank() == rank) {
			t.Errorf("found %v, expected %q of rank %d", err, want, rank)
		}
	}
	folder := modeltest.Folder(t, modeltest.Models[0].Name)
	for _, loras := range [][]gomflux.LoRA{{{Path: "./nothing.safetensors"}}, {{Path: "group.go"}}} { // missing, damaged
		o := onCPU(&gomflux.OpenOptions{Group: g})
		if g.Rank() == 1 {
			o.LoRAs = loras
		}
		_, err = gomflux.Open(t.Context(), folder, o)
		own(1, err, loras[0].Path, false)
	}
	m, err := gomflux.Open(t.Context(), folder, onCPU(&gomflux.OpenOptions{Group: g}))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	stop := errors.New("enough")
	for rank := range 2 {
		var steps int
		ctx, cancel := context.WithCancelCause(t.Context())
		o := gomflux.Options{Prompt: "a", Height: 64, Width: 64, Steps: 9, Seed: ptr(uint64(1)), Guidance: ptr(3.0), MaxSequenceLength: 64}
		o.Progress = func(p gomflux.Progress) {
			if steps = p.Step; steps == 3 && g.Rank() == rank {
				cancel(stop)
			}
		}
		_, err := m.Generate(ctx, o)
		own(rank, err, "enough", false)
		if errors.Is(err, stop) != (g.Rank() == rank) || steps != 3 {
			t.Errorf("stopped after %d steps: %v", steps, err)
		}
		o.Progress = nil
		if g.Rank() == rank {
			o.OnStep = func(s gomflux.Step) error { return stop }
		}
		_, err = m.Generate(t.Context(), o)
		own(rank, err, "enough", false)
		if o.OnStep = nil; g.Rank() == rank {
			o.Height = 63
		}
		_, err = m.Generate(t.Context(), o)
		own(rank, err, "height 63", true)
		o.Height, o.Steps = 64, 1
		if _, err := m.Generate(t.Context(), o); err != nil {
			t.Error(err)
		}
	}
}

func TestJoin(t *testing.T) {
	for _, v := range []string{"MLX_RANK", "MLX_HOSTFILE", "MLX_IBV_DEVICES", "NCCL_HOST_IP"} {
		t.Setenv(v, "")
	}
	g, err := gomflux.Join(t.Context())
	if all, _ := g.Gather(t.Context(), []byte("a")); g != nil || err != nil || g.Rank() != 0 || g.Size() != 1 || string(all[0]) != "a" {
		t.Errorf("alone: %v, %v, rank %d of %d", g, err, g.Rank(), g.Size())
	}
	for _, test := range []struct{ rank, variable, want string }{
		{"-1", "", `environment variable MLX_RANK is "-1": must be a number from 0`},
		{"0", "", "MLX_RANK is set, but none of MLX_HOSTFILE, NCCL_HOST_IP and MLX_IBV_DEVICES"},
	} {
		t.Setenv("MLX_RANK", test.rank)
		if _, err := gomflux.Join(t.Context()); !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("found %v, expected %s", err, test.want)
		}
	}
}
