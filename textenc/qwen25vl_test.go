package textenc_test

import (
	"fmt"
	"image"
	"image/color"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
)

// testImages returns the images of testdata/make.py.
func testImages() (all []*image.RGBA) {
	for i, size := range [][2]int{{75, 131}, {208, 144}, {41, 30}} {
		height, width := size[0], size[1]
		img := image.NewRGBA(image.Rect(0, 0, width, height))
		for y := range height {
			for x := range width {
				c := color.RGBA{uint8(x * 255 / width), uint8(y * 255 / height), uint8(x*y + 50*i), 255}
				if y >= height/4 && y < height/2 && x >= width/4 && x < width/2 {
					c = color.RGBA{255, 0, uint8(30 * i), 255}
				}
				img.SetRGBA(x, y, c)
			}
		}
		all = append(all, img)
	}
	return all
}

// process converts an image to an input of the vision encoder.
func process(t *testing.T, p *textenc.Qwen2VLImageProcessor, img *image.RGBA) textenc.VisionInput {
	t.Helper()
	size, err := p.Resized(img.Rect.Size())
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.Process(picture.ResizeBicubic(img, size.X, size.Y))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func openProcessor(t *testing.T, folder string) *textenc.Qwen2VLImageProcessor {
	t.Helper()
	fsys, err := checkpoint.OpenFolder("testdata")
	if err != nil {
		t.Fatal(err)
	}
	p, err := textenc.LoadQwen2VLImageProcessor(fsys, folder)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func qwen25VLConfig(t *testing.T, folder string) textenc.Qwen25VLConfig {
	c := textenc.DefaultQwen25VLConfig()
	config(t, folder, &c)
	return c
}

func openQwen25VL(t *testing.T, folder string, vision bool, h how) *textenc.Qwen25VL {
	t.Helper()
	c := qwen25VLConfig(t, folder)
	if h.eps != 0 {
		c.Text.RMSNormEps = h.eps
	}
	m := textenc.NewQwen25VL(c, vision, h.dtype)
	fsys, err := checkpoint.OpenFolder(filepath.Join("testdata", folder))
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	err = nn.Load(m, ck, nn.LoadOptions{
		Name: "text_encoder.model", Points: h.points, Dtype: h.dtype, Prefixes: []string{"model."}, Ignore: m.Unused(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var qwen25VL = []struct {
	folder string
	eps    float64 // a wrong epsilon, which must change the result
}{
	{"qwen25vl-published", 0},
	{"qwen25vl-small", 1e-6},
	{"qwen25vl-whole", 0},
}

// qwenVLRuns lists the runs of a golden, by their number of images.
var qwenVLRuns = map[string]int{"text": 0, "one": 1, "two": 2, "three": 3, "last": 2}

// inputs returns the ids of a run, with as many image tokens as there are features, and its
// images.
func (g golden) inputs(t *testing.T, folder, run string) (ids []int32, images []textenc.VisionInput) {
	t.Helper()
	if qwenVLRuns[run] > 0 {
		p := openProcessor(t, folder)
		for _, i := range g[run+".pictures"].Int32s() {
			images = append(images, process(t, p, testImages()[i]))
		}
	}
	if len(images) != qwenVLRuns[run] {
		t.Fatalf("%s: %d images", run, len(images))
	}
	var c textenc.ImageConfig
	if strings.HasPrefix(folder, "qwen25vl-") {
		config := qwen25VLConfig(t, folder)
		c = &config
	} else {
		config := qwen3VLConfig(t, folder)
		c = &config
	}
	ids, err := c.ExpandImages(g[run+".ids"].Int32s(), images)
	if err != nil {
		t.Fatal(err)
	}
	return ids, images
}

// stride is the distance of the pixels that goldens have.
const stride = 101

func strided(images []textenc.VisionInput) (pixels []float32, grids []int32) {
	var all []float32
	for _, in := range images {
		all = append(all, in.Pixels...)
		grids = append(grids, 1, int32(in.Height), int32(in.Width))
	}
	for i := 0; i < len(all); i += stride {
		pixels = append(pixels, all[i])
	}
	return pixels, grids
}

func TestQwen25VLAgainstTransformers(t *testing.T) {
	for _, m := range qwen25VL {
		t.Run(m.folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				g := readGolden(t, m.folder+"/golden.safetensors")
				exact := openQwen25VL(t, m.folder, true, how{dtype: mlx.Float32})
				half := openQwen25VL(t, m.folder, true, how{dtype: mlx.BFloat16})
				text := openQwen25VL(t, m.folder, false, how{dtype: mlx.Float32})
				for run, n := range qwenVLRuns {
					ids, images := g.inputs(t, m.folder, run)
					want := g[run+".output"]
					got := exact.Forward(ids, images)
					d := off(t, run, got, want)
					t.Logf("%s: %d tokens, float32 is off by %.2g", run, len(ids), d)
					if !(d <= 2e-6) {
						t.Errorf("%s: float32 is off by %.2g", run, d)
					}
					if n == 0 {
						mlxtest.Same(t, "without a vision tower", text.Forward(ids, nil).Floats(), got.Floats())
					} else {
						features, _ := exact.Visual.Forward(images, mlx.Float32)
						d := off(t, "features", features, g[run+".features"])
						t.Logf("%s: features are off by %.2g", run, d)
						if !(d <= 2e-6) {
							t.Errorf("%s: features are off by %.2g", run, d)
						}
					}
					rounded := half.Forward(ids, images)
					d = off(t, run+" in bfloat16", rounded, want)
					t.Logf("%s: bfloat16 is off by %.2g", run, d)
					if rounded.Dtype() != mlx.BFloat16 || !(d <= 0.05) {
						t.Errorf("%s: %v is off by %.2g", run, rounded, d)
					}
				}
				if m.eps != 0 {
					ids, images := g.inputs(t, m.folder, "two")
					wrong := openQwen25VL(t, m.folder, true, how{dtype: mlx.Float32, eps: m.eps}).Forward(ids, images)
					if d := off(t, "output with a wrong epsilon", wrong, g["two.output"]); !(d > 1e-4) {
						t.Errorf("a wrong epsilon changes only %.2g", d)
					}
				}
			})
		})
	}
}

// TestQwen25VLModules checks that every module has the name and the output of transformers'
// module.
func TestQwen25VLModules(t *testing.T) {
	testQwenVLModules(t, "qwen25vl-published", func(h how) func([]int32, []textenc.VisionInput) *mlx.Array {
		return openQwen25VL(t, "qwen25vl-published", true, h).Forward
	})
}

// testQwenVLModules compares the modules of a model that open opens and returns the forward
// pass of.
func testQwenVLModules(t *testing.T, folder string, open func(h how) func([]int32, []textenc.VisionInput) *mlx.Array) {
	mlxtest.Do(t, func() {
		g := readGolden(t, folder+"/golden.safetensors")
		ids, images := g.inputs(t, folder, "last")
		seen := map[string]bool{}
		worst := 0.0
		points := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
			name := tap.FullName()
			want := g[name]
			if want == nil && (tap.Point.Kind == hooks.Inner && strings.HasSuffix(name,
				".unrotated") || tap.Point.Kind == hooks.Output && tap.Point.Key != "") {
				return nil, nil
			}
			if seen[name] = true; want == nil {
				t.Errorf("%s is not in transformers", name)
				return nil, nil
			}
			d := off(t, name, tap.Output, want)
			if worst = max(worst, d); !(d <= 3e-6) {
				t.Errorf("%s is off by %.2g", name, d)
			}
			return nil, nil
		}}
		got := open(how{dtype: mlx.Float32, points: points})(ids, images)
		bare := open(how{dtype: mlx.Float32})(ids, images)
		if d := off(t, "output while observed", got, bare); !(d <= 1e-6) { // fused operations round elsewhere
			t.Errorf("output while observed is off by %.2g", d)
		}
		look := &hooks.Points{Step: -1, Func: func(hooks.Tap) (*mlx.Array, error) { return nil, nil }}
		got = open(how{dtype: mlx.BFloat16, points: look})(ids, images)
		bare = open(how{dtype: mlx.BFloat16})(ids, images)
		mlxtest.Same(t, "output in bfloat16 while observed", got.AsType(mlx.Float32).Floats(), bare.AsType(mlx.Float32).Floats())
		mlxtest.Same(t, folder, slices.Sorted(maps.Keys(seen)), g.modules())
		t.Logf("%d tensors, the worst is off by %.2g", len(seen), worst)
	})
}

// TestQwen25VLPadding checks that no token depends on later ones, so padding can be left out.
func TestQwen25VLPadding(t *testing.T) {
	mlxtest.Do(t, func() {
		const folder = "qwen25vl-small"
		g := readGolden(t, folder+"/golden.safetensors")
		m := openQwen25VL(t, folder, true, how{dtype: mlx.Float32})
		for _, run := range []string{"text", "two"} {
			ids, images := g.inputs(t, folder, run)
			bare := m.Forward(ids, images)
			padded := m.Forward(append(slices.Clone(ids), 39, 39, 1, 39), images)
			if d := off(t, run, padded.Slice(1, 0, len(ids)), bare); !(d <= 1e-6) {
				t.Errorf("%s: with padding off by %.2g", run, d)
			}
		}
	})
}

// TestQwen25VLFloat16 checks that in float16 the residual streams of language model and
// vision encoder hold values of 5e7, which occur in the published models.
func TestQwen25VLFloat16(t *testing.T) {
	mlxtest.Do(t, func() {
		const folder = "qwen25vl-published"
		g := readGolden(t, folder+"/golden.safetensors")
		ids, images := g.inputs(t, folder, "two")
		forward := func(dtype mlx.Dtype, gain float64) (out *mlx.Array, largest map[string]float64) {
			largest = map[string]float64{}
			points := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
				for _, v := range tap.Output.AsType(mlx.Float32).Floats() {
					largest[tap.FullName()] = max(largest[tap.FullName()], math.Abs(float64(v)))
				}
				return nil, nil
			}}
			m := openQwen25VL(t, folder, true, how{dtype: dtype, points: points})
			text, vision := m.LanguageModel.Layers[0].MLP, m.Visual.(*textenc.Qwen25Vision).Blocks[0].MLP.(*textenc.Qwen25VisionMLP)
			for _, l := range []*nn.Linear{text.GateProj, text.UpProj, vision.GateProj, vision.UpProj} {
				w := &l.Weight
				w.Array = w.Times(gain)
			}
			return m.Forward(ids, images), largest
		}
		for _, gain := range []float64{1, 6000} {
			want, _ := forward(mlx.Float32, gain)
			got, largest := forward(mlx.Float16, gain)
			d := off(t, "float16", got, want)
			text, vision := largest["text_encoder.model.language_model.layers.0"], largest["text_encoder.model.visual.blocks.0"]
			t.Logf("float16 is off by %.2g where values reach %.2g and %.2g", d, text, vision)
			if got.Dtype() != mlx.Float32 || !(d <= 2e-2) {
				t.Errorf("%v is off by %.2g", got, d)
			}
			if gain > 1 && !(min(text, vision) >= 5e7) {
				t.Errorf("values reach only %.2g and %.2g", text, vision)
			}
		}
	})
}

