package parity

import (
	"fmt"
	"image"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

const (
	language = "text_encoder.model.language_model"
	words    = language + ".layers.0"
	visual   = "text_encoder.model.visual"
	tower    = visual + ".blocks.0"
)

// qwenJoint is what enters the attention of a block of Qwen-Image before
// rotation, each [1, heads, text+image, dim], and the rotary table.
func qwenJoint(ref lookup) (q, k, v *mlx.Array, rope nn.Rope) {
	q, k, v = streams(ref)
	both := mlx.Concat(0, ref("transformer.pos_embed@1:out.1"), ref("transformer.pos_embed@1")).Split(2, 2)
	return q, k, v, nn.Rope{Cos: both[0].Squeeze(2), Sin: both[1].Squeeze(2)}
}

// jointTable is a rotary table [n, D/2, 2] of the golden's transformer.
func jointTable(positions [][]int) *mlx.Array {
	rope := nn.NewQwenImageRope(positions, []int{2, 2, 4}, 10000)
	return mlx.Concat(2, rope.Cos.ExpandDims(2), rope.Sin.ExpandDims(2))
}

// placed are positions of the golden's pictures, of 1x2 and 2x4 patches.
func placed(at func(picture, h, w, y, x int) []int) [][]int {
	var positions [][]int
	for i, size := range [][2]int{{1, 2}, {2, 4}} {
		for y := range size[0] {
			for x := range size[1] {
				positions = append(positions, at(i, size[0], size[1], y, x))
			}
		}
	}
	return positions
}

func diagonal(n, first int) [][]int {
	var positions [][]int
	for k := range n {
		positions = append(positions, []int{first + k, first + k, first + k})
	}
	return positions
}

// positioned changes the positions [3, 1, T] of a language model's tokens.
func positioned(f func(axis, token int, p [3][]int32) int32) func(*replay, hooks.Tap) *mlx.Array {
	return keyed(language+".rotary_emb", "1", func(x *mlx.Array) *mlx.Array {
		n := x.Dim(2)
		flat := x.Int32s()
		p := [3][]int32{flat[:n], flat[n : 2*n], flat[2*n:]}
		out := make([]int32, 0, 3*n)
		for axis := range 3 {
			for token := range n {
				out = append(out, f(axis, token, p))
			}
		}
		return mlx.FromInt32(out, 3, 1, n)
	})
}

// positionsOf are the positions of a golden's tokens in three dimensions.
func positionsOf(ref lookup) [][]int {
	x := ref(language + ".rotary_emb:in.1").AsType(mlx.Int32)
	n := x.Dim(2)
	flat := x.Int32s()
	positions := make([][]int, n)
	for i := range positions {
		positions[i] = []int{int(flat[i]), int(flat[n+i]), int(flat[2*n+i])}
	}
	return positions
}

// angles are a rotary table of the golden's language model, of positions [axis][token].
func angles(ref lookup, sections []int, theta float64, counted bool) nn.Rope {
	positions := positionsOf(ref)
	if counted {
		for i := range positions {
			positions[i] = []int{i, i, i}
		}
	}
	return nn.NewMRope(positions, sections, theta)
}

func tabled(sections []int, theta float64, counted bool) func(*replay, hooks.Tap) *mlx.Array {
	table := func(part func(nn.Rope) *mlx.Array) func(lookup) *mlx.Array {
		return func(ref lookup) *mlx.Array {
			x := part(angles(ref, sections, theta, counted))
			return mlx.Concat(1, x, x)
		}
	}
	return either(makes(language+".rotary_emb", table(func(r nn.Rope) *mlx.Array { return r.Cos })),
		makes(language+".rotary_emb:out.1", table(func(r nn.Rope) *mlx.Array { return r.Sin })))
}

// A goldenTower is the layout of the golden's vision encoder: three images of 6x4 patches, of
// which 2x2 are merged, in windows of 4x4 patches.
type goldenTower struct {
	windows []int
	order   []int32 // the patches in the order of windows
	rope    nn.Rope // in the order of the image
}

func newGoldenTower(ref lookup) goldenTower {
	const merge, side, features = 2, 2, 4
	var g goldenTower
	var positions [][]int
	grids := ref("vision.grid_thw").AsType(mlx.Int32).Int32s()
	for first := int32(0); len(grids) > 0; grids = grids[3:] {
		rows, columns := int(grids[1])/merge, int(grids[2])/merge
		for cell := range rows * columns {
			for i := range merge * merge {
				positions = append(positions, []int{cell/columns*merge + i/merge, cell%columns*merge + i%merge})
			}
		}
		for top := 0; top < rows; top += side {
			for left := 0; left < columns; left += side {
				before := len(g.order)
				for y := top; y < min(top+side, rows); y++ {
					for x := left; x < min(left+side, columns); x++ {
						for i := range int32(merge * merge) {
							g.order = append(g.order, (first+int32(y*columns+x))*merge*merge+i)
						}
					}
				}
				g.windows = append(g.windows, len(g.order)-before)
			}
		}
		first += int32(rows * columns)
	}
	g.rope = nn.NewRope(positions, []int{features / 2, features / 2}, 10000)
	return g
}

// A turning rotates q or k, of some of the patches.
type turning func(g goldenTower) func(x *mlx.Array, from, to int) *mlx.Array

// towered is attention in the golden's vision encoder over parts of some lengths, windows by
// default, with another scale and rotation.
func towered(spans []int, scale float64, turn turning) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		const heads = 2
		g := newGoldenTower(ref)
		qkv := ref(tower+".attn.qkv").ExpandDims(0).Split(3, -1)
		f := turn(g)
		spans := spans
		if spans == nil {
			spans = g.windows
		}
		var parts []*mlx.Array
		at := 0
		for _, n := range spans {
			get := func(i int) *mlx.Array { return nn.Heads(qkv[i].Slice(1, at, at+n), heads) }
			q, k := f(get(0), at, at+n), f(get(1), at, at+n)
			y := mlx.Attention(q, k, get(2), float32(scale/rootOf(q)), nil)
			parts = append(parts, nn.MergeHeads(y).Squeeze(0))
			at += n
		}
		return mlx.Concat(0, parts...)
	}
}

