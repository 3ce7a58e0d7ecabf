package gomflux

import (
	"cmp"
	"context"
	"image"
	"math"
	"math/rand/v2"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
)

// RefineOptions describe how [Model.Refine] generates an image again.
type RefineOptions struct {
	// Strength is how much is generated anew, as strength in diffusers: 1 - Options.ImageStrength. It is above 0 and
	// below 1, and 0 stands for 0.25.
	Strength float64
	// Tile is the largest height and width of a part that is generated at once, in pixels. 0 stands for the model's
	// default size.
	Tile int
	// Overlap is how many pixels of two tiles are blended. 0 stands for an eighth of Tile.
	Overlap int
}

// EnlargeOptions describe how a generated image is enlarged, see Options.Enlarge.
type EnlargeOptions struct {
	// Upscaler is a name for [OpenUpscaler]. "" stands for [DefaultUpscaler].
	Upscaler string
	// UpscaleOptions are those of [Upscaler.Upscale].
	UpscaleOptions
	// Refine, if set, is how the enlarged image is generated again, as [Model.Refine], with the prompt and the seed of
	// the image.
	Refine *RefineOptions
}

// check returns the errors that are known before an image is generated.
func (e *EnlargeOptions) check() error {
	if e == nil {
		return nil
	}
	if e.Refine != nil {
		if _, err := e.Refine.strength(); err != nil {
			return err
		}
	}
	if e.Upscaler == Lanczos {
		return nil
	}
	found, err := catalog.FindUpscaler(cmp.Or(e.Upscaler, DefaultUpscaler))
	if err != nil {
		return err
	}
	n, _, err := component.DeclareUpscaler(&component.Folder{FS: found.FS, Points: &hooks.Points{}}, component.Upscalers)
	if err == nil && e.Scale > float64(n.Scale()) {
		err = scaleError(e.Scale, n.Scale())
	}
	return err
}

// enlarge enlarges results as the options ask for.
func (m *Model) enlarge(ctx context.Context, o *Options, results []*Result) error {
	if o.Enlarge == nil {
		return nil
	}
	u, err := OpenUpscaler(ctx, cmp.Or(o.Enlarge.Upscaler, DefaultUpscaler), &OpenOptions{Device: m.Device()})
	if err == nil {
		defer u.Close()
	}
	for _, r := range results {
		upscale := o.Enlarge.UpscaleOptions
		if upscale.Progress == nil {
			upscale.Progress = o.Progress
		}
		var img image.Image
		if err == nil {
			img, err = u.Upscale(ctx, r.Pixels(), &upscale)
		}
		if o.Enlarge.Refine != nil && m.shares(o) {
			err = m.group.agree(err) // the others are about to refine it
		}
		if err != nil {
			return err
		}
		r.set(straight(img))
		if o.Enlarge.Refine != nil {
			again := *o
			again.Seed, again.Mask, again.Inpaint, again.References, again.Latents = &r.Settings.Seed, nil, InpaintOptions{}, nil, Latents{}
			again.Prompt, again.Enhance = r.Settings.Prompt, nil
			refined, err := m.Refine(ctx, img, again, *o.Enlarge.Refine)
			if err != nil {
				return err
			}
			r.Image, r.Transparent = refined.Image, refined.Transparent
			r.add(refined)
			r.Settings.Refine, _ = o.Enlarge.Refine.strength()
		}
		size := r.Image.Rect.Size()
		r.Settings.Upscaler, r.Settings.UpscaledWidth, r.Settings.UpscaledHeight = catalog.TildePath(u.name), size.X, size.Y
	}
	return nil
}

// strength returns Strength or its default.
func (r *RefineOptions) strength() (float64, error) {
	s := cmp.Or(r.Strength, 0.25)
	if !(s > 0 && s < 1) {
		return 0, errs.Requestf("refinement of strength %g: must be above 0 and below 1", s)
	}
	return s, nil
}

