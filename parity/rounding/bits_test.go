package rounding

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

var inFloat32 = new(mlx.Float32)

var bits4 = &mlx.Quantization{Mode: "affine", Bits: 4, Group: 32}

func TestSearchBits(t *testing.T) {
	o := BitsOptions{Options: parity.Options{Dtype: inFloat32, Quantize: bits4}, Error: 0.03}
	r, err := SearchBits(t.Context(), unrounded, o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK || r.Error > o.Error || r.AllKept != 0 || len(r.Keep) == 0 || len(r.Keep) >= r.Modules {
		t.Errorf("kept %d of %d modules, errors %g, %g, %g", len(r.Keep), r.Modules, r.AllLow, r.AllKept, r.Error)
	}
	// low modules compute what a quantized model does
	whole, err := parity.Replay(t.Context(), unrounded, parity.Options{Dtype: inFloat32, Quantize: bits4, Readings: []string{report.Free}})
	if err != nil {
		t.Fatal(err)
	}
	if e := whole.Find(decodedImage).Free.L2; math.Abs(float64(e-r.AllLow)) > 1e-4*float64(e) {
		t.Errorf("an error of %g with all modules low, %g of a quantized model", r.AllLow, e)
	}
	// a smaller error takes more modules, and none at all if it is large enough
	o.Error = 0.01
	more, err := SearchBits(t.Context(), unrounded, o)
	if err != nil || len(more.Keep) <= len(r.Keep) {
		t.Errorf("kept %d modules for an error of 0.01: %v", len(more.Keep), err)
	}
	o.Error = 1
	none, err := SearchBits(t.Context(), unrounded, o)
	if err != nil || !none.OK || len(none.Keep) != 0 || none.Error != none.AllLow {
		t.Errorf("kept %d modules for an error of 1: %v", len(none.Keep), err)
	}
	for want, r := range map[string]*BitsReport{"modules not quantized, the error is": r, "no module must be kept": none} {
		var text bytes.Buffer
		if err := r.Print(&text, false); err != nil {
			t.Fatal(err)
		}
		mlxtest.Contains(t, text.String(), "quantized (4), computed in float32", want)
	}
	// in bfloat16 no choice of quantized weights is as exact as that
	dtype := mlx.BFloat16
	o.Dtype, o.Error = &dtype, 1e-4
	impossible, err := SearchBits(t.Context(), unrounded, o)
	if err != nil || impossible.OK || impossible.AllKept <= o.Error {
		t.Errorf("an error of 1e-4 in bfloat16: %+v, %v", impossible, err)
	}
}

// A module whose output overflows in float16 is found, and it alone with those around it.
func TestSearchBitsOverflow(t *testing.T) {
	large := changed("transformer.layers.1.feed_forward.w2", func(x *mlx.Array) *mlx.Array { return x.Times(1 << 19) }) // a norm follows
	dtype := mlx.Float16
	r, err := SearchBits(t.Context(), unrounded, BitsOptions{Options: parity.Options{Loaded: large, Dtype: &dtype}, Error: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, k := range r.Keep {
		kept = append(kept, k.Module)
		if !math.IsInf(float64(k.Error), 1) {
			t.Errorf("%s: error %g, expected infinity", k.Module, k.Error)
		}
	}
	if want := []string{"transformer.layers.1.feed_forward", "transformer.layers.1.feed_forward.w2"}; !slices.Equal(kept, want) {
		t.Errorf("kept %q, expected %q", kept, want)
	}
	if !r.OK || !math.IsInf(float64(r.AllLow), 1) || r.Error > 0.01 || r.Runs > 60 {
		t.Errorf("errors %g, %g after %d runs", r.AllLow, r.Error, r.Runs)
	}
	data, err := json.Marshal(r)
	if err != nil || !bytes.Contains(data, []byte(`"all_low_error":null`)) {
		t.Errorf("JSON %s, %v", data, err)
	}
}

func TestSearchBitsRefuses(t *testing.T) {
	dtype := mlx.Float16
	_, err := SearchBits(t.Context(), t.TempDir(), BitsOptions{Options: parity.Options{Dtype: &dtype}})
	mlxtest.Contains(t, err.Error(), "settings.json")
	infinite := changed("vae.decoder.conv_out", func(x *mlx.Array) *mlx.Array { return x.Times(math.Inf(1)) })
	_, err = SearchBits(t.Context(), unrounded, BitsOptions{Options: parity.Options{Loaded: infinite, Dtype: &dtype}})
	mlxtest.Contains(t, err.Error(), "the image is not finite in float32")
}

func TestNotLoaded(t *testing.T) {
	for _, lowRAM := range []bool{false, true} {
		err := mlx.Do(t.Context(), func() error {
			p, err := models.Load(os.DirFS("../../models/testdata/zimage-ordinary/model"), models.LoadOptions{LowRAM: lowRAM})
			if err != nil {
				return err
			}
			defer p.Close()
			if name := notLoaded(p); (name != "") != lowRAM {
				t.Errorf("low RAM %v: found %q", lowRAM, name)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestCheckRoom(t *testing.T) {
	for _, c := range []struct {
		need, free int64
		ok         bool
	}{{5e9, 0, true}, {5e9, 5e9, true}, {5e9, 4e9, false}} {
		if err := checkRoom(c.need, c.free); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMemory) {
			t.Errorf("%d bytes with %d free: %v", c.need, c.free, err)
		}
	}
}

func TestGroups(t *testing.T) {
	all := group{modules: []string{
		"text_encoder.layers.0.mlp", "text_encoder.layers.1.mlp", "text_encoder.norm", "transformer", "transformer.layers.0",
		"transformer.layers.0.attn", "transformer.layers.0.attn.to_q", "transformer.layers.1", "transformer.x_embedder.2-1",
	}}
	names := func(groups []group) (names []string) {
		for _, g := range groups {
			names = append(names, g.name)
		}
		return names
	}
	blocks := all.blocks()
	want := []string{"text_encoder.layers.0", "text_encoder.layers.1", "text_encoder.norm", "transformer", "transformer.layers.0",
		"transformer.layers.1", "transformer.x_embedder"}
	if got := names(blocks); !slices.Equal(got, want) {
		t.Errorf("blocks %q, expected %q", got, want)
	}
	want = []string{"transformer.layers.0", "transformer.layers.0.attn"}
	if got := names(blocks[4].split()); !slices.Equal(got, want) {
		t.Errorf("parts %q, expected %q", got, want)
	}
	n := 0
	for _, b := range blocks {
		n += len(b.modules)
	}
	if n != len(all.modules) {
		t.Errorf("%d modules in blocks, expected %d", n, len(all.modules))
	}
}
