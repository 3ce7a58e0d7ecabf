package textenc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A pass is a forward pass of a language model over tokens that follow those in a cache.
type pass struct {
	cache         *Cache // without layers, it keeps nothing
	batch, tokens int    // sequences, and tokens of each
	dtype         mlx.Dtype
	valid         int        // tokens before padding at the end, 0 if there is no such padding
	endAt         int        // the position of all padding at the end, 0 if its positions go on
	padding       int        // tokens at the start whose attention is zero, since they see nothing; other tokens do not see them
	rope          nn.Rope    // set by the model
	queries       *mlx.Array // factors of the queries, [tokens, 1] or [B, 1, tokens, 1]; nil for 1
	mask          *mlx.Array // [B, 1, tokens, keys], true where a query sees a key; nil without padding at the start
	real          *mlx.Array // [B, tokens, 1], false for padding at the start; nil without any
	position      *mlx.Array // of a step in the cache (see [mlx.TokenCache]), else nil
	behind        []int      // of the cache after the pass
}

// newPass begins a pass over ids [B, T]. The cache may be nil.
func newPass(cache *Cache, batch, tokens int, dtype mlx.Dtype) *pass {
	switch {
	case batch < 1 || tokens < 1:
		mlx.Throw(errors.New("no token ids for the language model"))
	case cache == nil:
		cache = newCache(0, batch, 0)
	case cache.batch != batch:
		mlx.Throw(fmt.Errorf("%d sequences of token ids for a cache of %d", batch, cache.batch))
	}
	p := &pass{cache: cache, batch: batch, tokens: tokens, dtype: dtype, behind: cache.behind}
	if cache.padding == nil {
		return p
	}
	index := func(from, to int, shape ...int) *mlx.Array {
		return mlx.Arange(float64(from), float64(to), 1, mlx.Int32).Reshape(shape...)
	}
	first := make([]int32, batch) // that is no padding
	for i, n := range cache.padding {
		first[i] = int32(n)
	}
	after := cache.tokens + tokens
	begin := mlx.FromInt32(first, batch, 1, 1, 1)
	query, key := index(cache.tokens, after, 1, 1, tokens, 1), index(0, after, 1, 1, 1, after)
	// padding sees itself, since a softmax of nothing is no number
	p.mask = query.GreaterEqual(key).And(key.GreaterEqual(begin).Or(key.Equal(query)))
	if slices.Max(cache.padding) > cache.tokens {
		p.real = query.GreaterEqual(begin).Reshape(batch, tokens, 1)
	}
	return p
}

// attention returns the options of a layer's attention.
func (p *pass) attention(layer int) nn.AttentionOptions {
	o := nn.AttentionOptions{Queries: p.queries, Causal: p.mask == nil, Valid: p.valid, First: p.padding, Mask: p.mask}
	if len(p.cache.layers) > 0 {
		o.Cache = func(k, v *mlx.Array) (*mlx.Array, *mlx.Array) { return p.cache.extend(layer, k, v) }
	}
	return o
}

// padded returns how many of the tokens at the start of a sequence are padding.
func (p *pass) padded(sequence int) int {
	if p.cache.padding == nil {
		return 0
	}
	return min(p.tokens, max(0, p.cache.padding[sequence]-p.cache.tokens))
}

// first returns the position of a sequence's first token that is no padding.
func (p *pass) first(sequence int) int {
	c := p.cache
	if c.padding == nil {
		return c.tokens - c.behind[sequence]
	}
	return max(0, c.tokens-c.padding[sequence]) - c.behind[sequence]
}

// positions returns the positions of text, equal on a number of axes: those of all sequences, one after
// the other, or if they are equal, of one.
func (p *pass) positions(axes int) (all [][]int) {
	for b := range p.batch {
		padding, first := p.padded(b), p.first(b)
		for i := range p.tokens {
			at := first + max(0, i-padding)
			if p.endAt > 0 && i >= p.valid {
				at = p.endAt
			}
			all = append(all, slices.Repeat([]int{at}, axes))
		}
		if same := p.cache.padding == nil && slices.Max(p.cache.behind) == slices.Min(p.cache.behind); same {
			break
		}
	}
	return all
}

// check throws an error if an id is not in the vocabulary. It leaves single tokens on the device.
func (p *pass) check(ids *mlx.Array, vocabulary int) {
	if p.tokens == 1 {
		return
	}
	for _, id := range ids.Int32s() {
		if id < 0 || int(id) >= vocabulary {
			mlx.Throw(fmt.Errorf("token id %d, expected at most %d (is the tokenizer that of another model?)", id, vocabulary-1))
		}
	}
}

// end appends the tokens to the cache, whose layers have them already.
func (p *pass) end() { p.cache.tokens, p.cache.behind = p.cache.tokens+p.tokens, p.behind }
