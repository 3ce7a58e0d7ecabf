package models

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/lora"
)

// TestPaddedLoRA applies a LoRA for a transformer with fewer inputs, whose x_embedder changes the
// first inputs only, and compares it with one that has zeros for the others.
func TestPaddedLoRA(t *testing.T) {
	const in, all, rank, width = 16, 96, 2, 20
	dir := t.TempDir()
	write := func(name string, inputs, zeros int) string {
		down := make([]float32, 0, rank*(inputs+zeros))
		for i := range rank {
			for j := range inputs + zeros {
				down = append(down, 0)
				if j < inputs {
					down[len(down)-1] = float32(i*in+j%in)/20 - 0.5
				}
			}
		}
		up := make([]float32, width*rank)
		for i := range up {
			up[i] = float32(i%7)/5 - 0.4
		}
		path := filepath.Join(dir, name+".safetensors")
		modeltest.Write(t, path, nil, map[string]map[string]*checkpoint.Array{"transformer.x_embedder.": {
			"lora_A.weight": {Dtype: checkpoint.F32, Shape: []int{rank, inputs + zeros}, Data: float32Bytes(down)},
			"lora_B.weight": {Dtype: checkpoint.F32, Shape: []int{width, rank}, Data: float32Bytes(up)},
		}})
		return path
	}
	generate := func(o LoadOptions) []uint8 {
		var pix []uint8
		mlxtest.Do(t, func() {
			p, err := Load(os.DirFS("testdata/flux1-fill/model"), o)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r, err := p.Generate(Request{Prompt: "a red hat", Height: 24, Width: 40, Steps: 2, Guidance: 30, MaxSequenceLength: 24,
				Seed: 1, Inpaint: p.LeastInpaint(coloured(40, 24))})
			if err != nil {
				t.Fatal(err)
			}
			pix = r.Image.Pix
		})
		return pix
	}
	plain := generate(LoadOptions{})
	for _, runtime := range []bool{false, true} {
		with := func(path string) []uint8 {
			return generate(LoadOptions{LoRAs: []lora.Spec{{Path: path, Scale: 1}}, RuntimeLoRA: runtime})
		}
		short, long := with(write("short", in, 0)), with(write("long", in, all-in))
		most, changed := 0, 0 // at run time sums of more numbers are rounded differently
		for i := range short {
			most = max(most, int(short[i])-int(long[i]), int(long[i])-int(short[i]))
			changed = max(changed, int(short[i])-int(plain[i]))
		}
		if most > 1 || changed < 10 {
			t.Errorf("at run time %v: pixels are off by %d from those of zeros, and change by %d", runtime, most, changed)
		}
	}
	mlxtest.Do(t, func() {
		_, err := Load(os.DirFS("testdata/flux1-fill/model"), LoadOptions{LoRAs: []lora.Spec{{Path: write("wide", all+1, 0), Scale: 1}}})
		if err == nil || !strings.Contains(err.Error(), "expected a change of shape [20 96]") {
			t.Errorf("too many inputs: %v", err)
		}
	})
}

// float32Bytes returns numbers as they are in files.
func float32Bytes(values []float32) []byte {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}
