package models

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/catalog"
)

// TestFitMacs estimates a published model of every class on small Macs and on GitHub's virtual one. What fits stays
// below the memory that Metal recommends, without any flag or with those that the warning suggests, and
// no array is larger than Metal allows.
func TestFitMacs(t *testing.T) {
	mlxtest.Do(t, func() {
		models, fitting := map[int]int{}, map[int]int{}
		for _, gib := range []int{7, 8, 16} {
			mac := mlx.MacOf(gib)
			for i, preset := range catalog.Presets {
				if i > 0 && preset.Class == catalog.Presets[i-1].Class { // one of each class
					continue
				}
				models[gib]++
				s, err := catalog.FindConfigs(preset.Name)
				if err != nil {
					t.Fatal(err)
				}
				random := &Random{Dtype: checkpoint.BF16, PromptTokens: 128}
				p, err := Load(s.FS, LoadOptions{Defaults: s.Defaults, Random: random, headersOnly: true, mac: &mac})
				if err != nil {
					t.Fatalf("%s: %v", preset.Name, err)
				}
				r, err := p.leastRun()
				if err != nil {
					t.Fatalf("%s: %v", preset.Name, err)
				}
				available := r.available()
				if uint64(available) != mac.WorkingSet || r.dtype != mlx.Float16 {
					t.Fatalf("%s: %d bytes are available, in %v", preset.Name, available, r.dtype)
				}
				fit := r.fitMac()
				if fit.Fits != (fit.Peak <= available) {
					t.Errorf("%s, %d GiB: %+v of %d", preset.Name, gib, fit, available)
				}
				if fit.Fits {
					fitting[gib]++
				}
				r.fit(available)
				e := r.Estimate()
				if e.Peak() <= available {
					if !fit.Fits || fit.Quantize != "" || fit.Smaller {
						t.Errorf("%s, %d GiB: %d bytes fit, found %+v", preset.Name, gib, e.Peak(), fit)
					}
				} else {
					text := r.shortage(e, available, ": slow")
					if strings.Contains(text, "; try ") == strings.Contains(text, "; neither ") ||
						fit.Fits && !strings.Contains(text, "; try ") {
						t.Errorf("%s, %d GiB: %s, but %+v", preset.Name, gib, text, fit)
					}
				}
				for _, l := range p.loadables {
					for i, parameter := range nn.Parameters(l.Model) {
						if n, _ := parameter.Memory(l.found[i], mlx.Float32, nil); uint64(n) > mac.LargestArray {
							t.Errorf("%s: a weight of %d bytes, and a Mac with %d GiB allows %d", preset.Name, n, gib, mac.LargestArray)
						}
					}
				}
				p.Close()
			}
		}
		if fitting[7] == 0 || fitting[7] > fitting[8] || fitting[8] >= fitting[16] || fitting[16] < models[16]/2 {
			t.Errorf("of %v models so many fit: %v", models, fitting)
		}
	})
}

// TestFitMacsOrder checks that more memory never takes more flags.
func TestFitMacsOrder(t *testing.T) {
	mlxtest.Do(t, func() {
		s, err := catalog.FindConfigs("z-image-turbo")
		if err != nil {
			t.Fatal(err)
		}
		fits, err := FitMacs(s.FS, LoadOptions{Defaults: s.Defaults}, 128, 4, 8, 16, 32, 64)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, fit := range fits {
			text := fit.Quantize
			if fit.LowRAM {
				text += "*"
			}
			if !fit.Fits {
				text += " no"
			}
			found = append(found, text)
			if fit.Fits && fit.Peak > fit.WorkingSet {
				t.Errorf("%+v does not fit", fit)
			}
		}
		if got := strings.Join(found, ","); got != "4* no,4*,8*,," {
			t.Errorf("found %s", got)
		}
	})
}

// TestStripsOnMetal checks that large images are decoded in strips on Metal, with any memory, so that no
// convolution takes too long.
func TestStripsOnMetal(t *testing.T) {
	mlxtest.Do(t, func() {
		s, err := catalog.FindConfigs("flux1-schnell")
		if err != nil {
			t.Fatal(err)
		}
		mac := mlx.MacOf(64)
		p, err := Load(s.FS, LoadOptions{Defaults: s.Defaults, Random: &Random{Dtype: checkpoint.BF16}, headersOnly: true, mac: &mac})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for side, want := range map[int]bool{1024: false, 2048: true} {
			p.vae.SetBudget(0)
			whole := p.vae.DecodeMemory(side, side, p.device, p.dtype)
			if got := p.setBudget(side, side, 0, p.vae.DecodeMemory) < whole; got != want {
				t.Errorf("%d pixels: in strips is %v", side, got)
			}
		}
	})
}
