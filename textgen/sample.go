package textgen

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gomflux/gomflux/mlx"
)

// Sampling is how the next token is chosen. Its fields have the names of transformers' GenerationConfig
// and of OpenAI's API, and are applied in this order: penalties, temperature, top-k, top-p, min-p. A
// filter with the value zero is not used.
type Sampling struct {
	// Temperature divides the logits. 0 chooses the most likely token.
	Temperature float64 `json:"temperature"`
	// TopK keeps that many of the most likely tokens, and those that are as likely as the last of them.
	TopK int `json:"top_k"`
	// TopP keeps the most likely tokens whose probabilities reach that sum.
	TopP float64 `json:"top_p"`
	// MinP keeps tokens of at least that part of the largest probability.
	MinP float64 `json:"min_p"`
	// RepetitionPenalty divides the positive logits of tokens in the prompt and the text, and multiplies
	// negative ones.
	RepetitionPenalty float64 `json:"repetition_penalty"`
	// PresencePenalty is subtracted from the logits of tokens in the generated text.
	PresencePenalty float64 `json:"presence_penalty"`
	// FrequencyPenalty is that for each time that a token occurs.
	FrequencyPenalty float64 `json:"frequency_penalty"`
}

// Validate returns an error for a value that is out of range.
func (s Sampling) Validate() error {
	between := func(name string, v, low, high float64) error {
		if !(v >= low && v <= high) {
			return fmt.Errorf("%s %g: must be from %g to %g", name, v, low, high)
		}
		return nil
	}
	var topK error
	if s.TopK < 0 {
		topK = fmt.Errorf("top_k %d: must not be negative", s.TopK)
	}
	return cmp.Or(
		between("temperature", s.Temperature, 0, 100), topK, between("top_p", s.TopP, 0, 1), between("min_p", s.MinP, 0, 1),
		between("repetition_penalty", s.RepetitionPenalty, 0, 100), between("presence_penalty", s.PresencePenalty, -2, 2),
		between("frequency_penalty", s.FrequencyPenalty, -2, 2))
}

// A sampler draws tokens. Its arrays outlive scopes until it is closed.
type sampler struct {
	Sampling
	seed   uint64
	prompt *mlx.Array // [1, V]: 1 for tokens in the prompt; nil without a repetition penalty
	counts *mlx.Array // [1, V]: how often tokens occur in the text; nil without penalties
	drawn  uint64
}

// newSampler returns a sampler for logits of a size, after a prompt.
func newSampler(s Sampling, seed uint64, vocabulary int, prompt []int32) *sampler {
	d := &sampler{Sampling: s, seed: seed}
	repeats := s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1
	if repeats {
		seen := make([]float32, vocabulary)
		for _, id := range prompt {
			if int(id) < vocabulary {
				seen[id] = 1
			}
		}
		d.prompt = mlx.FromFloat32(seen, 1, vocabulary)
		mlx.Keep(d.prompt)
	}
	if repeats || s.PresencePenalty != 0 || s.FrequencyPenalty != 0 {
		d.counts = mlx.Zeros(mlx.Float32, 1, vocabulary)
		mlx.Keep(d.counts)
	}
	return d
}

func (d *sampler) close() {
	for _, a := range []*mlx.Array{d.prompt, d.counts} {
		if a != nil {
			a.Free()
		}
	}
}

// count adds a token [1, 1] of the text to those that are penalized.
func (d *sampler) count(token *mlx.Array) {
	if d.counts == nil {
		return
	}
	old := d.counts
	d.counts = mlx.Scope(func() *mlx.Array {
		ids := mlx.Arange(0, float64(old.Dim(1)), 1, mlx.Int32).ExpandDims(0)
		return old.Add(ids.Equal(token).AsType(mlx.Float32))
	})
	mlx.Keep(d.counts)
	mlx.AsyncEval(d.counts) // so that a long text is no long graph
	old.Free()
}

// draw returns the next token of each row of logits [B, V], int32 [B, 1].
func (d *sampler) draw(logits *mlx.Array) *mlx.Array {
	return mlx.Scope(func() *mlx.Array {
		x := d.penalized(logits)
		if d.Temperature == 0 {
			return x.Argmax(-1).AsType(mlx.Int32)
		}
		d.drawn++
		x = d.filtered(x.Over(d.Temperature))
		return x.Categorical(mlx.Key(mix(d.seed, d.drawn))).AsType(mlx.Int32).ExpandDims(-1)
	})
}

// mix returns the seed of a draw: the output of the generator SplitMix64.
func mix(seed, n uint64) uint64 {
	z := seed + n*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (d *sampler) penalized(x *mlx.Array) *mlx.Array {
	zero := mlx.Scalar(0, mlx.Float32)
	if d.prompt != nil {
		seen := zero.Less(d.prompt.Add(d.counts))
		penalty := mlx.Scalar(d.RepetitionPenalty, mlx.Float32)
		x = mlx.Where(seen, mlx.Where(x.Less(zero), x.Mul(penalty), x.Div(penalty)), x)
	}
	if d.FrequencyPenalty != 0 {
		x = x.Sub(d.counts.Times(d.FrequencyPenalty))
	}
	if d.PresencePenalty != 0 {
		x = x.Sub(zero.Less(d.counts).AsType(mlx.Float32).Times(d.PresencePenalty))
	}
	return x
}

// filtered returns logits [B, V] with those of tokens that the filters remove as -Inf.
func (d *sampler) filtered(x *mlx.Array) *mlx.Array {
	never := mlx.Scalar(math.Inf(-1), mlx.Float32)
	size := x.Dim(-1)
	topK, topP := d.TopK > 0 && d.TopK < size, d.TopP > 0 && d.TopP < 1
	var least *mlx.Array // of the logits that stay
	if topK || topP {
		sorted := x.Sort()
		if topK {
			least = sorted.Slice(-1, size-d.TopK, size-d.TopK+1)
		}
		if topP {
			kept := sorted
			if topK {
				kept = mlx.Where(sorted.Less(least), never, sorted)
			}
			gone := mlx.Scalar(1-d.TopP, mlx.Float32).GreaterEqual(kept.Softmax().CumulativeSum())
			last := sorted.Slice(-1, size-1, size)
			least = mlx.Where(gone, last, kept).Min(-1) // rounding must not remove the last one
		}
	}
	if d.MinP > 0 {
		atLeast := x.Max(-1).Plus(math.Log(d.MinP))
		if least != nil {
			atLeast = atLeast.Maximum(least)
		}
		least = atLeast
	}
	if least == nil {
		return x
	}
	return mlx.Where(x.Less(least), never, x)
}
