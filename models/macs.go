package models

import (
	"image"
	"io/fs"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
)

// A MacFit is the estimate of a run on a Mac, with the first settings that fit: weights in the dtype
// of the files, quantized to 8 and to 4 bits, and then a smaller image.
type MacFit struct {
	GiB        int    `json:"memory_gib"` // of the Mac
	Fits       bool   `json:"fits"`       // false if none of the settings does
	Quantize   string `json:"quantize"`   // "" for weights as they are
	Smaller    bool   `json:"-"`          // whether the image is smaller than the model's default
	Width      int    `json:"width"`
	Height     int    `json:"height"`
	LowRAM     bool   `json:"low_ram"` // one text encoder or the transformer in memory at a time
	Peak       int64  `json:"peak_bytes"`
	WorkingSet int64  `json:"working_set_bytes"` // what Metal recommends for all programs together
}

// FitMacs estimates a run with a model's defaults, a prompt of so many tokens, and as few reference
// images as it takes, on Macs with so much memory, in GiB. It needs only the configs of the model, and
// must run on the MLX thread.
func FitMacs(fsys fs.FS, o LoadOptions, tokens int, macs ...int) (fits []MacFit, err error) {
	o.Random, o.headersOnly = &Random{Dtype: checkpoint.BF16, PromptTokens: tokens}, true
	for _, gib := range macs {
		mac := mlx.MacOf(gib)
		o.mac = &mac
		p, err := Load(fsys, o)
		if err != nil {
			return nil, err
		}
		r, err := p.leastRun()
		if err == nil {
			fit := r.fitMac()
			fit.GiB, fit.WorkingSet = gib, int64(mac.WorkingSet)
			fits = append(fits, fit)
		}
		if p.Close(); err != nil {
			return nil, err
		}
	}
	return fits, nil
}

// leastRun returns the run of the defaults, with a prompt and as few images as the model takes.
func (p *Pipeline) leastRun() (*Run, error) {
	request := p.defaultRequest()
	request.Prompt = "a prompt"
	img := image.NewRGBA(image.Rect(0, 0, request.Width, request.Height))
	for range p.LeastReferences() {
		request.References = append(request.References, img)
	}
	request.Inpaint = p.LeastInpaint(img)
	return p.Prepare(request, 1)
}

// fitMac returns the first settings with which the run fits the available memory.
func (r *Run) fitMac() (fit MacFit) {
	available := r.available()
	try := func(quantize string, quarters int) bool {
		fit = MacFit{Quantize: quantize, Smaller: quarters < 4, Width: r.part(r.Width, quarters), Height: r.part(r.Height, quarters)}
		var q *mlx.Quantization
		if quantize != "" {
			q, _ = component.ParseQuantization(quantize, 0) // a name that is valid
		}
		run := r.changed(func(other *Run) { other.Width, other.Height = fit.Width, fit.Height })
		for _, w := range []residency{{}, leastMemory} {
			e := run.estimate(w, q)
			if fit.LowRAM, fit.Peak = e.LowRAM, e.Peak(); fit.Peak <= available {
				fit.Fits = true
				break
			}
		}
		return fit.Fits
	}
	for _, quantize := range []string{"", "8", "4"} {
		if try(quantize, 4) {
			return fit
		}
	}
	for _, quarters := range []int{3, 2} {
		if try("4", quarters) {
			return fit
		}
	}
	return fit
}

// part returns so many quarters of a side of an image, in a size that the model can generate.
func (r *Run) part(side, quarters int) int {
	return max(1, side*quarters/4/r.Multiple()) * r.Multiple()
}
