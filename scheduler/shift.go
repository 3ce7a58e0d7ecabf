package scheduler

// A DynamicShift has the parameters of the shift by the image's size in scheduler_config.json.
type DynamicShift struct {
	BaseShift       float64 `json:"base_shift"`
	MaxShift        float64 `json:"max_shift"`
	BaseImageSeqLen int     `json:"base_image_seq_len"`
	MaxImageSeqLen  int     `json:"max_image_seq_len"`
}

// Mu returns the shift for an image of so many tokens (calculate_shift of diffusers' pipelines).
func (d DynamicShift) Mu(tokens int) float64 {
	m := (d.MaxShift - d.BaseShift) / float64(d.MaxImageSeqLen-d.BaseImageSeqLen)
	return float64(tokens)*m + d.BaseShift - m*float64(d.BaseImageSeqLen)
}

// LinearSigmas returns torch.linspace(1, 1/n, n) in float32.
func LinearSigmas(n int) []float32 { return linspace(float32(1/float64(n)), n) }

// SigmasToZero returns torch.linspace(1, 0, n+1) in float32 without the last one.
func SigmasToZero(n int) []float32 { return linspace(0, n+1)[:n] }

// linspace returns torch.linspace(1, end, n) in float32.
func linspace(end float32, n int) []float32 {
	values := make([]float32, n)
	step := float32(0)
	if n > 1 {
		step = (end - 1) / float32(n-1)
	}
	for i := range values {
		// torch counts from both ends towards the middle
		if i < n/2 || n == 1 {
			values[i] = 1 + step*float32(i)
		} else {
			values[i] = end - step*float32(n-1-i)
		}
	}
	return values
}

// LinearSigmas64 returns numpy.linspace(1, 1/n, n), computed in float64, as float32.
func LinearSigmas64(n int) []float32 {
	sigmas := make([]float32, n)
	end := 1 / float64(n)
	step := 0.0
	if n > 1 {
		step = (end - 1) / float64(n-1)
	}
	for i := range sigmas {
		sigmas[i] = float32(float64(i)*step + 1)
	}
	if n > 1 {
		sigmas[n-1] = float32(end)
	}
	return sigmas
}

// EmpiricalMu returns the shift of FLUX.2 for an image of so many tokens in so many steps
// (compute_empirical_mu of its pipelines): it interpolates between lines that were fitted for 10
// and for 200 steps. Above 4300 tokens it is the value for 200 steps.
func EmpiricalMu(tokens, steps int) float64 {
	at10 := 8.73809524e-05*float64(tokens) + 1.89833333
	at200 := 0.00016927*float64(tokens) + 0.45666666
	if tokens > 4300 {
		return at200
	}
	slope := (at200 - at10) / 190
	return slope*float64(steps) + at200 - 200*slope
}
