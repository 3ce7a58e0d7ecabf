package models_test

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
)

// TestNotFinite plants weights that are NaN, infinite or too large, and checks that there is no
// image but an error that names the first of them.
func TestNotFinite(t *testing.T) {
	const (
		vaeFile = "vae/diffusion_pytorch_model.safetensors"

		text  = "text_encoder/model-00002-of-00002.safetensors"
		first = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
	)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	set := func(value float32, names ...string) func(map[string]*checkpoint.Array) {
		return func(m map[string]*checkpoint.Array) {
			for _, name := range names {
				if m[name] == nil {
					t.Fatalf("no tensor %s", name)
				}
				modeltest.Fill(m[name], func(i int, v float32) float32 {
					if i == 2 {
						return value
					}
					return v
				})
			}
		}
	}
	tests := map[string]struct {
		file    string // "" for no change
		change  func(map[string]*checkpoint.Array)
		half    bool // computed in float16
		lowRAM  bool
		hook    string // the tensor that becomes NaN
		want    []string
		damaged bool
	}{
		"transformer": {file: first, change: set(nan, "layers.1.attention.to_q.weight"), damaged: true, want: []string{
			first + ": tensor layers.1.attention.to_q.weight: has 1 NaN and 0 infinite of ", "so the latents are not finite"}},
		"text encoder": {file: text, change: set(inf, "model.layers.0.mlp.up_proj.weight"), damaged: true, want: []string{
			text + ": tensor model.layers.0.mlp.up_proj.weight: has 0 NaN and 1 infinite of ", "the latents are not finite"}},
		"autoencoder": {file: vaeFile, change: set(nan, "decoder.conv_in.weight", "decoder.conv_in.bias",
			"decoder.conv_norm_out.weight"), damaged: true, want: []string{
			vaeFile + ": tensor decoder.conv_in.weight: has 1 NaN and 0 infinite of ",
			" (and 2 more tensors), so the pixels are not finite"}},
		"one at a time": {file: text, change: set(nan, "model.layers.0.mlp.up_proj.weight"), lowRAM: true, damaged: true, want: []string{
			text + ": tensor model.layers.0.mlp.up_proj.weight: has 1 NaN"}},
		"too large for float16": {file: first, change: set(1e6, "layers.1.attention.to_q.weight"), half: true, want: []string{
			first + ": tensor layers.1.attention.to_q.weight: is finite in the file but not as float16 in memory",
			"float16 ends at 65504: try --dtype bfloat16 or float32"}},
		"computed": {hook: "noise_pred", want: []string{"the model computed latents that are NaN or infinite, although " +
			"all its weights are finite", "--check-finite names"}},
		"decoded": {hook: "vae.decode.out", half: true, want: []string{"the model computed pixels that are NaN or infinite",
			"float16 ends at 65504"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := modeltest.Copy(t, modeltest.Folder(t, "zimage-ordinary"))
			if test.file != "" {
				modeltest.Edit(t, filepath.Join(dir, test.file), test.change)
			}
			folder, err := checkpoint.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			device, dtype := mlx.CPU, mlx.Float32
			if test.half {
				dtype = mlx.Float16
			}
			mlxtest.Do(t, func() {
				p, err := models.Load(folder, models.LoadOptions{Device: &device, Dtype: &dtype, LowRAM: test.lowRAM})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				r := models.Request{Prompt: "a red circle", Height: 24, Width: 24, Steps: 2, MaxSequenceLength: 64}
				if test.hook != "" {
					r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
						if tap.Name == test.hook {
							return tap.Output.Times(math.NaN()), nil
						}
						return nil, nil
					}
				}
				result, err := p.Generate(r)
				var failed *models.NotFiniteError
				if !errors.As(err, &failed) || result != nil {
					t.Fatalf("error %v", err)
				}
				for _, want := range test.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q, expected one with %q", err, want)
					}
				}
				if failed.Damaged() != test.damaged {
					t.Errorf("%+v: damaged %v, expected %v", failed, failed.Damaged(), test.damaged)
				}
				if test.file == "" {
					return
				}
				if path := filepath.Join(dir, test.file); !strings.HasPrefix(err.Error(), path+": ") {
					t.Errorf("error %q, expected it to begin with %s", err, path)
				}
			})
		})
	}
}
