package textenc

import (
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"math"
	"path"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Qwen2VLImageProcessor is transformers' class of this name, with the results of its
// torchvision backend.
type Qwen2VLImageProcessor struct {
	DoResize          bool      `json:"do_resize"`
	DoRescale         bool      `json:"do_rescale"`
	DoNormalize       bool      `json:"do_normalize"`
	Resample          int       `json:"resample"`
	RescaleFactor     float64   `json:"rescale_factor"`
	ImageMean         []float64 `json:"image_mean"`
	ImageStd          []float64 `json:"image_std"`
	PatchSize         int       `json:"patch_size"`
	TemporalPatchSize int       `json:"temporal_patch_size"`
	MergeSize         int       `json:"merge_size"`
	MinPixels         *int      `json:"min_pixels"` // overrides Size.ShortestEdge
	MaxPixels         *int      `json:"max_pixels"` // overrides Size.LongestEdge
	Size              struct {
		ShortestEdge int `json:"shortest_edge"` // least number of pixels
		LongestEdge  int `json:"longest_edge"`  // largest number of pixels
	} `json:"size"`
}

// bicubicFilter is PIL.Image.Resampling.BICUBIC.
const bicubicFilter = 3

// DefaultQwen2VLImageProcessor returns the values that transformers uses for fields that
// a config lacks.
func DefaultQwen2VLImageProcessor() Qwen2VLImageProcessor {
	p := Qwen2VLImageProcessor{
		DoResize: true, DoRescale: true, DoNormalize: true, Resample: bicubicFilter, RescaleFactor: 1.0 / 255,
		ImageMean: []float64{0.48145466, 0.4578275, 0.40821073}, ImageStd: []float64{0.26862954, 0.26130258, 0.27577711},
		PatchSize: 14, TemporalPatchSize: 2, MergeSize: 2,
	}
	p.Size.ShortestEdge, p.Size.LongestEdge = 56*56, 28*28*1280
	return p
}

// LoadQwen2VLImageProcessor reads the image processor in a processor's folder, from
// processor_config.json, which version 5 of transformers writes, or from
// preprocessor_config.json. Errors name the file.
func LoadQwen2VLImageProcessor(fsys fs.FS, dir string) (*Qwen2VLImageProcessor, error) {
	p := DefaultQwen2VLImageProcessor()
	var nested struct {
		ImageProcessor *json.RawMessage `json:"image_processor"`
	}
	name := path.Join(dir, "processor_config.json")
	switch err := checkpoint.ReadJSON(fsys, name, &nested); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case nested.ImageProcessor != nil:
		if err := json.Unmarshal(*nested.ImageProcessor, &p); err != nil {
			return nil, fmt.Errorf("%s: image_processor: %w", checkpoint.FullName(fsys, name), err)
		}
	default:
		name = path.Join(dir, "preprocessor_config.json")
		if err := checkpoint.ReadJSON(fsys, name, &p); err != nil {
			return nil, err
		}
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, name), err)
	}
	return &p, nil
}

// Validate returns an error for a config that is not supported.
func (p *Qwen2VLImageProcessor) Validate() error {
	const most = 1 << 28
	if err := p.patches().validate(); err != nil {
		return err
	}
	least, largest := p.pixels()
	switch {
	case !p.DoResize || !p.DoRescale || !p.DoNormalize:
		return errors.New("do_resize, do_rescale and do_normalize must be true")
	case p.Resample != bicubicFilter:
		return fmt.Errorf("resample %d, expected %d (bicubic)", p.Resample, bicubicFilter)
	case !(p.RescaleFactor > 0):
		return fmt.Errorf("rescale_factor %g must be positive", p.RescaleFactor)
	case len(p.ImageMean) != channels || len(p.ImageStd) != channels:
		return fmt.Errorf("image_mean and image_std must have %d numbers", channels)
	case least < 1 || largest < least || largest > most:
		return fmt.Errorf("an image of %d to %d pixels, expected numbers up to %d", least, largest, most)
	}
	for _, s := range p.ImageStd {
		if s == 0 {
			return errors.New("image_std has a zero")
		}
	}
	return nil
}

func (p *Qwen2VLImageProcessor) pixels() (least, most int) {
	least, most = p.Size.ShortestEdge, p.Size.LongestEdge
	if p.MinPixels != nil {
		least = *p.MinPixels
	}
	if p.MaxPixels != nil {
		most = *p.MaxPixels
	}
	return least, most
}

