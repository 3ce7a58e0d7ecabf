package bench

import (
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/scheduler"
)

// A benchReport is what bench prints.
type benchReport struct {
	Model           string            `json:"model"`
	Random          bool              `json:"random"`
	Class           string            `json:"class"`
	Device          string            `json:"device"`
	Dtype           string            `json:"dtype"`
	Quantize        string            `json:"quantize"`
	LowRAM          bool              `json:"low_ram"`
	Compiled        bool              `json:"compiled"`
	Tuning          string            `json:"tuning,omitempty"`
	Height          int               `json:"height"`
	Width           int               `json:"width"`
	Steps           int               `json:"steps"`
	Guidance        float64           `json:"guidance"`
	Interval        []float64         `json:"guidance_interval,omitempty"`
	StepCache       string            `json:"step_cache,omitempty"`
	Skipped         []int             `json:"skipped_steps,omitempty"`
	SkippedNegative []int             `json:"skipped_negative_steps,omitempty"`
	PromptTokens    int               `json:"prompt_tokens"`
	ImageTokens     int               `json:"image_tokens"`
	TextTokens      int               `json:"text_tokens,omitempty"`
	References      int               `json:"references"`
	Inpaint         bool              `json:"inpaint,omitempty"`
	Split           string            `json:"split,omitempty"`
	Processes       int               `json:"processes,omitempty"`
	Exchanged       int64             `json:"exchanged_bytes,omitempty"`
	Repeat          int               `json:"repeat"`
	Phases          []benchPhase      `json:"phases"`
	Matmul          float64           `json:"matmul_tflop_per_s"`
	MatmulSize      int               `json:"matmul_size"`
	Weights         int64             `json:"weights_bytes"`
	PeakMemory      int               `json:"peak_memory_bytes"`
	Estimated       int64             `json:"estimated_memory_bytes"`
	Machine         cli.Machine       `json:"machine"`
	Versions        benchVersions     `json:"versions"`
	Profile         *profile.JSONLine `json:"profile,omitempty"`

	stepFLOPs, decodeFLOPs float64 // 0 if unknown
	operations             int     // of a step
	fileBytes              int64   // that were read to load the model
	share                  bool
}

// A benchPhase has the times of a phase.
type benchPhase struct {
	Name       string  `json:"name"`
	First      float64 `json:"first_s"`
	Steady     float64 `json:"steady_s"`
	Min        float64 `json:"min_s"`
	Max        float64 `json:"max_s"`
	TFLOP      float64 `json:"tflop,omitempty"`
	Speed      float64 `json:"tflop_per_s,omitempty"`
	Share      float64 `json:"share_of_matmul,omitempty"`
	Operations int     `json:"operations,omitempty"`
	Read       float64 `json:"gb_per_s,omitempty"` // from files, of load
}

type benchVersions struct {
	Gomflux string `json:"gomflux"`
	MLX     string `json:"mlx"`
	MLXC    string `json:"mlx_c"`
	Go      string `json:"go"`
	BLAS    string `json:"blas"`
}

// newBenchVersions returns the versions, but for that of MLX, which must be open.
func newBenchVersions(lib mlx.Library) benchVersions {
	v := benchVersions{Gomflux: gomflux.Version(), MLXC: mlx.ABI, Go: runtime.Version()}
	if lib.BLAS != "" {
		v.BLAS = filepath.Base(lib.BLAS)
	}
	return v
}

// benchPhases are the phases in the order of the report.
var benchPhases = []string{"load", "read", "token", "encode", "references", "step", "steps", "decode", "image"}

// finish computes the phases from their times.
func (r *benchReport) finish(times map[string][]float64) {
	for _, name := range benchPhases {
		all := times[name]
		if len(all) == 0 {
			continue
		}
		first, later := all[0], all[1:]
		if len(later) == 0 { // the model is loaded once
			later = all
		}
		p := benchPhase{
			Name: name, First: rounded(first, 6), Steady: rounded(tuning.Median(later), 6), Min: rounded(slices.Min(later), 6),
			Max: rounded(slices.Max(later), 6),
		}
		flops := 0.0
		switch name {
		case "load":
			p.Read = rounded(float64(r.fileBytes)/1e9/first, 4)
		case "token":
			p.Operations = r.operations
		case "step":
			flops, p.Operations = r.stepFLOPs, r.operations
		case "decode":
			flops = r.decodeFLOPs
		}
		if flops > 0 {
			p.TFLOP, p.Speed = flops/1e12, flops/1e12/tuning.Median(later)
			p.Share = rounded(p.Speed/r.Matmul, 4)
		}
		r.Phases = append(r.Phases, p)
	}
}

func (r *benchReport) Text(p *ui.Page) {
	if r.share {
		r.shareText(p)
		return
	}
	p.Printf("%s (%s)\n", r.title(r.Model), r.Class)
	r.settingsText(p)
	p.Printf("\n")
	r.resultsText(p)
}