func TestQwen25VLPositions(t *testing.T) {
	c := textenc.DefaultQwen25VLConfig()
	c.ImageTokenID = 9
	wide, tall := textenc.VisionInput{Height: 4, Width: 6}, textenc.VisionInput{Height: 6, Width: 2}
	ids, err := c.ExpandImages([]int32{1, 9, 2, 9, 3, 4}, []textenc.VisionInput{wide, tall})
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Same(t, "ids", ids, []int32{1, 9, 9, 9, 9, 9, 9, 2, 9, 9, 9, 3, 4})
	got, err := c.Positions(ids, []textenc.VisionInput{wide, tall})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]int{
		{0, 0, 0},
		{1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 2, 1}, {1, 2, 2}, {1, 2, 3}, // 3 is the longer side
		{4, 4, 4},
		{5, 5, 5}, {5, 6, 5}, {5, 7, 5},
		{8, 8, 8}, {9, 9, 9},
	}
	mlxtest.Same(t, "positions", slices.Concat(got...), slices.Concat(want...))
	if got, err = c.Positions([]int32{1, 9, 9}, nil); err != nil {
		t.Fatal(err)
	}
	mlxtest.Same(t, "positions of text", slices.Concat(got...), []int{0, 0, 0, 1, 1, 1, 2, 2, 2})
}

