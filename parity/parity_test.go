package parity_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
)

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