func mustOpen(folder string) checkpoint.Folder {
	f, err := checkpoint.OpenFolder(folder)
	if err != nil {
		panic(err)
	}
	return f
}

// turnedBy rotates by the positions of patches in the order of windows.
func turnedBy(rotate func(nn.Rope, *mlx.Array) *mlx.Array) turning {
	return func(g goldenTower) func(x *mlx.Array, from, to int) *mlx.Array {
		return func(x *mlx.Array, from, to int) *mlx.Array {
			rows := g.order[from:to]
			return rotate(nn.Rope{Cos: g.rope.Cos.TakeRows(rows), Sin: g.rope.Sin.TakeRows(rows)}, x)
		}
	}
}

// turnedInImage rotates by the positions of patches in the order of the image.
func turnedInImage(g goldenTower) func(x *mlx.Array, from, to int) *mlx.Array {
	return func(x *mlx.Array, from, to int) *mlx.Array {
		return nn.Rope{Cos: g.rope.Cos.Slice(0, from, to), Sin: g.rope.Sin.Slice(0, from, to)}.HalfSplit(x)
	}
}

// bicubicPlain resizes without antialias, as torch's interpolate does by default.
func bicubicPlain(img *image.RGBA, width, height int, a float64) *image.RGBA {
	weight := func(x float64) float64 {
		switch x = math.Abs(x); {
		case x < 1:
			return ((a+2)*x-(a+3))*x*x + 1
		case x < 2:
			return ((a*x-5*a)*x+8*a)*x - 4*a
		}
		return 0
	}
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	w, h := img.Rect.Dx(), img.Rect.Dy()
	for y := range height {
		for x := range width {
			cx, cy := (float64(x)+0.5)*float64(w)/float64(width)-0.5, (float64(y)+0.5)*float64(h)/float64(height)-0.5
			var sum [3]float64
			for j := int(math.Floor(cy)) - 1; j <= int(math.Floor(cy))+2; j++ {
				for i := int(math.Floor(cx)) - 1; i <= int(math.Floor(cx))+2; i++ {
					at := img.PixOffset(min(max(i, 0), w-1), min(max(j, 0), h-1))
					for c := range sum {
						sum[c] += weight(cx-float64(i)) * weight(cy-float64(j)) * float64(img.Pix[at+c])
					}
				}
			}
			for c, v := range sum {
				out.Pix[out.PixOffset(x, y)+c] = uint8(min(max(math.Round(v), 0), 255))
			}
			out.Pix[out.PixOffset(x, y)+3] = 255
		}
	}
	return out
}