// shareText writes the block for an issue.
func (r *benchReport) shareText(p *ui.Page) {
	name := "a custom model"
	if preset, ok := catalog.FindPreset(r.Model); ok {
		name = preset.Name
	} else if _, ok := catalog.Builtins()[r.Model]; ok {
		name = r.Model
	}
	m, v := r.Machine, r.Versions
	p.Printf("```\ngomflux bench: %s (%s)\n", r.title(name), r.Class)
	r.settingsText(p)
	p.Printf("%s, %d CPUs, %s of memory, %s", m.Name, m.CPUs, units.Bytes(int64(m.Memory)), m.OS)
	if r.Device != mlx.CPU.String() {
		p.Printf("; %s, %s", m.DeviceName, units.Bytes(int64(m.DeviceMemory)))
	}
	p.Printf("\ngomflux %s, MLX %s, mlx-c %s, %s", v.Gomflux, v.MLX, v.MLXC, v.Go)
	if v.BLAS != "" {
		p.Printf(", %s", v.BLAS)
	}
	p.Printf("\n\n")
	r.resultsText(p)
	p.Printf("```\n")
}

// title describes the model by a name.
func (r *benchReport) title(name string) string {
	if r.Random {
		name += " with random weights"
	}
	return name
}

func (r *benchReport) settingsText(p *ui.Page) {
	words := []string{fmt.Sprintf("%s in %s", r.Device, r.Dtype)}
	if r.Quantize != "" {
		words = append(words, "weights quantized to "+r.Quantize)
	}
	if r.LowRAM {
		words = append(words, "low RAM")
	}
	if r.Compiled {
		words = append(words, "compiled")
	} else {
		words = append(words, "not compiled")
	}
	if r.Tuning != "" {
		words = append(words, "tuned ("+r.Tuning+")")
	}
	p.Printf("%s\n", strings.Join(words, ", "))
	if r.TextTokens > 0 {
		p.Printf("%s, %s of text, %s after the first\n", ui.Plural(r.PromptTokens, "prompt token"), ui.Plural(r.TextTokens, "token"),
			ui.Plural(r.Repeat, "run"))
		return
	}
	guidance := fmt.Sprintf("%g", r.Guidance)
	if part := scheduler.Part(r.Interval); part != nil {
		guidance += fmt.Sprintf(" in %s of the steps", part)
	}
	p.Printf("%dx%d, %s, guidance %s, %s, %s", r.Width, r.Height, ui.Plural(r.Steps, "step"), guidance,
		ui.Plural(r.PromptTokens, "prompt token"), ui.Plural(r.ImageTokens, "image token"))
	if r.References > 0 {
		p.Printf(", %s", ui.Plural(r.References, "reference image"))
	}
	if r.Inpaint {
		p.Printf(", inpainting")
	}
	if r.StepCache != "" {
		p.Printf(", step cache %s (%s)", r.StepCache, cli.SkippedText(r.Skipped, r.SkippedNegative))
	}
	if r.Processes > 1 {
		p.Printf(", %d processes, split by %s", r.Processes, r.Split)
	}
	p.Printf(", %s after the first\n", ui.Plural(r.Repeat, "run"))
}

func (r *benchReport) resultsText(p *ui.Page) {
	table := ui.Table{{"", "first", "steady", "min", "max", "TFLOP", "TFLOP/s", "of matmul"}}
	for _, phase := range r.Phases {
		row := []string{phase.Name}
		for _, s := range []float64{phase.First, phase.Steady, phase.Min, phase.Max} {
			row = append(row, fmt.Sprintf("%.4g s", s))
		}
		if phase.Name == "load" {
			row = row[:2]
		}
		if phase.TFLOP > 0 {
			row = append(row, fmt.Sprintf("%.3g", phase.TFLOP), fmt.Sprintf("%.3g", phase.Speed), fmt.Sprintf("%.0f %%", 100*phase.Share))
		}
		table = append(table, row)
	}
	p.Table(table)
	p.Printf("\n")
	line := p.Fields(10)
	if r.MatmulSize > 0 {
		line("matmul", "%.3g TFLOP/s (%dx%d)", r.Matmul, r.MatmulSize, r.MatmulSize)
	}
	above := ""
	if extra := int64(r.PeakMemory) - r.Weights; extra > 0 && !r.LowRAM {
		above = fmt.Sprintf(", %s above the weights", units.Bytes(extra))
	}
	line("memory", "weights %s, peak %s%s, estimated %s", units.Bytes(r.Weights), units.Bytes(int64(r.PeakMemory)), above,
		units.Bytes(r.Estimated))
	if p := r.Phases[0]; p.Read > 0 {
		line("load", "%s, %.3g GB/s", units.Bytes(r.fileBytes), p.Read)
	}
	if r.TextTokens > 0 {
		steady := r.Phases[len(r.Phases)-1].Steady
		line("tokens", "%.4g/s, weights read at %.3g GB/s", 1/steady, float64(r.Weights)/1e9/steady)
	}
	if r.Exchanged > 0 {
		var at []string
		for _, gigabits := range []float64{1, 5, 10, 20, 40, 80} {
			at = append(at, fmt.Sprintf("%.3g s at %g", float64(8*r.Exchanged)/gigabits/1e9, gigabits))
		}
		line("exchange", "%s a step: %s Gb/s", units.Bytes(r.Exchanged), strings.Join(at, ", "))
	}
	if r.operations > 0 {
		line("operations", "%d in a step", r.operations)
	}
}

// rounded rounds to a number of digits after the point.
func rounded(v float64, digits int) float64 {
	shift := math.Pow10(digits)
	return math.Round(v*shift) / shift
}