// Refine generates an image again, in its size, by image-to-image at a low strength: what an enlarged image lacks in
// details is added. Images that are larger than a tile are generated in tiles, each for the whole prompt and with a
// seed of its own, Options.Seed and the numbers after it, and blended in pixels. An image of one tile is that of
// [Model.Generate]. Options.Image, ImageStrength, Height and Width are those of the image; Mask, References and
// Latents must not be set, and OnStep is not called.
func (m *Model) Refine(ctx context.Context, img image.Image, o Options, r RefineOptions) (*Result, error) {
	strength, err := r.strength()
	if err != nil {
		return nil, err
	}
	if o.inpaints() || len(o.References) > 0 || o.Latents.Data != nil {
		return nil, errs.Requestf("refinement: a mask, references and latents do not apply to it")
	}
	multiple := m.Multiple()
	tile, overlap, err := r.tiles(m.Defaults(), multiple)
	if err != nil {
		return nil, err
	}
	if o.Seed == nil {
		seed := uint64(rand.Uint32())
		o.Seed = &seed
	}
	size := img.Bounds().Size()
	whole := padded(img, multiple)
	columns, rows := spans(whole.Bounds().Dx(), tile, overlap), spans(whole.Bounds().Dy(), tile, overlap)
	o.ImageStrength, o.OnStep, o.conversions, o.Enlarge = 1-strength, nil, nil, nil
	full := whole.Bounds().Size()
	b := &blend{full, make([]float32, 4*full.X*full.Y), make([]float32, full.X*full.Y)}
	var all *Result
	report, n := o.Progress, len(columns)*len(rows)
	for i := range n {
		x, y := columns[i%len(columns)], rows[i/len(columns)]
		part, seed := o, *o.Seed+uint64(i)
		part.Image, part.Width, part.Height, part.Seed = cut(whole, image.Rect(x.from, y.from, x.to, y.to)), x.to-x.from, y.to-y.from, &seed
		if report != nil {
			part.Progress = func(p Progress) {
				if p.Phase == PhaseStep {
					p.Step, p.Steps = p.Step+i*p.Steps, n*p.Steps
				}
				report(p)
			}
		}
		result, err := m.Generate(ctx, part)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = result
		} else {
			all.add(result)
		}
		if n > 1 {
			b.add(result.Pixels(), x, y)
		}
	}
	if n > 1 {
		all.set(b.image())
	}
	if all.Image.Rect.Size() != size {
		all.set(cut(all.Pixels(), image.Rectangle{Max: size}))
	}
	all.Settings.Width, all.Settings.Height = size.X, size.Y
	return all, nil
}

// tiles returns the size of tiles and their overlap.
func (r *RefineOptions) tiles(d Defaults, multiple int) (tile, overlap int, err error) {
	tile, overlap = r.Tile, r.Overlap
	if tile == 0 {
		tile = max(d.Height, d.Width)
	}
	tile = tile / multiple * multiple
	if overlap == 0 {
		overlap = tile / 8
	}
	if tile < 1 || overlap < 1 || overlap > tile/2 {
		return 0, 0, errs.Requestf("tiles of %d pixels that overlap by %d: must be %d or more, and overlap by 1 to half of that",
			r.Tile, overlap, multiple)
	}
	return tile, overlap, nil
}

// add adds the times of another tile.
func (r *Result) add(o *Result) {
	r.EncodeTime, r.StepTime, r.DecodeTime = r.EncodeTime+o.EncodeTime, r.StepTime+o.StepTime, r.DecodeTime+o.DecodeTime
	r.StepsRun, r.PeakMemory = r.StepsRun+o.StepsRun, max(r.PeakMemory, o.PeakMemory)
	r.Settings.Seconds += o.Settings.Seconds
}

// set replaces the image.
func (r *Result) set(img *image.NRGBA) {
	r.Image, r.Transparent = picture.Opaque(img), nil
	if !img.Opaque() {
		r.Transparent = img
	}
}