// processed are the patches of the golden's picture, in another way.
func processed(resize func(img *image.RGBA, w, h int) *image.RGBA, change func(p *textenc.Qwen2VLImageProcessor)) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		p, err := textenc.LoadQwen2VLImageProcessor(mustOpen("../models/testdata/qwen-edit-plus/model"), "processor")
		if err != nil {
			panic(err)
		}
		x := ref("image.condition")
		img := image.NewRGBA(image.Rect(0, 0, x.Dim(1), x.Dim(0)))
		for i, v := range x.Uint8s() {
			img.Pix[i/3*4+i%3], img.Pix[i/3*4+3] = v, 255
		}
		size, err := p.Resized(img.Rect.Size())
		if err != nil {
			panic(err)
		}
		change(p)
		in, err := p.Process(resize(img, size.X, size.Y))
		if err != nil {
			panic(err)
		}
		return mlx.FromFloat32(in.Pixels, len(in.Pixels))
	}
}

func unchangedProcessor(*textenc.Qwen2VLImageProcessor) {}

// guided is a prediction of step 0, made of the tokens of those for prompt and
// negative prompt.
func guided(f func(p, n *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on("noise_pred@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		h, w := tap.Output.Dim(2)/2, tap.Output.Dim(3)/2
		tokens := func(name string) *mlx.Array { return r.ref.Array(name).Slice(1, 0, h*w) }
		return transformer.Unpack(f(tokens("transformer@0"), tokens("transformer@0#1")), h, w)
	})
}

func lengths(x *mlx.Array) *mlx.Array { return x.Square().Sum(-1).Sqrt() }

// perChannel is a·x + b with numbers for each channel of [1, C, h, w].
func perChannel(x *mlx.Array, a, b []float32) *mlx.Array {
	c := len(a)
	return x.Mul(mlx.FromFloat32(a, 1, c, 1, 1)).Add(mlx.FromFloat32(b, 1, c, 1, 1))
}

var (
	latentsMean = []float32{-0.7571, 0.1075, 1.5508, 0.4134}
	latentsStd  = []float32{2.8184, 1.4541, 0.7083, 2.6052}
)

func over(x []float32) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = 1 / v
	}
	return out
}

// storedIn reads a parameter of the golden model.
func storedIn(component, name string) *mlx.Array {
	return storedAt(filepath.Join("../models/testdata/qwen-edit-plus/model", component), name)
}

// storedAt reads a parameter from the file in a folder.
func storedAt(folder, name string) *mlx.Array {
	files, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil || len(files) != 1 {
		panic(fmt.Sprint(files, err))
	}
	arrays, err := mlx.LoadSafetensors(files[0], []string{name})
	if err != nil {
		panic(err)
	}
	x := arrays[name].AsType(mlx.Float32)
	mlx.Eval(x)
	return x
}

