package parity

import (
	"fmt"
	"image"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// This file has the hints about what Qwen-Image has of its own: positions of
// tokens on several axes, a vision tower in windows and its image processor, true
// guidance, statistics of latents, and convolutions over time.

func (s *search) qwen() {
	if !strings.HasPrefix(s.r.pipeline.Class, "QwenImage") {
		return
	}
	for _, look := range []func(){
		s.tokenPositions, s.tokenAngles, s.windowOrder, s.windowAttention, s.processor, s.jointPositions, s.trueGuidance,
		s.latentStatistics, s.causalKernel,
	} {
		if look(); len(s.hints) > 0 {
			return
		}
	}
}

// shapeHints are those about tensors of unlike shapes.
func (r *replay) shapeHints(name string, got, want *mlx.Array) []Hint {
	g, w := got.Shape(), want.Shape()
	switch {
	case strings.HasSuffix(name, ".input_ids") && strings.HasPrefix(r.pipeline.Class, "QwenImageEdit"):
		c := textenc.DefaultQwen25VLConfig()
		if checkpoint.ReadJSON(r.fsys, "text_encoder/config.json", &c) != nil {
			return nil
		}
		of := func(x *mlx.Array) (n int) {
			for _, id := range x.AsType(mlx.Int32).Int32s() {
				if int(id) == c.ImageTokenID {
					n++
				}
			}
			return n
		}
		if ours, ref := of(got), of(want); ours != ref {
			return []Hint{{"picture tokens", fmt.Sprintf("%d tokens are of pictures, in the reference %d: the text encoder is shown other copies, or another number of them", ours, ref)}}
		}
	case strings.HasSuffix(name, ".embeds") && len(g) == 2 && len(w) == 2 && g[1] == w[1]:
		x, y, n := hostTensor("", got), hostTensor("", want), min(g[0], w[0])
		x.v, y.v = x.v[(g[0]-n)*g[1]:], y.v[(w[0]-n)*w[1]:]
		if distance(x, y) <= 1e-3*norm(y) {
			return []Hint{{"dropped prefix", fmt.Sprintf("both end alike, and ours begins %d tokens %s: another part of the template is dropped",
				max(g[0], w[0])-n, map[bool]string{true: "earlier", false: "later"}[g[0] > w[0]])}}
		}
	case strings.Contains(name, "time_text_embed") && len(g) == 2 && len(w) == 2 && g[1] == w[1] && (2*g[0] == w[0] || g[0] == 2*w[0]):
		if g[0] < w[0] {
			return []Hint{{"zero_cond_t", "the reference embeds time 0 too, for the tokens of references (zero_cond_t)"}}
		}
		return []Hint{{"zero_cond_t", "ours embeds time 0 too, for the tokens of references (zero_cond_t), the reference does not"}}
	}
	return nil
}

// tokenPositions compares the positions of a language model's tokens, [axes, 1, T].
func (s *search) tokenPositions() {
	n := s.name
	if n.Point.Kind != hooks.Input || len(s.want.shape) != 3 || !strings.HasPrefix(n.Module, "text_encoder") ||
		!(strings.HasSuffix(n.Module, ".rotary_emb") && n.Point.Key == "1" || n.Point.Key == "position_ids") {
		return
	}
	t := s.want.last()
	axes := len(s.want.v) / t
	column := func(x tensor, token int) []float64 {
		c := make([]float64, axes)
		for a := range c {
			c[a] = x.v[a*t+token]
		}
		return c
	}
	level := func(c []float64) bool { return slices.Min(c) == slices.Max(c) }
	first, shift, counted := -1, 0.0, true
	shifted := true // all that follows, by one number
	for token := range t {
		g, w := column(s.got, token), column(s.want, token)
		counted = counted && level(g) && g[0] == float64(token)
		if first < 0 && !slices.Equal(g, w) {
			first, shift = token, g[0]-w[0]
		}
		for a := range axes {
			shifted = shifted && (first < 0 || g[a]-w[a] == shift)
		}
	}
	g, w := column(s.got, first), column(s.want, first)
	switch {
	case counted:
		s.say("1-D positions", "ours counts the tokens; in the reference those of a picture have a row and a column too, from token %d on (the model has to be told which tokens those are)", first)
	case shifted && level(w):
		s.say("position after a picture", "the text after a picture goes on at %g, in the reference at %g: it begins behind the longer side of the picture", g[0], w[0])
	default:
		s.say("positions", "token %d is at %v (time, row, column), in the reference at %v", first, g, w)
	}
}

// tokenAngles compares the rotary tables of a language model, [1, T, D].
func (s *search) tokenAngles() {
	n := s.name
	if n.Point.Kind != hooks.Output || !strings.HasSuffix(n.Module, "language_model.rotary_emb") || len(s.want.shape) != 3 {
		return
	}
	cos, ok := s.tensor(n.Module, hooks.Point{})
	sin, also := s.tensor(n.Module, hooks.Point{Key: "1"})
	positions, too := s.input(n.Module, "1")
	t, d := s.want.shape[1], s.want.last()
	if !ok || !also || !too || t < 2 || len(positions.v)%t != 0 {
		return
	}
	axes, half := len(positions.v)/t, d/2
	trig, back := math.Cos, math.Acos
	if n.Point.Key == "1" {
		trig, back = math.Sin, math.Asin
	}
	// on says whether a column is that of a frequency with some positions.
	on := func(x tensor, column int, frequency float64, at func(token int) float64) bool {
		for token := range t {
			if math.Abs(x.v[token*d+column]-trig(at(token)*frequency)) > 1e-3 {
				return false
			}
		}
		return true
	}
	// turned says by which axes of the positions a column is turned.
	turned := func(x tensor, column int, frequency float64) (by []bool) {
		for a := range axes {
			by = append(by, on(x, column, frequency, func(token int) float64 { return positions.v[a*t+token] }))
		}
		return by
	}
	counted, another, sections := true, half > 1, true
	for j := range half {
		frequency := math.Atan2(sin.v[d+j], cos.v[d+j]) // token 1 is at 1 on all axes
		ref := turned(s.want, j, frequency)
		same := false
		for a, by := range turned(s.got, j, back(s.got.v[d+j])) {
			same = same || by && ref[a]
		}
		counted = counted && on(s.got, j, frequency, func(token int) float64 { return float64(token) })
		another = another && same
		sections = sections && slices.Contains(turned(s.got, j, frequency), true)
	}
	theta := func(x tensor) float64 { return math.Pow(back(x.v[d+1]), -float64(half)) }
	switch {
	case counted:
		s.say("1-D positions", "ours turns token i by i times the frequencies; in the reference the tokens of a picture have a row and a column too")
	case another:
		s.say("rope theta", "RoPE: ours has a theta of about %.4g, the reference %.4g", theta(s.got), theta(s.want))
	case sections:
		s.say("mrope sections", "time, row and column are laid over other frequencies than the reference's (mrope_section)")
	}
}

// visionLayout is how patches of pictures lie in the tower: the order of the
// patches by windows, the lengths of windows and pictures, and where the
// patches are, as they come.
type visionLayout struct {
	order           []int32
	windows, images []int
	positions       [][]int
	merges          int // patches that are merged into one
}

func (s *search) visionLayout() (*visionLayout, textenc.Qwen25VLVisionConfig) {
	c := textenc.DefaultQwen25VLConfig()
	grids := s.r.ref.Array("vision.grid_thw")
	if grids == nil || grids.Size()%3 != 0 || checkpoint.ReadJSON(s.r.fsys, "text_encoder/config.json", &c) != nil {
		return nil, c.Vision
	}
	merge := c.Vision.SpatialMergeSize
	side := c.Vision.WindowSize / merge / c.Vision.PatchSize
	l := &visionLayout{merges: merge * merge}
	first := 0
	for grid := range slices.Chunk(grids.AsType(mlx.Int32).Int32s(), 3) {
		h, w := int(grid[1]), int(grid[2])
		rows, columns := h/merge, w/merge
		for y := range rows {
			for x := range columns {
				for i := range l.merges {
					l.positions = append(l.positions, []int{y*merge + i/merge, x*merge + i%merge})
				}
			}
		}
		for top := 0; top < rows; top += side {
			for left := 0; left < columns; left += side {
				bottom, right := min(top+side, rows), min(left+side, columns)
				for y := top; y < bottom; y++ {
					for x := left; x < right; x++ {
						for i := range l.merges {
							l.order = append(l.order, int32((first+y*columns+x)*l.merges+i))
						}
					}
				}
				l.windows = append(l.windows, (bottom-top)*(right-left)*l.merges)
			}
		}
		first += rows * columns
		l.images = append(l.images, h*w)
	}
	return l, c.Vision
}

// take are some rows of a matrix.
func (t tensor) take(rows []int32) tensor {
	d := t.last()
	out := tensor{t.name, t.shape, make([]float64, 0, len(t.v))}
	for _, r := range rows {
		out.v = append(out.v, t.v[int(r)*d:(int(r)+1)*d]...)
	}
	return out
}

// windowOrder looks for rows of the vision tower in the order of windows where
// they should come as in the picture, or the other way round.
func (s *search) windowOrder() {
	if !strings.Contains(s.name.Module, ".visual") || len(s.want.shape) != 2 {
		return
	}
	l, _ := s.visionLayout()
	if l == nil {
		return
	}
	order := l.order
	switch rows := s.want.shape[0]; {
	case rows*l.merges == len(order): // merged
		cells := make([]int32, rows)
		for i := range cells {
			cells[i] = order[i*l.merges] / int32(l.merges)
		}
		order = cells
	case rows != len(order):
		return
	}
	back := make([]int32, len(order))
	for i, at := range order {
		back[at] = int32(i)
	}
	switch {
	case s.fits(s.want.take(order)):
		s.say("window order", "the rows of ours are in the order of windows, the reference's as they are in the picture: that order is not undone")
	case s.fits(s.want.take(back)):
		s.say("window order", "the rows of ours are as they are in the picture, the reference's in the order of windows")
	case distance(s.got.sorted(), s.want.sorted()) <= 0.1*s.off:
		s.say("window order", "ours has the reference's rows in another order: windows have another size (window_size), or another order")
	}
}

// sorted are the rows of a matrix in order.
func (t tensor) sorted() tensor {
	rows := t.rows(1)
	slices.SortFunc(rows, slices.Compare[[]float64])
	return tensor{t.name, t.shape, slices.Concat(rows...)}
}

// windowAttention explains attention in the vision tower.
func (s *search) windowAttention() {
	n := s.name
	module := n.Module
	inner := n.Point.Kind == hooks.Inner
	if !inner {
		module = strings.TrimSuffix(module, ".proj")
	}
	if !strings.Contains(module, ".visual.blocks.") || !strings.HasSuffix(module, ".attn") || !inner && (n.Point.Kind != hooks.Input || module == n.Module) {
		return
	}
	l, c := s.visionLayout()
	qkv := s.array(hooks.Name{Module: module + ".qkv", Step: n.Step, Call: n.Call})
	if l == nil || qkv == nil || qkv.Dim(0) != len(l.order) || len(l.order) > 4096 {
		return
	}
	dim := qkv.Dim(1) / 3
	headDim := dim / c.NumHeads
	table := nn.NewRope(l.positions, []int{headDim / 2, headDim / 2}, 10000)
	inOrder := nn.Rope{Cos: table.Cos.TakeRows(l.order), Sin: table.Sin.TakeRows(l.order)}
	part := func(r nn.Rope, from, to int) nn.Rope {
		return nn.Rope{Cos: r.Cos.Slice(0, from, to), Sin: r.Sin.Slice(0, from, to)}
	}
	type rotation struct {
		key, text string
		f         func(x *mlx.Array, from, to int) *mlx.Array
	}
	right := rotation{"", "", func(x *mlx.Array, from, to int) *mlx.Array { return part(inOrder, from, to).HalfSplit(x) }}
	wrong := []rotation{
		{"rope layout", "RoPE: ours has interleaved pairs, the reference half-split pairs", func(x *mlx.Array, from, to int) *mlx.Array { return part(inOrder, from, to).Interleaved(x) }},
		{"rope layout", "RoPE: ours has no rotation, the reference half-split pairs", func(x *mlx.Array, _, _ int) *mlx.Array { return x }},
		{"window order", "RoPE: the positions are those of patches as they are in the picture, the patches are in the order of windows", func(x *mlx.Array, from, to int) *mlx.Array { return part(table, from, to).HalfSplit(x) }},
	}
	heads := func(which, from, to int) *mlx.Array {
		return nn.Heads(qkv.Slice(1, which*dim, (which+1)*dim).Slice(0, from, to).ExpandDims(0), c.NumHeads)
	}
	if inner {
		which := slices.Index([]string{hooks.Q, hooks.K}, n.Point.Key)
		if which < 0 || len(s.want.shape) != 4 {
			return
		}
		length := s.want.shape[2]
		made := func(r rotation) tensor { return hostTensor("", r.f(heads(which, 0, length), 0, length)) }
		if length > len(l.order) || !s.isReference(made(right)) {
			return
		}
		for _, w := range wrong {
			if s.fits(made(w)) {
				s.say(w.key, "%s", w.text)
				return
			}
		}
		return
	}
	scale := 1 / math.Sqrt(float64(headDim))
	attend := func(spans []int, r rotation, scale float64) tensor {
		var parts []*mlx.Array
		at := 0
		for _, length := range spans {
			q, k := r.f(heads(0, at, at+length), at, at+length), r.f(heads(1, at, at+length), at, at+length)
			parts = append(parts, nn.MergeHeads(mlx.Attention(q, k, heads(2, at, at+length), float32(scale), nil)).Squeeze(0))
			at += length
		}
		return hostTensor("", mlx.Concat(0, parts...))
	}
	kinds := []struct {
		text  string
		spans []int
	}{{"over windows", l.windows}, {"over each picture", l.images}, {"over all pictures at once", []int{len(l.order)}}}
	for i, ref := range kinds[:2] {
		if !s.isReference(attend(ref.spans, right, scale)) {
			continue
		}
		for k, ours := range kinds {
			if k != i && s.fits(attend(ours.spans, right, scale)) {
				s.say("windows", "attention goes %s, in the reference %s", ours.text, ref.text)
				return
			}
		}
		for _, w := range wrong {
			if s.fits(attend(ref.spans, w, scale)) {
				s.say(w.key, "%s", w.text)
				return
			}
		}
		if s.fits(attend(ref.spans, right, 1)) {
			s.say("attention scale", "attention: the scale 1/√D is missing")
		}
		return
	}
}

// processor looks at the patches of pictures for the vision tower.
func (s *search) processor() {
	if s.name.Module != "vision.pixel_values" || len(s.want.shape) != 2 {
		return
	}
	p, err := textenc.LoadQwen2VLImageProcessor(s.r.fsys, "processor")
	grids := s.r.ref.Array("vision.grid_thw")
	if err != nil || grids == nil || grids.Size()%3 != 0 {
		return
	}
	var pictures []*image.RGBA
	var sizes []image.Point
	for grid := range slices.Chunk(grids.AsType(mlx.Int32).Int32s(), 3) {
		x := s.r.ref.Array(hooks.Name{Module: "image.condition", Step: -1, Call: len(pictures)}.String())
		if x == nil || x.Ndim() != 3 || x.Dim(2) != 3 {
			return
		}
		img := image.NewRGBA(image.Rect(0, 0, x.Dim(1), x.Dim(0)))
		for i, v := range x.Uint8s() {
			img.Pix[i/3*4+i%3], img.Pix[i/3*4+3] = v, 255
		}
		pictures = append(pictures, img)
		sizes = append(sizes, image.Pt(int(grid[2])*p.PatchSize, int(grid[1])*p.PatchSize))
	}
	made := func(resize func(img *image.RGBA, w, h int) *image.RGBA, p *textenc.Qwen2VLImageProcessor) tensor {
		out := tensor{shape: s.want.shape}
		for i, img := range pictures {
			in, err := p.Process(resize(img, sizes[i].X, sizes[i].Y))
			if err != nil {
				return tensor{}
			}
			for _, v := range in.Pixels {
				out.v = append(out.v, float64(v))
			}
		}
		return out
	}
	n, row := s.want.shape[0], s.want.last()
	right := made(picture.ResizeBicubic, p)
	if !s.isReference(right) {
		if row%3 != 0 {
			return
		}
		// each colour in a column
		colours := func(t tensor) tensor {
			return t.reshape(n, 3, row/3).permute([]int{0, 2, 1}).reshape(n*row/3, 3)
		}
		if got := colours(s.got); distance(affine(colours(s.want), got), got) <= 0.1*s.off {
			s.say("normalisation", "ours is the reference but for a factor and an offset of each colour: image_mean and image_std are others, or rescale_factor")
		}
		return
	}
	normalised := func(mean, std []float64) *textenc.Qwen2VLImageProcessor {
		other := *p
		other.ImageMean, other.ImageStd = mean, std
		return &other
	}
	backwards := func(v []float64) []float64 { w := slices.Clone(v); slices.Reverse(w); return w }
	same := func(v float64) []float64 { return []float64{v, v, v} }
	plain := func(a float64) func(*image.RGBA, int, int) *image.RGBA {
		return func(img *image.RGBA, w, h int) *image.RGBA { return bicubicPlain(img, w, h, a) }
	}
	patch := p.PatchSize * p.PatchSize
	frames := p.TemporalPatchSize
	for _, w := range []struct {
		key, text string
		value     func() tensor
	}{
		{"antialias", "pictures are made smaller by a bicubic filter of 4x4 pixels; the reference's is wider (antialias)", func() tensor { return made(plain(-0.75), p) }},
		{"antialias", "pictures are made smaller by a bicubic filter of 4x4 pixels; the reference's is wider (antialias)", func() tensor { return made(plain(-0.5), p) }},
		{"resampling", "pictures are resized with a Lanczos filter, in the reference with a bicubic one", func() tensor { return made(picture.Resize, p) }},
		{"normalisation", "pixels are from -1 to 1, in the reference they are normalised by image_mean and image_std", func() tensor { return made(picture.ResizeBicubic, normalised(same(0.5), same(0.5))) }},
		{"normalisation", "pixels are from 0 to 1, in the reference they are normalised by image_mean and image_std", func() tensor { return made(picture.ResizeBicubic, normalised(same(0), same(1))) }},
		{"normalisation", "image_mean is not taken off", func() tensor { return made(picture.ResizeBicubic, normalised(same(0), p.ImageStd)) }},
		{"normalisation", "pixels are not divided by image_std", func() tensor { return made(picture.ResizeBicubic, normalised(p.ImageMean, same(1))) }},
		{"normalisation", "image_mean and image_std are those of blue, green, red", func() tensor {
			return made(picture.ResizeBicubic, normalised(backwards(p.ImageMean), backwards(p.ImageStd)))
		}},
		{"patch order", "patches are rows of frame, channel, y, x; the reference's are channel, frame, y, x", func() tensor {
			return right.reshape(n, 3, frames, patch).permute([]int{0, 2, 1, 3}).reshape(n, row)
		}},
		{"patch order", "patches are rows of frame, y, x, channel; the reference's are channel, frame, y, x", func() tensor {
			return right.reshape(n, 3, frames, patch).permute([]int{0, 2, 3, 1}).reshape(n, row)
		}},
		{"merge order", "patches come row by row, in the reference those together that are merged", func() tensor {
			l, _ := s.visionLayout()
			if l == nil || len(l.positions) != n {
				return tensor{}
			}
			var rows []int32
			first := 0
			for i, length := range l.images {
				of := make([]int32, length)
				for k, at := range l.positions[first : first+length] {
					of[at[0]*(sizes[i].X/p.PatchSize)+at[1]] = int32(first + k)
				}
				rows = append(rows, of...)
				first += length
			}
			return right.take(rows)
		}},
	} {
		if s.fits(w.value()) {
			s.say(w.key, "%s", w.text)
			return
		}
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

// jointPositions compares the rotary tables of image and text, [n, D/2, 2].
func (s *search) jointPositions() {
	n := s.name
	if !strings.HasPrefix(n.Module, "transformer.") || len(s.want.shape) != 3 || s.want.last() != 2 {
		return
	}
	var text bool
	switch {
	case strings.HasSuffix(n.Module, ".pos_embed") && n.Point.Kind == hooks.Output:
		text = n.Point.Key == "1"
	case strings.HasPrefix(n.Point.Key, "image_rotary_emb."):
		text = strings.HasSuffix(n.Point.Key, ".1")
	default:
		return
	}
	c := transformer.DefaultQwenImageConfig()
	if checkpoint.ReadJSON(s.r.fsys, "transformer/config.json", &c) != nil {
		return
	}
	var sizes [][2]int // in patches
	add := func(name string) bool {
		x := s.r.ref.Array(name)
		if x == nil || x.Ndim() != 4 {
			return false
		}
		sizes = append(sizes, [2]int{x.Dim(2) / 2, x.Dim(3) / 2})
		return true
	}
	if !add("latents.init") {
		return
	}
	for i := 0; add(hooks.Name{Module: "latents.reference", Step: -1, Call: i}.String()); i++ {
	}
	made := func(positions [][]int) tensor {
		if len(positions) != s.want.shape[0] {
			return tensor{}
		}
		rope := nn.NewQwenImageRope(positions, c.AxesDimsRope, 10000)
		return hostTensor("", mlx.Concat(2, rope.Cos.ExpandDims(2), rope.Sin.ExpandDims(2)))
	}
	type way struct {
		text string
		made func() tensor
	}
	try := func(ref tensor, ways ...way) {
		if !s.isReference(ref) {
			return
		}
		for _, w := range ways {
			if s.fits(w.made()) {
				s.say("positions", "%s", w.text)
				return
			}
		}
	}
	if text {
		from := func(first int) tensor {
			var positions [][]int
			for k := range s.want.shape[0] {
				positions = append(positions, []int{first + k, first + k, first + k})
			}
			return made(positions)
		}
		half, whole, up, target := 0, 0, 0, max(sizes[0][0], sizes[0][1])/2
		for _, size := range sizes {
			side := max(size[0], size[1])
			half, whole, up = max(half, side/2), max(whole, side), max(up, side-side/2)
		}
		try(from(half),
			way{"the text begins at the longer side of a picture, in the reference at half of it", func() tensor { return from(whole) }},
			way{"the text begins at half of the longer side rounded up, in the reference rounded down", func() tensor { return from(up) }},
			way{"the text begins at 0, in the reference behind half of the longer side of a picture", func() tensor { return from(0) }},
			way{"the text begins behind the picture that is made, in the reference behind the largest one", func() tensor { return from(target) }})
		return
	}
	grid := func(place func(picture int, size [2]int, y, x int) []int) tensor {
		var positions [][]int
		for i, size := range sizes {
			for y := range size[0] {
				for x := range size[1] {
					positions = append(positions, place(i, size, y, x))
				}
			}
		}
		return made(positions)
	}
	up := func(i, n int) int { return i - (n - n/2) }
	down := func(i, n int) int { return i - n/2 }
	try(grid(func(p int, n [2]int, y, x int) []int { return []int{p, up(y, n[0]), up(x, n[1])} }),
		way{"an odd side is centred a patch too far: rows and columns begin at -⌊n/2⌋, in the reference at -⌈n/2⌉", func() tensor {
			return grid(func(p int, n [2]int, y, x int) []int { return []int{p, down(y, n[0]), down(x, n[1])} })
		}},
		way{"rows and columns begin at 0, in the reference 0 is the middle (scale_rope)", func() tensor {
			return grid(func(p int, n [2]int, y, x int) []int { return []int{p, y, x} })
		}},
		way{"all pictures have index 0, in the reference they are counted", func() tensor {
			return grid(func(_ int, n [2]int, y, x int) []int { return []int{0, up(y, n[0]), up(x, n[1])} })
		}},
		way{"pictures are counted from 1, in the reference from 0, which is the one that is made", func() tensor {
			return grid(func(p int, n [2]int, y, x int) []int { return []int{p + 1, up(y, n[0]), up(x, n[1])} })
		}},
		way{"all references have index 1, in the reference they are counted", func() tensor {
			return grid(func(p int, n [2]int, y, x int) []int { return []int{min(p, 1), up(y, n[0]), up(x, n[1])} })
		}},
		way{"rows and columns are swapped", func() tensor {
			return grid(func(p int, n [2]int, y, x int) []int { return []int{p, up(x, n[1]), up(y, n[0])} })
		}})
}

// trueGuidance explains how the predictions for prompt and negative prompt become
// one, whose tokens are as long as those for the prompt.
func (s *search) trueGuidance() {
	if s.name.Module != "noise_pred" || s.name.Step < 0 || len(s.want.shape) != 4 {
		return
	}
	h, w := s.want.shape[2]/2, s.want.shape[3]/2
	var both [2]*mlx.Array // tokens
	for call := range both {
		x := s.r.ref.Array(hooks.Name{Module: "transformer", Step: s.name.Step, Call: call}.String())
		if x == nil || x.Ndim() != 3 || x.Dim(2) != 4*s.want.shape[1] || x.Dim(1) < h*w {
			return
		}
		both[call] = x.Slice(1, 0, h*w)
	}
	p, n, scale := both[0], both[1], s.r.ref.Guidance
	length := func(x *mlx.Array) *mlx.Array { return x.Square().Sum(-1).Sqrt() }
	all := func(x *mlx.Array) *mlx.Array { return x.Square().Reshape(1, 1, -1).Sum(-1).Sqrt() }
	mixed := n.Add(p.Sub(n).Times(scale))
	turned := p.Add(n.Sub(p).Times(scale))
	beyond := p.Add(p.Sub(n).Times(scale))
	rescaled := func(x, like *mlx.Array, length func(*mlx.Array) *mlx.Array) *mlx.Array {
		return x.Mul(length(like).Div(length(x)))
	}
	picture := func(x *mlx.Array) tensor { return hostTensor("", transformer.Unpack(x, h, w)) }
	if !s.isReference(picture(rescaled(mixed, p, length))) {
		return
	}
	for _, way := range []struct {
		key, text string
		made      *mlx.Array
	}{
		{"norm rescale", "the guided prediction is not brought back to the length that it has for the prompt, token by token", mixed},
		{"norm rescale", "the guided prediction is brought to the length of that for the negative prompt, in the reference for the prompt", rescaled(mixed, n, length)},
		{"norm rescale", "the guided prediction is rescaled as a whole, in the reference token by token", rescaled(mixed, p, all)},
		{"norm rescale", "the guided prediction is not rescaled, and guidance goes from the prediction for the prompt", beyond},
		{"guidance", "guidance goes from the prediction for the prompt to the negative one, in the reference the other way round", rescaled(turned, p, length)},
		{"guidance", "guidance goes on from the prediction for the prompt, in the reference from that for the negative prompt", rescaled(beyond, p, length)},
		{"guidance", "there is no guidance: ours is the prediction for the prompt", p},
		{"guidance", "ours is the prediction for the negative prompt", n},
	} {
		if s.fits(picture(way.made)) {
			s.say(way.key, "%s", way.text)
			return
		}
	}
}

// latentStatistics looks at latents where they are brought to the autoencoder's
// own scale, and those of pictures the other way.
func (s *search) latentStatistics() {
	var from *mlx.Array
	decoding := s.name.Module == "vae.decode.in"
	switch {
	case decoding:
		for i := 2 * s.r.ref.Steps; i >= 0 && from == nil; i-- {
			from = s.r.ref.Array("latents@" + strconv.Itoa(i))
		}
	case s.name.Module == "latents.reference":
		from = s.r.ref.Array(hooks.Name{Module: "vae.encode.out", Step: -1, Call: s.name.Call}.String())
	}
	var c struct {
		Mean []float64 `json:"latents_mean"`
		Std  []float64 `json:"latents_std"`
	}
	if from == nil || !slices.Equal(from.Shape(), s.want.shape) || len(s.want.shape) != 4 || checkpoint.ReadJSON(s.r.fsys, "vae/config.json", &c) != nil {
		return
	}
	x, channels := hostTensor("", from), s.want.shape[1]
	if len(c.Mean) != channels || len(c.Std) != channels {
		return
	}
	area := s.want.shape[2] * s.want.shape[3]
	made := func(f func(v float64, c int) float64) tensor {
		out := tensor{"", x.shape, make([]float64, len(x.v))}
		for i, v := range x.v {
			out.v[i] = f(v, i/area%channels)
		}
		return out
	}
	to := func(v, mean, std float64) float64 { return v*std + mean }
	away := func(v, mean, std float64) float64 { return (v - mean) / std }
	right, wrong := to, away
	if !decoding {
		right, wrong = away, to
	}
	if !s.isReference(made(func(v float64, i int) float64 { return right(v, c.Mean[i], c.Std[i]) })) {
		return
	}
	for _, w := range []struct {
		text string
		f    func(v float64, i int) float64
	}{
		{"they are left out", func(v float64, _ int) float64 { return v }},
		{"they are used the other way round", func(v float64, i int) float64 { return wrong(v, c.Mean[i], c.Std[i]) }},
		{"latents_mean is left out", func(v float64, i int) float64 { return right(v, 0, c.Std[i]) }},
		{"latents_std is left out", func(v float64, i int) float64 { return right(v, c.Mean[i], 1) }},
		{"latents_std is used as its reciprocal", func(v float64, i int) float64 { return right(v, c.Mean[i], 1/c.Std[i]) }},
		{"latents_mean and latents_std are swapped", func(v float64, i int) float64 { return right(v, c.Std[i], c.Mean[i]) }},
		{"they are in reverse order", func(v float64, i int) float64 { return right(v, c.Mean[channels-1-i], c.Std[channels-1-i]) }},
		{"those of the next channel are used", func(v float64, i int) float64 { return right(v, c.Mean[(i+1)%channels], c.Std[(i+1)%channels]) }},
	} {
		if s.fits(made(w.f)) {
			s.say("latent scaling", "latents_mean and latents_std: %s", w.text)
			return
		}
	}
}

// causalKernel looks for convolutions of a single frame with another slice of
// their kernel than that of the frame itself, the last one.
func (s *search) causalKernel() {
	module, ok := strings.CutPrefix(s.name.Module, "vae.")
	if !ok || s.name.Point != (hooks.Point{}) || len(s.want.shape) != 4 {
		return
	}
	x := s.array(hooks.Name{Module: s.name.Module, Step: -1, Call: s.name.Call, Point: hooks.Point{Kind: hooks.Input, Key: "0"}})
	weight, bias := s.r.parameter("vae", module+".weight"), s.r.parameter("vae", module+".bias")
	if x == nil || weight == nil || bias == nil || weight.Ndim() != 5 || weight.Dim(2) < 2 {
		return
	}
	k := weight.Dim(2)
	made := func(kernel *mlx.Array) tensor {
		y := x.Transpose(0, 2, 3, 1).Conv2d(kernel.Transpose(0, 2, 3, 1), 1, kernel.Dim(2)/2).Add(bias)
		return hostTensor("", y.Transpose(0, 3, 1, 2))
	}
	slice := func(i int) *mlx.Array { return weight.Slice(2, i, i+1).Squeeze(2) }
	if !s.isReference(made(slice(k - 1))) {
		return
	}
	for i := range k - 1 {
		if s.fits(made(slice(i))) {
			s.say("causal kernel", "slice %d of the kernel over time is used; of a single frame it is the last one, %d, that counts", i, k-1)
			return
		}
	}
	if s.fits(made(weight.Sum(2).Reshape(weight.Dim(0), weight.Dim(1), weight.Dim(3), weight.Dim(4)))) {
		s.say("causal kernel", "all %d slices of the kernel over time are added up; the frames before a single one are zeros", k)
	}
}

// parameter reads one of the model, in float32; nil if there is none.
func (r *replay) parameter(dir, name string) *mlx.Array {
	c, err := checkpoint.OpenCheckpoint(r.fsys, path.Clean(dir))
	if err != nil {
		return nil
	}
	defer c.Close()
	t, ok := c.Tensors[name]
	if !ok {
		return nil
	}
	i := slices.IndexFunc(c.Files, func(f *checkpoint.File) bool { return f.Name == t.File })
	if i < 0 {
		i = 0 // the only one
	}
	file, err := c.Files[i].Path()
	if err != nil {
		return nil
	}
	arrays, err := mlx.LoadSafetensors(file, []string{name})
	if err != nil {
		return nil
	}
	x := arrays[name].AsType(mlx.Float32)
	mlx.Eval(x) // while the file is open
	return x
}
