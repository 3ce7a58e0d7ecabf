package textgen

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// exact returns the distribution of the next token, computed one token after the other.
func exact(s Sampling, logits []float64, prompt, text []int32) []float64 {
	x := slices.Clone(logits)
	counts := map[int32]float64{}
	for _, id := range text {
		counts[id]++
	}
	for id := range x {
		if s.RepetitionPenalty != 0 && (counts[int32(id)] > 0 || slices.Contains(prompt, int32(id))) {
			if x[id] > 0 {
				x[id] /= s.RepetitionPenalty
			} else {
				x[id] *= s.RepetitionPenalty
			}
		}
		x[id] -= s.FrequencyPenalty * counts[int32(id)]
		if counts[int32(id)] > 0 {
			x[id] -= s.PresencePenalty
		}
		x[id] /= s.Temperature
	}
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, x[b]-x[a])) })
	normalize := func(n int) (p []float64) {
		sum := 0.0
		for _, id := range order[:n] {
			sum += math.Exp(x[id])
		}
		for _, id := range order[:n] {
			p = append(p, math.Exp(x[id])/sum)
		}
		return p
	}
	n := len(x)
	if s.TopK > 0 {
		n = min(n, s.TopK)
	}
	if s.TopP > 0 {
		sum, p := 0.0, normalize(n)
		for i := range p {
			if sum >= s.TopP {
				n = i
				break
			}
			sum += p[i]
		}
	}
	if s.MinP > 0 {
		p := normalize(n)
		for n > 1 && p[n-1] < s.MinP*p[0] {
			n--
		}
	}
	all := make([]float64, len(x))
	for i, p := range normalize(n) {
		all[order[i]] = p
	}
	return all
}

// TestSampler compares draws with the exact distribution, by the chi-square statistic.
func TestSampler(t *testing.T) {
	logits := []float64{2, -1, 0.5, 1.5, -0.25, 3, 0, 1, -2, 2.5, -3, 0.75}
	prompt, text := []int32{0, 1, 7}, []int32{5, 5, 9, 4}
	for name, s := range map[string]Sampling{
		"temperature 1":   {Temperature: 1},
		"temperature 0.7": {Temperature: 0.7},
		"top-k":           {Temperature: 1, TopK: 4},
		"top-p":           {Temperature: 1, TopP: 0.8},
		"min-p":           {Temperature: 1, MinP: 0.1},
		"repetition":      {Temperature: 1, RepetitionPenalty: 1.5},
		"presence":        {Temperature: 1, PresencePenalty: 1.2},
		"frequency":       {Temperature: 1, FrequencyPenalty: 0.8},
		"all": {Temperature: 0.8, TopK: 9, TopP: 0.9, MinP: 0.05, RepetitionPenalty: 1.1, PresencePenalty: 0.3,
			FrequencyPenalty: 0.2},
		"top-k above the vocabulary": {Temperature: 1.3, TopK: 64},
		"top-p of one token":         {Temperature: 0.1, TopP: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			want := exact(s, logits, prompt, text)
			const n = 3000
			var drawn []int32
			mlxtest.Do(t, func() {
				row := make([]float32, len(logits))
				for i, x := range logits {
					row[i] = float32(x)
				}
				d := newSampler(s, 7, len(row), prompt)
				defer d.close()
				for _, id := range text {
					d.count(mlx.FromInt32([]int32{id}, 1, 1))
				}
				var draws []*mlx.Array
				x := mlx.FromFloat32(row, 1, len(row)).BroadcastTo(n/10, len(row))
				for range 10 {
					draws = append(draws, d.draw(x))
				}
				drawn = mlx.Concat(0, draws...).Int32s()
			})
			counts := make([]float64, len(logits))
			for _, id := range drawn {
				counts[id]++
			}
			chi, free := 0.0, -1
			for id, p := range want {
				if p == 0 {
					if counts[id] > 0 {
						t.Errorf("token %d, which is filtered, was drawn %g times", id, counts[id])
					}
					continue
				}
				free++
				chi += (counts[id] - n*p) * (counts[id] - n*p) / (n * p)
			}
			// 5 standard deviations of the statistic above its mean
			if limit := float64(free) + 5*math.Sqrt(2*float64(free)); chi > limit {
				t.Errorf("chi-square is %.1f with %d degrees of freedom, expected at most %.1f: %v, expected %.3f",
					chi, free, limit, counts, want)
			}
		})
	}
}

func TestSamplingErrors(t *testing.T) {
	for _, s := range []Sampling{{Temperature: -1}, {Temperature: math.NaN()}, {TopK: -1}, {TopP: 1.5}, {MinP: -0.1}, {PresencePenalty: 3},
		{RepetitionPenalty: -1}, {FrequencyPenalty: math.Inf(1)}} {
		if s.Validate() == nil {
			t.Errorf("%+v is valid", s)
		}
	}
	if err := (Sampling{Temperature: 200, TopP: 5}).Validate(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("two errors: %q", err)
	}
	s := Sampling{Temperature: 0.7, TopK: 64, TopP: 0.95, MinP: 0.05, RepetitionPenalty: 1.05, PresencePenalty: 1.5}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}