// slicedBy is a causal convolution with another slice of its kernel.
func slicedBy(module string, slice func(w *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on("vae."+module, func(_ *replay, tap hooks.Tap) *mlx.Array {
		w := slice(storedIn("vae", module+".weight"))
		y := tap.Inputs[0].Transpose(0, 2, 3, 1).Conv2d(w.Transpose(0, 2, 3, 1), 1, w.Dim(2)/2)
		y = y.Add(storedIn("vae", module+".bias"))
		return y.Transpose(0, 3, 1, 2)
	})
}

// modulatedBy are the parts of the image's modulation in the golden, by token
// [1, L, dim], or all of the step's time.
func modulatedBy(ref lookup, indexed bool) []*mlx.Array {
	rows := ref(double + ".img_mod@1")
	index := ref(double + "@1:in.modulate_index").AsType(mlx.Int32).Int32s()
	if !indexed {
		clear(index)
	}
	return rows.TakeRows(index).ExpandDims(0).Split(6, -1)
}

func textParts(ref lookup) []*mlx.Array { return parts(ref, double+".txt_mod@1", 6) }

var qwenFaults = []fault{
	// text encoder
	{name: "qwen: positions of tokens in one dimension", dump: "qwen-inner",
		bug:   positioned(func(_, token int, _ [3][]int32) int32 { return int32(token) }),
		stage: "text", module: language, hint: "positions"},
	{name: "qwen: text goes on where the tokens of a picture end", dump: "qwen-inner",
		bug: positioned(func(axis, token int, p [3][]int32) int32 {
			if token > 74 && p[0][token] == p[1][token] && p[0][token] == p[2][token] {
				return p[axis][token] + 12
			}
			return p[axis][token]
		}), stage: "text", module: language, hint: "positions"},
	{name: "qwen: rows and columns of tokens swapped", dump: "qwen-inner",
		bug:   positioned(func(axis, token int, p [3][]int32) int32 { return p[[]int{0, 2, 1}[axis]][token] }),
		stage: "text", module: language, hint: "positions"},
	{name: "qwen: another mrope_section", dump: "qwen-inner", bug: tabled([]int{2, 1, 2}, 50000, false), stage: "text",
		module: language + ".rotary_emb", hint: "rope angles"},
	{name: "qwen: table of positions in one dimension", dump: "qwen-inner", bug: tabled([]int{1, 2, 2}, 50000, true), stage: "text",
		module: language + ".rotary_emb", hint: "rope angles"},
	{name: "qwen: theta of the text encoder", dump: "qwen-inner", bug: tabled([]int{1, 2, 2}, 1e6, false), stage: "text",
		module: language + ".rotary_emb", hint: "rope angles"},
	{name: "qwen: RoPE of the text encoder interleaved", dump: "qwen-inner", bug: makes(words+".self_attn:q", func(ref lookup) *mlx.Array {
		return angles(ref, []int{1, 2, 2}, 50000, false).Interleaved(ref(words + ".self_attn:q.unrotated"))
	}), stage: "text", module: words + ".self_attn", hint: "rope layout"},
	{name: "qwen: causal mask missing", dump: "qwen-inner",
		bug: given(words+".self_attn.o_proj", entered(words+".self_attn", func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
			return nn.Attention(q, k, v)
		})), stage: "text", module: words + ".self_attn", hint: "attention mask"},
	{name: "qwen: attention of the text encoder not scaled", dump: "qwen-inner",
		bug: given(words+".self_attn.o_proj", entered(words+".self_attn", func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
			return mlx.CausalAttention(q, k, v, 1)
		})), stage: "text", module: words + ".self_attn", hint: "attention scale"},
	{name: "qwen: gate and up of the text encoder swapped", dump: "qwen-inner",
		bug: given(words+".mlp.down_proj", func(ref lookup) *mlx.Array {
			return ref(words + ".mlp.up_proj").SiLU().Mul(ref(words + ".mlp.gate_proj"))
		}), stage: "text", module: words + ".mlp", hint: "gate and up swapped"},
	{name: "qwen: eps of the text encoder", dump: "qwen-inner", edit: textConfig("rms_norm_eps", 1e-2), stage: "text",
		module: words + ".input_layernorm", hint: "norm eps"},
	{name: "qwen: final norm of the text encoder missing", dump: "qwen-image-ordinary",
		bug: makes("prompt.embeds", func(ref lookup) *mlx.Array {
			x := ref(language + ".layers.1")
			return x.Slice(1, 34, x.Dim(1))
		}), stage: "text", module: "prompt.embeds", hint: "hidden layer"},
	{name: "qwen: prefix of the other template dropped", dump: "qwen-inner", bug: makesLonger("prompt.embeds", language, 34),
		fault: on("prompt.embeds", func(r *replay, _ hooks.Tap) *mlx.Array { return r.ref.Array("prompt.embeds") }),
		stage: "text", module: "prompt.embeds", hint: "dropped prefix"},
	{name: "qwen: another prompt", dump: "qwen-image-ordinary", edit: settings("prompt", "a red square"), stage: "tokenizer",
		module: "prompt.input_ids"},
	// vision tower
	{name: "qwen: window order not undone", dump: "qwen-inner",
		bug:   makes(visual+":out.pooler_output", func(ref lookup) *mlx.Array { return ref(visual + ".merger") }),
		stage: "text", module: visual, hint: "window order"},
	{name: "qwen: patches not in the order of windows", dump: "qwen-inner",
		bug: either(given(tower, func(ref lookup) *mlx.Array { return ref(visual + ".patch_embed") }),
			given(tower+".norm1", func(ref lookup) *mlx.Array { return ref(visual + ".patch_embed") })), stage: "text", module: visual,
		hint: "window order"},
	{name: "qwen: windows ignored", dump: "qwen-inner", bug: given(tower+".attn.proj", towered([]int{72}, 1, turnedBy(nn.Rope.HalfSplit))),
		stage: "text", module: tower + ".attn"},
	{name: "qwen: attention of the vision tower not scaled", dump: "qwen-inner",
		bug: given(tower+".attn.proj", towered(nil, 2, turnedBy(nn.Rope.HalfSplit))), stage: "text", module: tower + ".attn",
		hint: "attention scale"},
	{name: "qwen: RoPE of the vision tower interleaved", dump: "qwen-inner",
		bug:   given(tower+".attn.proj", towered(nil, 1, turnedBy(nn.Rope.Interleaved))),
		stage: "text", module: tower + ".attn"},
	{name: "qwen: positions of the vision tower not in the order of windows", dump: "qwen-inner",
		bug:   given(tower+".attn.proj", towered(nil, 1, turnedInImage)),
		stage: "text", module: tower + ".attn"},
	{name: "qwen: rotation of q missing in the vision tower", dump: "qwen-inner", bug: makes(tower+".attn:q", func(ref lookup) *mlx.Array {
		n := ref(tower + ".attn:q").Dim(2)
		return nn.Heads(ref(tower+".attn.qkv").Slice(1, 0, 8).Slice(0, 0, n).ExpandDims(0), 2)
	}), stage: "text", module: tower + ".attn", hint: "rope layout"},
	{name: "qwen: merged patches column by column", dump: "qwen-inner", bug: given(visual+".merger.mlp", func(ref lookup) *mlx.Array {
		x := ref(visual + ".merger.ln_q")
		return x.Reshape(-1, 2, 2, 8).Transpose(0, 2, 1, 3)
	}), stage: "text", module: visual + ".merger", hint: "interleaved"},
	{name: "qwen: merger's norm missing", dump: "qwen-inner", bug: unchanged(visual + ".merger.ln_q"), stage: "text",
		module: visual + ".merger.ln_q", hint: "does nothing"},
	{name: "qwen: merger's GELU by tanh", dump: "qwen-inner", bug: on(visual+".merger.mlp.1", gelus((*mlx.Array).GELUTanh)), stage: "text",
		module: visual + ".merger.mlp.1", hint: "activation"},
	{name: "qwen: norm of the vision tower takes the mean off", dump: "qwen-inner",
		bug: on(tower+".norm1", func(_ *replay, tap hooks.Tap) *mlx.Array {
			x := tap.Inputs[0].Array
			return x.LayerNorm(nil, nil, 1e-6).Mul(tap.Output.Div(x.RMSNorm(nil, 1e-6)).Slice(0, 0, 1))
		}), stage: "text", module: tower + ".norm1", hint: "norm kind"},
	{name: "qwen: residual of the vision tower missing", dump: "qwen-inner",
		bug:   given(tower+".norm2", func(ref lookup) *mlx.Array { return ref(tower + ".attn") }),
		stage: "text", module: tower, hint: "another tensor"},
	{name: "qwen: windows of another size", dump: "qwen-inner", edit: func(t *testing.T, model, _ string) {
		editedIn(t, model+"/text_encoder/config.json", "vision_config", "window_size", 24)
	}, stage: "text", module: visual, hint: "window order"},
	// image processor
	{name: "qwen: image_std of a config", dump: "qwen-inner", edit: func(t *testing.T, model, _ string) {
		editedIn(t, model+"/processor/processor_config.json", "image_processor", "image_std", []float64{0.5, 0.5, 0.5})
	}, stage: "text", module: "vision.pixel_values", hint: "normalisation"},
	{name: "qwen: bicubic without antialias", dump: "qwen-inner",
		bug: makes("vision.pixel_values", processed(func(img *image.RGBA, w, h int) *image.RGBA {
			return bicubicPlain(img, w, h, -0.75)
		}, unchangedProcessor)), stage: "text", module: "vision.pixel_values", hint: "resampling"},
	{name: "qwen: pictures resized by Lanczos for the vision tower", dump: "qwen-inner",
		bug:   makes("vision.pixel_values", processed(picture.Resize, unchangedProcessor)),
		stage: "text", module: "vision.pixel_values", hint: "resampling"},
	{name: "qwen: pixels from -1 to 1", dump: "qwen-inner",
		bug: makes("vision.pixel_values", processed(picture.ResizeBicubic, func(p *textenc.Qwen2VLImageProcessor) {
			p.ImageMean, p.ImageStd = []float64{0.5, 0.5, 0.5}, []float64{0.5, 0.5, 0.5}
		})), stage: "text", module: "vision.pixel_values", hint: "normalisation"},
	{name: "qwen: mean and std of blue, green, red", dump: "qwen-inner",
		bug: makes("vision.pixel_values", processed(picture.ResizeBicubic, func(p *textenc.Qwen2VLImageProcessor) {
			slices.Reverse(p.ImageMean)
			slices.Reverse(p.ImageStd)
		})), stage: "text", module: "vision.pixel_values", hint: "normalisation"},
	{name: "qwen: patches of frame, channel, y, x", dump: "qwen-inner", bug: makes("vision.pixel_values", func(ref lookup) *mlx.Array {
		return ref("vision.pixel_values").Reshape(-1, 3, 2, 16).Transpose(0, 2, 1, 3)
	}), stage: "text", module: "vision.pixel_values", hint: "interleaved"},
	{name: "qwen: patches row by row", dump: "qwen-inner", bug: makes("vision.pixel_values", func(ref lookup) *mlx.Array {
		return ref("vision.pixel_values").Reshape(3, 6, 2, 2, 96).Transpose(0, 2, 1, 3, 4)
	}), stage: "text", module: "vision.pixel_values", hint: "interleaved"},
	{name: "qwen: another size of the copy that the text encoder sees", dump: "qwen-inner", edit: modelIndex("condition_image_size", 1000),
		stage: "tokenizer", module: "prompt.input_ids"},
	// transformer
	{name: "qwen: odd sides centred the other way", dump: "qwen-inner", bug: makes("transformer.pos_embed@1", func(lookup) *mlx.Array {
		return jointTable(placed(func(i, h, w, y, x int) []int { return []int{i, y - h/2, x - w/2} }))
	}), stage: "step 1", module: "transformer.pos_embed@1", hint: "rope angles"},
	{name: "qwen: pictures not counted", dump: "qwen-inner", bug: makes("transformer.pos_embed@1", func(lookup) *mlx.Array {
		return jointTable(placed(func(_, h, w, y, x int) []int { return []int{0, y - (h - h/2), x - (w - w/2)} }))
	}), stage: "step 1", module: "transformer.pos_embed@1", hint: "rope angles"},
	{name: "qwen: text begins behind the whole side", dump: "qwen-inner",
		bug:   makes("transformer.pos_embed@1:out.1", func(lookup) *mlx.Array { return jointTable(diagonal(43, 4)) }),
		stage: "step 1", module: "transformer.pos_embed@1", hint: "rope angles"},
	{name: "qwen: text begins at 0", dump: "qwen-inner",
		bug:   makes("transformer.pos_embed@1:out.1", func(lookup) *mlx.Array { return jointTable(diagonal(43, 0)) }),
		stage: "step 1", module: "transformer.pos_embed@1", hint: "rope angles"},
	{name: "qwen: RoPE half-split", dump: "qwen-inner",
		bug:   makes(double+".attn@1:q", halfSplitQ(qwenJoint)),
		stage: "step 1", module: double + ".attn@1", hint: "rope layout"},
	{name: "qwen: image before text, tables of text before image", dump: "qwen-inner",
		bug:   given(double+".attn.to_out.0@1", imageFirst(qwenJoint)),
		stage: "step 1", module: double + ".attn@1", hint: "order of streams"},
	{name: "qwen: text and image do not see each other", dump: "qwen-inner",
		bug: given(double+".attn.to_add_out@1", textAlone(qwenJoint)), stage: "step 1", module: double + ".attn@1", hint: "one stream"},
	{name: "qwen: attention scale missing", dump: "qwen-inner",
		fault: onto(double+".attn@1:q", func(x *mlx.Array) *mlx.Array { return x.Times(rootOf(x)) }),
		stage: "step 1", module: double + ".attn@1", hint: "attention scale"},
	{name: "qwen: references modulated as at the step's time", dump: "qwen-inner",
		bug: given(double+".attn@1", func(ref lookup) *mlx.Array {
			m := modulatedBy(ref, false)
			return modulated(ref(double+".img_norm1@1"), m[1], m[0])
		}), stage: "step 1", module: double + "@1", hint: "modulation swapped"},
	{name: "qwen: scale before shift", dump: "qwen-inner", bug: given(double+".attn@1", func(ref lookup) *mlx.Array {
		m := modulatedBy(ref, true)
		return modulated(ref(double+".img_norm1@1"), m[0], m[1])
	}), stage: "step 1", module: double + "@1", hint: "scale and shift swapped"},
	{name: "qwen: attention's shift and scale for the text's MLP", dump: "qwen-inner",
		bug: given(double+".txt_mlp@1", func(ref lookup) *mlx.Array {
			m := textParts(ref)
			return modulated(ref(double+".txt_norm2@1"), m[1], m[0])
		}), stage: "step 1", module: double + "@1", hint: "modulation swapped"},
	{name: "qwen: gate of the text's attention missing", dump: "qwen-inner", bug: given(double+".txt_norm2@1", func(ref lookup) *mlx.Array {
		return ref(double + "@1:in.encoder_hidden_states").Add(ref(double + ".attn@1:out.1"))
	}), stage: "step 1", module: double + "@1", hint: "gate missing"},
	{name: "qwen: residual of the image's MLP missing", dump: "qwen-inner", bug: makes(double+"@1:out.1", func(ref lookup) *mlx.Array {
		return modulatedBy(ref, true)[5].Mul(ref(double + ".img_mlp@1"))
	}), stage: "step 1", module: double + "@1", hint: "missing term"},
	{name: "qwen: exact GELU", dump: "qwen-inner", bug: makes(double+".img_mlp.net.0@1",
		func(ref lookup) *mlx.Array { return ref(double + ".img_mlp.net.0.proj@1").GELU() }),
		stage: "step 1", module: double + ".img_mlp.net.0@1", hint: "activation"},
	{name: "qwen: zero_cond_t off", dump: "qwen-inner", edit: config("transformer", "zero_cond_t", false), stage: "step 0",
		module: "transformer@0"},
	{name: "qwen: sigma for the timestep", dump: "qwen-inner",
		bug: on("transformer.time_text_embed.time_proj@1", func(r *replay, _ hooks.Tap) *mlx.Array {
			return mlx.Concat(0, nn.TimestepEmbedding(r.ref.Array("sigmas").Floats()[1], 256), nn.TimestepEmbedding(0, 256))
		}), stage: "step 1", module: "transformer.time_text_embed.time_proj@1", hint: "sigma for timestep"},
	{name: "qwen: time of references", dump: "qwen-inner",
		bug: makes("transformer.time_text_embed.time_proj@1", func(ref lookup) *mlx.Array {
			x := ref("transformer.time_text_embed.time_proj@1").Slice(0, 0, 1)
			return mlx.Concat(0, x, x)
		}), stage: "step 1", module: "transformer.time_text_embed.time_proj@1", hint: "time of references"},
	{name: "qwen: norm of the text missing", dump: "qwen-inner", bug: unchanged("transformer.txt_norm@1"), stage: "step 1",
		module: "transformer.txt_norm@1", hint: "does nothing"},
	{name: "qwen: scale and shift of the last norm swapped", dump: "qwen-inner",
		bug: makes("transformer.norm_out@1", func(ref lookup) *mlx.Array {
			m := parts(ref, "transformer.norm_out.linear@1", 2)
			return modulated(ref("transformer.norm_out.norm@1"), m[1], m[0])
		}), stage: "step 1", module: "transformer.norm_out@1", hint: "scale and shift swapped"},
	{name: "qwen: packed by row, column, channel", dump: "qwen-inner",
		bug:   given("transformer.img_in@1", func(ref lookup) *mlx.Array { return repacked(ref("transformer.img_in@1:in.0")) }),
		stage: "step 1", module: "transformer@1", hint: "packing order"},
	{name: "qwen: stream of the image in half precision", dump: "qwen-inner", bug: onto(double+"@1:out.1", throughHalf), stage: "step 1",
		module: double + "@1", hint: "lost upcast"},
	// guidance
	{name: "qwen: norm rescale missing", dump: "qwen-inner",
		bug:   guided(func(p, n *mlx.Array) *mlx.Array { return n.Add(p.Sub(n).Times(2.5)) }),
		stage: "step 0", module: "noise_pred@0", hint: "norm rescale"},
	{name: "qwen: rescaled as a whole", dump: "qwen-image-ordinary", bug: guided(func(p, n *mlx.Array) *mlx.Array {
		x := n.Add(p.Sub(n).Times(3.5))
		all := func(x *mlx.Array) *mlx.Array { return lengths(x.Reshape(1, 1, -1)) }
		return x.Mul(all(p).Div(all(x)))
	}), stage: "step 0", module: "noise_pred@0", hint: "norm rescale"},
	{name: "qwen: guidance from the prompt's side", dump: "qwen-inner", bug: guided(func(p, n *mlx.Array) *mlx.Array {
		x := p.Add(n.Sub(p).Times(2.5))
		return x.Mul(lengths(p).Div(lengths(x)))
	}), stage: "step 0", module: "noise_pred@0", hint: "guidance"},
	{name: "qwen: no second pass", dump: "qwen-edit", bug: guided(func(p, _ *mlx.Array) *mlx.Array { return p }), stage: "step 0",
		module: "noise_pred@0", hint: "guidance"},
	{name: "qwen: schedule stretched to another end", dump: "qwen-edit-plus3", edit: config("scheduler", "shift_terminal", 0.1),
		stage: "scheduler", module: "sigmas", hint: "schedule end"},
	{name: "qwen: mu of another size", dump: "qwen-image-small", edit: config("scheduler", "base_shift", 0.4), stage: "scheduler",
		module: "sigmas", hint: "schedule shift"},
	// autoencoder
	{name: "qwen: latents_mean and latents_std left out", dump: "qwen-inner",
		bug:   makes("vae.decode.in", func(ref lookup) *mlx.Array { return ref("latents@1") }),
		stage: "vae", module: "vae.decode.in", hint: "latent scaling"},
	{name: "qwen: latents_mean and latents_std swapped", dump: "qwen-inner",
		bug:   makes("vae.decode.in", func(ref lookup) *mlx.Array { return perChannel(ref("latents@1"), latentsMean, latentsStd) }),
		stage: "vae", module: "vae.decode.in", hint: "latent scaling"},
	{name: "qwen: reciprocal of latents_std", dump: "qwen-inner",
		bug:   makes("vae.decode.in", func(ref lookup) *mlx.Array { return perChannel(ref("latents@1"), over(latentsStd), latentsMean) }),
		stage: "vae", module: "vae.decode.in", hint: "latent scaling"},
	{name: "qwen: references not normalised", dump: "qwen-inner",
		bug:   makes("latents.reference", func(ref lookup) *mlx.Array { return ref("vae.encode.out") }),
		stage: "encode", module: "latents.reference", hint: "latent scaling"},
	{name: "qwen: first slice of a causal kernel", dump: "qwen-inner",
		bug:   slicedBy("decoder.conv_in", func(w *mlx.Array) *mlx.Array { return w.Slice(2, 0, 1).Squeeze(2) }),
		stage: "vae", module: "vae.decoder.conv_in"},
	{name: "qwen: all slices of a causal kernel", dump: "qwen-inner",
		bug:   slicedBy("decoder.conv_in", func(w *mlx.Array) *mlx.Array { return w.Sum(2).Squeeze(2) }),
		stage: "vae", module: "vae.decoder.conv_in"},
	{name: "qwen: norm of the autoencoder not times the root of its channels", dump: "qwen-inner",
		bug:   onto("vae.decoder.mid_block.attentions.0.norm", func(x *mlx.Array) *mlx.Array { return x.Over(math.Sqrt(6)) }),
		stage: "vae", module: "vae.decoder.mid_block.attentions.0.norm", hint: "ratio"},
	{name: "qwen: attention of the autoencoder missing", dump: "qwen-inner", bug: unchanged("vae.decoder.mid_block.attentions.0"),
		stage: "vae", module: "vae.decoder.mid_block.attentions.0", hint: "does nothing"},
	{name: "qwen: convolution of the autoencoder without its bias", dump: "qwen-inner",
		edit:  weight("vae", "decoder.conv_in.bias", func(_ []int, v []float32) { clear(v) }),
		stage: "vae", module: "vae.decoder.conv_in", hint: "bias"},
	{name: "qwen: projections of text and image swapped", dump: "qwen-inner",
		edit:  swap("transformer", "transformer_blocks.0.attn.to_v.weight", "transformer_blocks.0.attn.add_v_proj.weight"),
		stage: "step 0", module: "transformer@0"},
	{name: "qwen: pictures in another order", dump: "qwen-edit-plus", edit: settings("references", []string{"second.png", "first.png"}),
		stage: "tokenizer", module: "prompt.input_ids"},
	{name: "qwen: another size of pictures", dump: "qwen-edit-plus", edit: modelIndex("vae_image_size", 5000), stage: "encode",
		module: "image.in"},
}

// makesLonger is a prompt's embeds with more of the beginning than the reference's.
func makesLonger(name, states string, from int) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(r *replay, _ hooks.Tap) *mlx.Array {
		x := r.ref.Array(states)
		return x.Slice(1, from, x.Dim(1)).Squeeze(0)
	})
}

// textConfig changes a setting of a language model that its config has in text_config.
func textConfig(key string, value any) func(*testing.T, string, string) {
	return func(t *testing.T, model, _ string) {
		editedIn(t, model+"/text_encoder/config.json", "text_config", key, value)
	}
}

func modelIndex(key string, value any) func(*testing.T, string, string) {
	return func(t *testing.T, model, _ string) { edited(t, model+"/model_index.json", key, value) }
}
