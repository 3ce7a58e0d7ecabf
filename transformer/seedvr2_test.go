package transformer

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// seedVR2 are the networks of seedvr2.py in scripts/reference: the published ones in smaller sizes, with as many windows as
// large images have.
var seedVR2 = map[string]NaDiTConfig{
	"3b": {
		VidInChannels: 9, VidOutChannels: 4, VidDim: 32, TxtInDim: 24, Heads: 2, HeadDim: 16, NumLayers: 6, MMLayers: 3,
		MLPType: "swiglu", MLPDim: 256, VidOutNorm: true, RopeType: "mmrope3d", RopeDim: 16, NormEps: 1e-5, Window: [2]int{9, 9},
	},
	"7b": {
		VidInChannels: 9, VidOutChannels: 4, VidDim: 48, TxtInDim: 24, Heads: 2, HeadDim: 24, NumLayers: 4, MMLayers: 4,
		MLPType: "normal", MLPDim: 192, RopeType: "rope3d", RopeDim: 12, NormEps: 1e-5, Window: [2]int{9, 9},
	},
}

// runSeedVR2 runs a network, with a hook that compares its modules if there is a comparison. change, which may be nil, changes
// the layout.
func runSeedVR2(t *testing.T, name string, hooked bool, change func(*NaDiT, *SeedVR2Sequence)) *foreigntest.Comparison {
	t.Helper()
	m, points := NewNaDiT(seedVR2[name]), &hooks.Points{}
	foreigntest.Fill(m)
	nn.Bind(m, "transformer", points)
	c := foreigntest.New(t, "testdata/seedvr2-"+name+".safetensors")
	if hooked { // norms of both streams, of which the reference computes the image's first
		shared := regexp.MustCompile(`\.norm_[qk]\.all$`)
		points.Func = c.Watch(t, func(module string, call int) int {
			if shared.MatchString(module) {
				return 1 - call
			}
			return call
		})
	}
	in := foreigntest.Signed(0, 1, 9, 16, 24)
	s, err := m.Sequence(16, 24, 5)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(m, s)
	}
	out := m.Forward(in.Slice(1, 0, 4), in.Slice(1, 4, 8), foreigntest.Signed(1, 1, 5, 24), 1000, s, nil)
	if !hooked {
		c.Add(t, "transformer", out)
	}
	return c
}

// TestSeedVR2 compares the output of every module with the makers' code, and the output of a run without hooks.
func TestSeedVR2(t *testing.T) {
	mlxtest.Do(t, func() {
		for name := range seedVR2 {
			runSeedVR2(t, name, true, nil).Check(t)
			if c := runSeedVR2(t, name, false, nil); c.First() != "" {
				t.Errorf("%s without hooks: off by %v", name, c.Differences)
			}
		}
	})
}

// TestSeedVR2Faults checks that the comparison finds the first module with a mistake.
func TestSeedVR2Faults(t *testing.T) {
	for fault, c := range map[string]struct {
		network, first string
		change         func(*NaDiT, *SeedVR2Sequence)
	}{
		"window shift off by one": {"3b", "transformer.blocks.1.attn.proj_out.vid", func(m *NaDiT, s *SeedVR2Sequence) {
			rows, columns := spans(s.h, 6, 0.5), spans(s.w, 9, 0.5)
			for i := range rows[1:] {
				rows[i][1]++
				rows[i+1][0]++
			}
			s.windows[1] = m.layOut(rows, columns, s.w, 5)
		}},
		"no shift": {"7b", "transformer.blocks.1.attn.proj_out.vid", func(_ *NaDiT, s *SeedVR2Sequence) {
			s.windows[1] = s.windows[0]
		}},
		"rotation of unshifted windows": {"7b", "transformer.blocks.1.attn.proj_out.vid", func(_ *NaDiT, s *SeedVR2Sequence) {
			s.windows[1].rope = s.windows[0].rope
		}},
		"rotation in the whole image": {"3b", "transformer.blocks.0.attn.proj_out.vid", func(m *NaDiT, s *SeedVR2Sequence) {
			whole := m.layOut(spans(s.h, s.h, 0), spans(s.w, s.w, 0), s.w, 5)
			s.windows[0].rope = whole.rope
		}},
		"text as in one window": {"3b", "transformer.blocks.0.attn.proj_out.txt", func(_ *NaDiT, s *SeedVR2Sequence) {
			s.windows[0].count = 1
		}},
	} {
		mlxtest.Do(t, func() {
			found := runSeedVR2(t, c.network, true, c.change)
			if first := found.First(); first != c.first || !(found.Differences[first] > 1e-3) {
				t.Errorf("%s: first found in %q (off by %.2g), expected %s", fault, first, found.Differences[first], c.first)
			}
			if !(found.Differences["transformer"] > 1e-4) {
				t.Errorf("%s: the output is off by %.2g only", fault, found.Differences["transformer"])
			}
		})
	}
}

// TestSeedVR2Windows checks the sizes of windows of published networks: those of a 720p video, whatever the size of the image.
func TestSeedVR2Windows(t *testing.T) {
	c := DefaultNaDiTConfig()
	for _, test := range []struct{ h, w, height, width int }{
		{45, 80, 15, 27}, {128, 128, 20, 20}, {256, 256, 20, 20}, {20, 20, 20, 20}, {1, 3600, 1, 1200},
	} {
		if height, width := c.windowSizes(test.h, test.w); height != test.height || width != test.width {
			t.Errorf("%dx%d tokens: windows of %dx%d, expected %dx%d", test.h, test.w, height, width, test.height, test.width)
		}
	}
	mlxtest.Same(t, "shifted", spans(14, 9, 0.5), [][2]int{{0, 4}, {4, 13}, {13, 14}})
	mlxtest.Same(t, "of one window", spans(9, 9, 0.5), [][2]int{{0, 9}})
	mlxtest.Same(t, "not shifted", spans(14, 5, 0), [][2]int{{0, 5}, {5, 10}, {10, 14}})
}

// TestSeedVR2PublishedSize checks the number of parameters of the published files in float16, which have 6.78 and 16.5 GB.
func TestSeedVR2PublishedSize(t *testing.T) {
	small, large := DefaultNaDiTConfig(), DefaultNaDiTConfig()
	large.VidDim, large.Heads, large.NumLayers, large.MMLayers, large.MLPDim = 3072, 24, 36, 36, 4*3072
	large.MLPType, large.RopeType, large.RopeDim, large.VidOutNorm = "normal", "rope3d", 64, false
	for _, test := range []struct {
		config NaDiTConfig
		size   string
	}{{small, "6.78"}, {large, "16.48"}} {
		n := 0
		for _, p := range nn.Parameters(NewNaDiT(test.config)) {
			n += mlxtest.Size(p.Stored())
		}
		if size := fmt.Sprintf("%.2f", 2*float64(n)/1e9); size != test.size {
			t.Errorf("%d parameters: %s GB, expected %s", n, size, test.size)
		}
	}
}