// TestQwen25VLWindows checks that windows at the right and lower edges are smaller, and that
// no window is empty if they fit exactly.
func TestQwen25VLWindows(t *testing.T) {
	cells, lengths := textenc.Windows([]image.Point{{6, 10}, {4, 4}}, 2, 2)
	mlxtest.Same(t, "cells", cells, []int32{0, 1, 3, 4, 2, 5, 6, 7, 9, 10, 8, 11, 12, 13, 14, 15, 16, 17, 18})
	mlxtest.Same(t, "lengths", lengths, []int{16, 8, 16, 8, 8, 4, 16})
}

func TestQwen25VLBadInputs(t *testing.T) {
	var m, text *textenc.Qwen25VL
	var one []textenc.VisionInput
	var ids []int32
	mlxtest.Do(t, func() {
		const folder = "qwen25vl-small"
		m, text = openQwen25VL(t, folder, true, how{dtype: mlx.Float32}), openQwen25VL(t, folder, false, how{dtype: mlx.Float32})
		ids, one = readGolden(t, folder+"/golden.safetensors").inputs(t, folder, "one")
	})
	short := one[0]
	short.Pixels = short.Pixels[1:]
	odd := textenc.VisionInput{Pixels: make([]float32, 4*96), Height: 4, Width: 1}
	for name, c := range map[string]struct {
		m      *textenc.Qwen25VL
		ids    []int32
		images []textenc.VisionInput
		want   string
	}{
		"no ids":             {m, nil, nil, "no token ids"},
		"no vision tower":    {text, ids, one, "without its vision encoder"},
		"no tokens":          {m, []int32{1, 2}, one, "1 images without image tokens"},
		"too few tokens":     {m, ids[:6], one, "fewer image tokens than the 10 features"},
		"interrupted":        {m, slices.Concat(ids[:6], []int32{1}, ids[6:]), one, "fewer image tokens than the 10 features"},
		"too many tokens":    {m, append(slices.Clone(ids), 37), one, "more image tokens than the images have features"},
		"too few pixels":     {m, ids, []textenc.VisionInput{short}, "3839 values for an image of 10x4 patches, expected 96 for each"},
		"no merged patches":  {m, []int32{37}, []textenc.VisionInput{odd}, "an image of 1x4 patches, expected multiples of 2"},
		"no patches":         {m, []int32{37}, []textenc.VisionInput{{}}, "an image of 0x0 patches"},
		"outside vocabulary": {m, []int32{1, 40}, nil, "token id 40"},
	} {
		t.Run(name, func(t *testing.T) {
			err := mlxtest.Try(func() { c.m.Forward(c.ids, c.images) })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v, expected %q", err, c.want)
			}
		})
	}
	c := qwen25VLConfig(t, "qwen25vl-small")
	if _, err := c.ExpandImages([]int32{37, 1, 37}, one); err == nil || !strings.Contains(err.Error(),
		"2 image tokens in the prompt for 1 images") {
		t.Errorf("found %v", err)
	}
}