// AtMost returns the processor with a limit of pixels, unless its own is lower.
func (p Qwen2VLImageProcessor) AtMost(pixels int) *Qwen2VLImageProcessor {
	if _, most := p.pixels(); most > pixels {
		p.MaxPixels = &pixels
	}
	return &p
}

func (p *Qwen2VLImageProcessor) patches() visionPatches {
	return visionPatches{p.PatchSize, p.MergeSize, p.TemporalPatchSize}
}

// Fits returns an error if the vision encoder of a config cannot take the processor's patches.
func (p *Qwen2VLImageProcessor) Fits(c ImageConfig) error {
	if ours, theirs := p.patches(), c.imageTokens().patches; ours != theirs {
		return fmt.Errorf("patch_size, merge_size and temporal_patch_size of the image processor are %v, "+
			"but the text encoder's vision_config has %v", ours, theirs)
	}
	return nil
}

// Resized returns the size to which an image must be resized, with a bicubic filter
// (picture.ResizeBicubic), for [Qwen2VLImageProcessor.Process]. It is the image's size
// rounded to whole merged patches, and scaled to the allowed number of pixels if needed.
func (p *Qwen2VLImageProcessor) Resized(size image.Point) (image.Point, error) {
	const aspect = 200
	width, height := float64(size.X), float64(size.Y)
	if size.X < 1 || size.Y < 1 || max(width, height)/min(width, height) > aspect {
		return image.Point{}, fmt.Errorf("has %dx%d pixels, and one side may be at most %d times as long as the other (crop it)",
			size.X, size.Y, aspect)
	}
	unit := p.PatchSize * p.MergeSize
	factor := float64(unit)
	least, most := p.pixels()
	w, h := int(math.RoundToEven(width/factor))*unit, int(math.RoundToEven(height/factor))*unit
	switch {
	case w*h > most:
		beta := math.Sqrt(width * height / float64(most))
		w, h = max(1, int(width/beta/factor))*unit, max(1, int(height/beta/factor))*unit
	case w*h < least:
		beta := math.Sqrt(float64(least) / (width * height))
		w, h = int(math.Ceil(width*beta/factor))*unit, int(math.Ceil(height*beta/factor))*unit
	}
	return image.Pt(w, h), nil
}

// Process converts an opaque image, of the size that [Qwen2VLImageProcessor.Resized]
// returned, to rows of normalised patches. Each patch is repeated for every frame, and
// patches that are merged into one are consecutive.
func (p *Qwen2VLImageProcessor) Process(img *image.RGBA) (VisionInput, error) {
	unit := p.PatchSize * p.MergeSize
	size := img.Rect.Size()
	if size.X < unit || size.Y < unit || size.X%unit != 0 || size.Y%unit != 0 {
		return VisionInput{}, fmt.Errorf("an image of %dx%d pixels for the vision encoder, expected multiples of %d", size.X, size.Y, unit)
	}
	var levels [channels][256]float32
	for c := range levels {
		// float32 throughout, as in torchvision
		scale := float32(1 / p.RescaleFactor)
		mean, std := float32(p.ImageMean[c])*scale, float32(p.ImageStd[c])*scale
		for v := range levels[c] {
			levels[c][v] = (float32(v) - mean) / std
		}
	}
	out := VisionInput{
		Pixels: make([]float32, 0, size.X*size.Y*channels*p.TemporalPatchSize),
		Height: size.Y / p.PatchSize, Width: size.X / p.PatchSize,
	}
	for _, at := range patchPositions([]VisionInput{out}, p.MergeSize) {
		top, left := img.Rect.Min.Y+at[0]*p.PatchSize, img.Rect.Min.X+at[1]*p.PatchSize
		for c := range channels {
			begin := len(out.Pixels)
			for y := range p.PatchSize {
				row := img.Pix[img.PixOffset(left, top+y):]
				for x := range p.PatchSize {
					out.Pixels = append(out.Pixels, levels[c][row[4*x+c]])
				}
			}
			frame := out.Pixels[begin:]
			for range p.TemporalPatchSize - 1 {
				out.Pixels = append(out.Pixels, frame...)
			}
		}
	}
	return out, nil
}
