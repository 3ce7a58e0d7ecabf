package models

import (
	"fmt"
	"image"
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// settled frees what nothing refers to any more and returns what is in memory.
func settled() int {
	runtime.GC()
	mlx.StopPoint()
	mlx.ClearCache()
	return mlx.ActiveMemory()
}

// TestEstimate holds estimates against what MLX measures, on the CPU: what GPUs
// take was measured with large models (docs/performance.md).
func TestEstimate(t *testing.T) {
	tests := []struct {
		folder        string
		width, height int
		batch         int
		guidance      float64
		references    []image.Point
		dtype         mlx.Dtype
		quantize      string
		lowRAM        bool
	}{
		{folder: "flux1-dev-small", width: 128, height: 128},
		{folder: "flux1-dev-small", width: 256, height: 192, lowRAM: true},
		{folder: "flux1-dev-small", width: 128, height: 96, batch: 3},
		{folder: "flux2-klein-base", width: 128, height: 128, guidance: 3},
		{folder: "flux2-klein-base", width: 192, height: 256, guidance: 1, lowRAM: true},
		{folder: "flux2-klein-base", width: 128, height: 128, references: []image.Point{{128, 64}, {96, 96}}},
		{folder: "zimage-small", width: 256, height: 128},
		{folder: "zimage-small", width: 256, height: 256, guidance: 4, quantize: "4"},
		{folder: "qwen-image-small", width: 256, height: 128},
		{folder: "qwen-image-small", width: 256, height: 256, guidance: 4, lowRAM: true},
		{folder: "qwen-edit-plus", width: 128, height: 128, batch: 8, references: []image.Point{{128, 64}}},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s/%dx%d", test.folder, test.width, test.height), func(t *testing.T) {
			dir := os.DirFS(wideModel(t, test.folder))
			mlxtest.Do(t, func() {
				if mlx.CurrentDevice() != mlx.CPU {
					t.Skip("a GPU is done with small models before it has much to do")
				}
				before := settled()
				o := LoadOptions{LowRAM: test.lowRAM}
				if test.quantize != "" {
					q, err := ParseQuantization(test.quantize, 0)
					if err != nil {
						t.Fatal(err)
					}
					o.Quantize = q
				}
				p, err := Load(dir, o)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				r := Request{Prompt: "a red hat", Width: test.width, Height: test.height, Steps: 2, Guidance: test.guidance, MaxSequenceLength: 256}
				for _, size := range test.references {
					r.References = append(r.References, image.NewRGBA(image.Rectangle{Max: size}))
				}
				peaks := map[Phase]int{}
				phase := PhaseEncode
				r.Progress = func(pr Progress) {
					peaks[phase] = max(peaks[phase], mlx.PeakMemory()-before)
					mlx.ResetPeakMemory()
					if pr.Phase != PhaseLoad {
						phase = pr.Phase
					}
				}
				batch := max(1, test.batch)
				e := p.Estimate(r, batch)
				if _, err := p.GenerateBatch(r, make([]uint64, batch)); err != nil {
					t.Fatal(err)
				}
				r.Progress(Progress{Phase: phase})
				peak := 0
				for _, phase := range []Phase{PhaseEncode, PhaseStep, PhaseDecode} {
					peak = max(peak, peaks[phase])
					t.Logf("%s: %d, estimated %d", phase, peaks[phase], map[Phase]int64{PhaseEncode: e.Encode, PhaseStep: e.Step, PhaseDecode: e.Decode}[phase])
				}
				if off := float64(e.Peak())/float64(peak) - 1; !(math.Abs(off) < 0.1) {
					t.Errorf("a peak of %d bytes, estimated %d, which is off by %.2f", peak, e.Peak(), off)
				}
			})
		})
	}
}