func TestQwen2VLImageProcessorAgainstTransformers(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, folder := range []string{"qwen25vl-published", "qwen25vl-small", "qwen25vl-whole", "qwen3vl-published",
			"qwen3vl-small", "qwen3vl-whole"} {
			g, p := readGolden(t, folder+"/golden.safetensors"), openProcessor(t, folder)
			for run, n := range qwenVLRuns {
				if n == 0 {
					continue
				}
				var images []textenc.VisionInput
				for _, i := range g[run+".pictures"].Int32s() {
					images = append(images, process(t, p, testImages()[i]))
				}
				compareInputs(t, folder+", "+run, images, g[run+".pixels"], g[run+".grids"])
			}
		}
		g := readGolden(t, "qwen2vl-processor.safetensors")
		published, few := textenc.DefaultQwen2VLImageProcessor(), textenc.DefaultQwen2VLImageProcessor()
		least, most, less := 3136, 12845056, 9000
		published.MinPixels, published.MaxPixels, few.MaxPixels = &least, &most, &less
		qwen3VL, half := textenc.DefaultQwen2VLImageProcessor(), []float64{0.5, 0.5, 0.5}
		qwen3VL.PatchSize, qwen3VL.ImageMean, qwen3VL.ImageStd = 16, half, half
		qwen3VL.Size.ShortestEdge, qwen3VL.Size.LongestEdge = 65536, 16777216
		for name, p := range map[string]*textenc.Qwen2VLImageProcessor{"published": &published, "few": &few, "qwen3vl": &qwen3VL} {
			compareSizes(t, name, p, g[name+".sizes"])
			for i, img := range testImages() {
				key := fmt.Sprintf("%s.%d", name, i)
				compareInputs(t, key, []textenc.VisionInput{process(t, p, img)}, g[key+".pixels"], g[key+".grids"])
			}
		}
	})
}

