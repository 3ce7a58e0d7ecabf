package parity_test

import (
	"context"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
)

func TestCompare(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tests := []struct {
		name      string
		got, want []float32
		max, ref  float64
		at        int
		within    bool
	}{
		{"equal", []float32{1, -8, 3}, []float32{1, -8, 3}, 0, 8, 0, true},
		{"rounding", []float32{1, -8.00005, 3}, []float32{1, -8, 3}, 5e-5, 8, 1, true},
		{"the wrong GELU", []float32{1, -8, 3.0006}, []float32{1, -8, 3}, 6e-4, 8, 2, false},
		{"around zero", []float32{9e-8, 0}, []float32{0, 0}, 9e-8, 0, 0, true},
		{"above the floor", []float32{2e-7, 0}, []float32{0, 0}, 2e-7, 0, 0, false},
		{"many small errors", slices.Repeat([]float32{1.000015}, 100), slices.Repeat([]float32{1}, 100), 1.5e-5, 1, 0, false},
		{"NaN", []float32{1, nan}, []float32{1, 2}, 0, 1, 1, false},
		{"NaN in the reference", []float32{1, 2}, []float32{1, nan}, 0, 1, 1, false},
		{"infinite", []float32{inf, 2}, []float32{1, 2}, 0, 2, 0, false},
		{"nothing", nil, nil, 0, 0, 0, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := parity.Compare(test.got, test.want)
			if math.Abs(d.Max-test.max) > 0.03*test.max || d.MaxRef != test.ref || d.At != test.at {
				t.Errorf("%v", d)
			}
			if d.Within(parity.Float32) != test.within {
				t.Errorf("%v: within the tolerance is %v, expected %v", d, !test.within, test.within)
			}
		})
	}
}

func TestRun(t *testing.T) {
	err := mlx.Do(context.Background(), func() error {
		run, err := parity.OpenRun(os.DirFS("../models/testdata/zimage-ordinary/dump"))
		if err != nil {
			return err
		}
		if run.Steps != 2 || run.Height != 24 || run.NegativePrompt != nil {
			t.Errorf("settings %+v", run.Settings)
		}
		names := run.Names()
		for _, name := range []string{"noise_pred@1", "transformer.layers.0@0:in.0", "vae.decoder.conv_in"} {
			if !slices.Contains(names, name) || run.Array(name) == nil {
				t.Errorf("%s is not in the run", name)
			}
		}
		// an input that is another module's output is stored once
		if a, b := run.Array("transformer.layers.1@0:in.0"), run.Array("transformer.layers.0@0"); a != b {
			t.Errorf("an alias is %v, expected %v", a, b)
		}
		if a := run.Array("transformer.nothing"); a != nil {
			t.Errorf("a tensor that is not there is %v", a)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = mlx.Do(context.Background(), func() error {
		run, err := parity.OpenRun(os.DirFS("../models/testdata/zimage-image/dump"))
		if err != nil {
			return err
		}
		if run.Model != "zimage-ordinary/model" || run.Picture != "picture.png" || run.ImageStrength != 0.5 || run.FirstStep != 2 ||
			run.Steps != 4 {
			t.Errorf("settings %+v", run.Settings)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = mlx.Do(context.Background(), func() error {
		_, err := parity.OpenRun(os.DirFS("../models/testdata"))
		return err
	})
	if err == nil {
		t.Error("a folder without a run was opened")
	}
}
