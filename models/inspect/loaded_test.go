package inspect

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models"
)

func TestLoaded(t *testing.T) {
	folder, err := checkpoint.OpenFolder("../testdata/zimage-ordinary/model")
	if err != nil {
		t.Fatal(err)
	}
	byField := map[string]*LoadedParameter{}
	mlxtest.Do(t, func() {
		l, err := Loaded(folder, "", models.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if l.NotRun != nil || l.Class != "ZImagePipeline" {
			t.Errorf("class %s, not run: %v", l.Class, l.NotRun)
		}
		counts := map[string]int{}
		for _, c := range l.Components {
			for _, p := range c.Parameters {
				counts[c.Name]++
				byField[c.Name+" "+p.Field] = p
				if p.SHA256 != p.Again || len(p.SHA256) != 64 || !p.Used || p.Dtype != mlx.BFloat16 {
					t.Errorf("%s %s: %+v", c.Name, p.Name, p)
				}
			}
		}
		if counts["text_encoder"] != 23 || counts["transformer"] != 73 || counts["vae"] != 152 {
			t.Errorf("parameters %v", counts)
		}
		conv := byField["vae Decoder.ConvIn.Weight"]
		if conv == nil || conv.Name != "decoder.conv_in.weight" || conv.Transform != "oihw" ||
			!slices.Equal(conv.Shape, []int{12, 3, 3, 4}) || len(conv.First) != 4 {
			t.Errorf("conv_in: %+v", conv)
		}
		q := byField["text_encoder Layers[1].SelfAttn.QProj.Weight"]
		if q == nil || q.Tensor.Name != "model.layers.1.self_attn.q_proj.weight" || q.Transform != "" {
			t.Errorf("q_proj: %+v", q)
		}

		one, err := Loaded(folder, "vae", models.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if one.NotRun == nil || len(one.Components) != 1 ||
			one.Components[0].Parameters[0].SHA256 != one.Components[0].Parameters[0].Again {
			t.Errorf("the vae alone: not run: %v, %d components", one.NotRun, len(one.Components))
		}
		_, err = Loaded(folder, "unet", models.LoadOptions{})
		if err == nil || !strings.Contains(err.Error(), "text_encoder, transformer, vae") {
			t.Errorf("unet: %v", err)
		}
	})
}

// TestLoadedUnused generates an image without image-to-image, which does not need the
// encoder.
func TestLoadedUnused(t *testing.T) {
	folder, err := checkpoint.OpenFolder("../testdata/zimage-ordinary/model")
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		p, err := models.Load(folder, models.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		used := map[*mlx.Array]bool{}
		stop := nn.Watch(func(a *mlx.Array) { used[a] = true })
		defer stop()
		if _, err := p.Generate(models.Request{Prompt: "x", Height: 8, Width: 8, Steps: 1, MaxSequenceLength: 100}); err != nil {
			t.Fatal(err)
		}
		autoencoder := p.Components()[len(p.Components())-1]
		for _, parameter := range nn.Parameters(autoencoder.Model) {
			encoder := strings.HasPrefix(parameter.Name, "encoder.") || strings.HasPrefix(parameter.Name, "quant_conv.")
			if used[parameter.Array] == encoder {
				t.Errorf("%s: used is %v", parameter.Name, used[parameter.Array])
			}
		}
	})
}

// TestLoadedLowMemory generates an image with only one component in memory at a time.
func TestLoadedLowMemory(t *testing.T) {
	folder, err := checkpoint.OpenFolder("../testdata/zimage-ordinary/model")
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		s, err := newSession(folder, models.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.components {
			if err := s.loadFirst(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.run(models.LoadOptions{LowRAM: true}); err != nil {
			t.Fatal(err)
		}
		for _, c := range s.out.Components {
			for _, p := range c.Parameters {
				if p.SHA256 != p.Again || !p.Used {
					t.Errorf("%s %s: %+v", c.Name, p.Name, p)
				}
			}
		}
	})
}

// TestHash distinguishes arrays, also by elements after the first part.
func TestHash(t *testing.T) {
	values := mlxtest.Random(1, checkpoint.PartLen+10)
	mlxtest.Do(t, func() {
		x := mlx.FromFloat32(values)
		same := mlx.FromFloat32(values)
		shaped := mlx.FromFloat32(values, 2, len(values)/2)
		half := x.AsType(mlx.BFloat16)
		values[checkpoint.PartLen+3]++
		changed := mlx.FromFloat32(values)
		if hash([]*mlx.Array{x}) != hash([]*mlx.Array{same}) {
			t.Error("equal arrays have different hashes")
		}
		for name, other := range map[string]*mlx.Array{"another shape": shaped, "another dtype": half, "another element": changed} {
			if hash([]*mlx.Array{x}) == hash([]*mlx.Array{other}) {
				t.Errorf("%s: the same hash", name)
			}
		}
	})
}

// TestLoadedRefuses what cannot be loaded.
func TestLoadedRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../testdata/zimage-ordinary/model")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "vae/diffusion_pytorch_model.safetensors")); err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		for dir, want := range map[string]string{dir: ": no safetensors file", t.TempDir(): "model_index.json"} {
			folder, err := checkpoint.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Loaded(folder, "", models.LoadOptions{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("found %v, expected %q", err, want)
			}
		}
	})
}
