package textenc

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// ropeParameters are rope_parameters of transformers 5, or rope_scaling of version 4. All but the first
// three are for YaRN (Peng et al. 2023), which stretches the positions that a model was trained with.
type ropeParameters struct {
	RopeTheta *float64 `json:"rope_theta"`
	RopeType  string   `json:"rope_type"`
	Type      string   `json:"type"` // in older files

	Factor          float64  `json:"factor"`
	Original        int      `json:"original_max_position_embeddings"`
	AttentionFactor *float64 `json:"attention_factor"`
	BetaFast        float64  `json:"beta_fast"`
	BetaSlow        float64  `json:"beta_slow"`
	MScale          float64  `json:"mscale"`
	MScaleAllDim    float64  `json:"mscale_all_dim"`
	Truncate        *bool    `json:"truncate"`
	// Llama4Beta is how much the queries of Ministral 3 grow with their positions beyond Original.
	Llama4Beta float64 `json:"llama_4_scaling_beta"`
}

// kind returns the type of rotary embedding.
func (r *ropeParameters) kind() string { return cmp.Or(r.RopeType, r.Type, "default") }

// validate returns an error for values with which the frequencies are no numbers.
func (r *ropeParameters) validate() error {
	switch kind := r.kind(); {
	case kind != "default" && kind != "yarn":
		return fmt.Errorf("rope_type %q, expected default or yarn", kind)
	case kind == "default":
		return nil
	case !(r.Factor >= 1) || math.IsInf(r.Factor, 0) || r.Original < 1:
		return fmt.Errorf("yarn with factor %g and original_max_position_embeddings %d: expected at least 1", r.Factor, r.Original)
	case r.BetaFast < 0 || r.BetaSlow < 0 || r.Llama4Beta < 0:
		return fmt.Errorf("beta_fast %g, beta_slow %g, llama_4_scaling_beta %g: must not be negative", r.BetaFast, r.BetaSlow, r.Llama4Beta)
	}
	return nil
}

// rope returns the table of positions for heads of some size.
func (r *ropeParameters) rope(positions [][]int, size int, theta float64) nn.Rope {
	if r.kind() == "default" {
		return nn.NewRope(positions, []int{size}, theta)
	}
	return nn.NewScaledRope(positions, r.frequencies(size, theta), r.attentionFactor())
}

// attentionFactor is what cos and sin are multiplied by.
func (r *ropeParameters) attentionFactor() float64 {
	of := func(scale float64) float64 { return 1 + 0.1*scale*math.Log(r.Factor) }
	switch {
	case r.AttentionFactor != nil:
		return *r.AttentionFactor
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return of(r.MScale) / of(r.MScaleAllDim)
	}
	return of(1)
}

// frequencies returns those of the pairs of a head, rounded where transformers computes in float32. Pairs
// that rotate often within the original positions keep theirs, those that rotate seldom are slower by the
// factor, and others are between.
func (r *ropeParameters) frequencies(size int, theta float64) []float32 {
	pair := func(rotations float64) float64 {
		return float64(size) * math.Log(float64(r.Original)/(rotations*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := pair(cmp.Or(r.BetaFast, 32)), pair(cmp.Or(r.BetaSlow, 1))
	if r.Truncate == nil || *r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(size-1))
	if low == high {
		high += 0.001
	}
	frequencies := make([]float32, size/2)
	for i := range frequencies {
		slow := min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
		period := float32(math.Pow(theta, float64(float32(2*i)/float32(size))))
		keeps := 1 - slow
		frequencies[i] = 1/(float32(r.Factor)*period)*(1-keeps) + 1/period*keeps
	}
	return frequencies
}

// queryFactors returns what the queries of Ministral 3 are multiplied by, [rows, 1, tokens, 1], nil if that is 1 at all positions.
func (r *ropeParameters) queryFactors(positions [][]int, tokens int) *mlx.Array {
	if r.Llama4Beta == 0 || r.Original < 1 {
		return nil
	}
	factors := make([]float32, len(positions))
	for i, at := range positions {
		factors[i] = float32(1 + r.Llama4Beta*math.Log(float64(1+at[0]/r.Original)))
	}
	if slices.Max(factors) == 1 {
		return nil
	}
	return mlx.FromFloat32(factors, len(positions)/tokens, 1, tokens, 1)
}