func compareInputs(t *testing.T, what string, images []textenc.VisionInput, pixels, grids *mlx.Array) {
	t.Helper()
	gotPixels, gotGrids := strided(images)
	mlxtest.Same(t, what+": grids", gotGrids, grids.Int32s())
	mlxtest.Same(t, what+": pixels", gotPixels, pixels.Floats())
}

// compareSizes compares the sizes of images with those of smart_resize: rows of height, width,
// and what these become.
func compareSizes(t *testing.T, what string, p *textenc.Qwen2VLImageProcessor, sizes *mlx.Array) {
	t.Helper()
	for row := range slices.Chunk(sizes.Int32s(), 4) {
		size, want := image.Pt(int(row[1]), int(row[0])), image.Pt(int(row[3]), int(row[2]))
		if got, err := p.Resized(size); err != nil || got != want {
			t.Errorf("%s: %v becomes %v, %v, expected %v", what, size, got, err, want)
		}
	}
}

func TestQwen2VLImageProcessorSizes(t *testing.T) {
	p := textenc.DefaultQwen2VLImageProcessor()
	for size, want := range map[image.Point]image.Point{
		{1024, 1024}: {980, 980},  // at most the allowed number of pixels
		{384, 384}:   {392, 392},  // 13.7 units
		{42, 70}:     {56, 56},    // 1.5 and 2.5 units are both 2
		{98, 126}:    {112, 112},  // 3.5 and 4.5 units are both 4
		{10, 10}:     {56, 56},    // at least the allowed number of pixels
		{1, 200}:     {28, 812},   // the narrowest
		{20000, 100}: {14140, 56}, // much wider
	} {
		got, err := p.Resized(size)
		if err != nil || got != want {
			t.Errorf("%v: found %v, %v, expected %v", size, got, err, want)
		}
	}
	for _, size := range []image.Point{{1, 201}, {0, 5}, {5, 0}} {
		if got, err := p.Resized(size); err == nil {
			t.Errorf("%v: found %v, expected an error", size, got)
		}
	}
	if _, err := p.Process(image.NewRGBA(image.Rect(0, 0, 28, 29))); err == nil {
		t.Error("no error for an image of another size")
	}
	c := textenc.DefaultQwen25VLConfig()
	if err := p.Fits(&c); err != nil {
		t.Error(err)
	}
	if p.MergeSize = 3; p.Fits(&c) == nil {
		t.Error("no error for another merge size")
	}
}

// TestQwen2VLImageProcessorPart checks that a sub-image is processed like a copy of it.
func TestQwen2VLImageProcessorPart(t *testing.T) {
	p := textenc.DefaultQwen2VLImageProcessor()
	whole := testImages()[1]
	part := whole.SubImage(image.Rect(5, 7, 5+28, 7+56)).(*image.RGBA)
	alone := picture.Resize(part, 28, 56)
	got, err := p.Process(part)
	if err != nil {
		t.Fatal(err)
	}
	want, err := p.Process(alone)
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Same(t, "pixels", got.Pixels, want.Pixels)
}