// A span is a tile along one axis, and the pixels that it shares with those before and after.
type span struct{ from, to, before, after int }

// spans divides n pixels into as few tiles as possible that overlap at least by so many pixels. All have the same size.
func spans(n, tile, overlap int) []span {
	if n <= tile {
		return []span{{from: 0, to: n}}
	}
	count := (n - overlap + tile - overlap - 1) / (tile - overlap)
	out := make([]span, count)
	for i := range out {
		from := i * (n - tile) / (count - 1)
		out[i] = span{from: from, to: from + tile}
		if i > 0 {
			shared := out[i-1].to - from
			out[i-1].after, out[i].before = shared, shared
		}
	}
	return out
}

// weight is the share of the tile in pixel i of it: it rises and falls where others overlap.
func (s span) weight(i int) float32 {
	w := float32(1)
	if i < s.before {
		w = float32(i+1) / float32(s.before+1)
	}
	if left := s.to - s.from - i; left <= s.after {
		w = min(w, float32(left)/float32(s.after+1))
	}
	return w
}

// A blend is the weighted sum of tiles, with colours multiplied by alpha.
type blend struct {
	size    image.Point
	sums    []float32 // red, green, blue and alpha
	weights []float32
}

func (b *blend) add(tile image.Image, x, y span) {
	img := straight(tile)
	for row := range y.to - y.from {
		for column := range x.to - x.from {
			w := x.weight(column) * y.weight(row)
			at := (y.from+row)*b.size.X + x.from + column
			p, sum := img.Pix[row*img.Stride+4*column:], b.sums[4*at:4*at+4]
			a := w * float32(p[3])
			for c := range 3 {
				sum[c] += a * float32(p[c])
			}
			sum[3] += a
			b.weights[at] += w
		}
	}
}

func (b *blend) image() *image.NRGBA {
	img := image.NewNRGBA(image.Rectangle{Max: b.size})
	for i, w := range b.weights {
		sum := b.sums[4*i : 4*i+4]
		if sum[3] == 0 {
			continue
		}
		for c := range 3 {
			img.Pix[4*i+c] = uint8(math.Round(float64(sum[c] / sum[3])))
		}
		img.Pix[4*i+3] = uint8(math.Round(float64(sum[3] / w)))
	}
	return img
}

// straight returns an image with colours that are not multiplied by alpha, which starts at 0, 0.
func straight(img image.Image) *image.NRGBA {
	if t := picture.Transparent(img); t != nil && t.Rect.Min == (image.Point{}) {
		return t
	}
	o := picture.Opaque(img)
	return cut((*image.NRGBA)(o), o.Rect) // the same bytes
}

// cut returns a copy of a part of an image, which starts at 0, 0.
func cut(img image.Image, r image.Rectangle) *image.NRGBA {
	from, ok := img.(*image.NRGBA)
	if !ok {
		from = straight(img)
	}
	part := from.SubImage(r).(*image.NRGBA)
	return &image.NRGBA{Pix: pixels.RGBA(part), Stride: 4 * r.Dx(), Rect: image.Rectangle{Max: r.Size()}}
}

// padded returns an image whose sides are multiples: pixels of the edges are repeated.
func padded(img image.Image, multiple int) *image.NRGBA {
	from := straight(img)
	up := func(n int) int { return (n + multiple - 1) / multiple * multiple }
	size := from.Rect.Size()
	if up(size.X) == size.X && up(size.Y) == size.Y {
		return from
	}
	out := image.NewNRGBA(image.Rect(0, 0, up(size.X), up(size.Y)))
	for y := range out.Rect.Dy() {
		for x := range out.Rect.Dx() {
			out.SetNRGBA(x, y, from.NRGBAAt(min(x, size.X-1), min(y, size.Y-1)))
		}
	}
	return out
}
