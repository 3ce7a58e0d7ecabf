package gomflux_test

import (
	"bytes"
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
