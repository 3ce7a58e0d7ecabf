package textenc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// CausalLM is a language model of transformers with its head, such as Qwen3ForCausalLM: it predicts the token that follows
// others. Its Model can encode prompts too, with the same weights. Its methods must be called on the MLX thread; they throw
// an error for invalid input (see [mlx.Throw]).
//
// To generate text, make a cache, pass it with the ids of the prompt, in one or several calls, then
// with each new token:
//
//	cache := m.NewCache(1, 0)
//	defer cache.Close()
//	logits := m.Forward(mlx.FromInt32(prompt, 1, len(prompt)), images, cache)
//	for {
//		next := sample(logits) // int32 [1, 1], not evaluated yet
//		logits = m.Forward(next, nil, cache)
//		mlx.AsyncEval(logits)
//		...                    // with next, while the logits are computed
//	}
//
// Each call keeps what it computed for the cache, and nothing else: free logits, or use a scope.
type CausalLM struct {
	nn.Module `in:"input_ids"`
	Model     network `w:"." module:"model"`
	LMHead    lmHead  `w:"lm_head"`

	dtype mlx.Dtype
	tied  bool
	sees  ImageConfig
}

// A network is a model without a head.
type network interface {
	Unused() []string
	decoder() *qwen3Decoder
	// begin sets what a pass over text needs of its positions.
	begin(p *pass)
	// hidden returns the hidden states after the final norm, [B, T, hidden_size].
	hidden(ids *mlx.Array, images []VisionInput, p *pass) *mlx.Array
}

// An lmHead is a [nn.Linear] or a [tiedHead].
type lmHead interface {
	ForwardWide(x *mlx.Array, dtype mlx.Dtype) *mlx.Array
}

// A tiedHead has the weights of the embeddings.
type tiedHead struct {
	nn.Module
	table *nn.Embedding
}

func (h *tiedHead) ForwardWide(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return h.Tap(h.table.ForwardWide(x, dtype), x)
}

func newCausalLM(m network, tied bool, sees ImageConfig, dtype mlx.Dtype) *CausalLM {
	lm := &CausalLM{Model: m, dtype: dtype, tied: tied, sees: sees}
	table := m.decoder().EmbedTokens
	if lm.LMHead = (&tiedHead{table: table}); !tied {
		lm.LMHead = nn.NewLinear(table.Dim(), table.Len(), false)
	}
	nn.Decodes(lm)
	return lm
}

// Tied reports whether the head has the weights of the embeddings.
func (m *CausalLM) Tied() bool { return m.tied }

// Unused returns patterns of tensors that a checkpoint may have and that are not needed.
func (m *CausalLM) Unused() []string {
	return slices.DeleteFunc(m.Model.Unused(), func(pattern string) bool { return !m.tied && strings.Contains(pattern, "lm_head.") })
}

// VocabSize returns the number of logits. It may be larger than the tokenizer's vocabulary.
func (m *CausalLM) VocabSize() int { return m.Model.decoder().EmbedTokens.Len() }

// Images returns the config for images, nil if the model cannot see any.
func (m *CausalLM) Images() ImageConfig { return m.sees }

// NewCache returns an empty cache for a number of sequences and, if it is not 0, of tokens.
// It grows if there are more tokens.
func (m *CausalLM) NewCache(batch, capacity int) *Cache {
	return newCache(len(m.Model.decoder().Layers), batch, capacity)
}

// CacheBytes returns the size of a cache of some tokens of a sequence.
func (m *CausalLM) CacheBytes(tokens int) (n int64) {
	size := m.dtype.ItemSize()
	for _, l := range m.Model.decoder().Layers {
		if l.LinearAttn != nil {
			n += l.LinearAttn.stateBytes(size)
		} else {
			n += int64(2 * l.SelfAttn.KProj.Out() * cacheRoom(tokens) * size)
		}
	}
	return n
}

// Forward appends ids, int32 [B, T], to the tokens in the cache, and returns the logits of the
// token that follows the last one, float32 [B, vocabulary]. The cache may be nil if ids is
// everything. images are those of the image tokens in ids, which [ImageConfig.ExpandImages]
// has repeated, in the order of the tokens and of the rows; ids is read by the host only if
// there are any. Without images, every id is text.
func (m *CausalLM) Forward(ids *mlx.Array, images []VisionInput, cache *Cache) *mlx.Array {
	return m.logits(ids, images, cache, true).Squeeze(1)
}

// Logits is Forward with the logits after every one of the ids, float32 [B, T, vocabulary].
func (m *CausalLM) Logits(ids *mlx.Array, images []VisionInput, cache *Cache) *mlx.Array {
	return m.logits(ids, images, cache, false)
}

func (m *CausalLM) logits(ids *mlx.Array, images []VisionInput, cache *Cache, last bool) *mlx.Array {
	if ids.Ndim() != 2 {
		mlx.Throw(fmt.Errorf("token ids with shape %v, expected sequences and tokens", ids.Shape()))
	}
	return mlx.Scope(func() *mlx.Array {
		p := newPass(cache, ids.Dim(0), ids.Dim(1), m.dtype)
		if m.steps(p, images) {
			return m.step(ids, p)
		}
		p.cache.settle()
		x := m.Model.hidden(ids, images, p)
		p.end()
		if last {
			x = x.Slice(1, p.tokens-1, p.tokens)
		}
		return m.Tap(m.LMHead.ForwardWide(x, m.dtype), ids).AsType(mlx.Float32)
	})
}

// A Cache has what a language model keeps of the tokens that it has seen: keys and values of its
// attention layers, and the states of its other layers. It belongs to the caller, who must close it.
type Cache struct {
	layers   []keptArrays
	batch    int
	capacity int   // for which memory is allocated at once
	tokens   int   // of each sequence, with padding
	padding  []int // tokens at the start of each sequence that stand for nothing; nil without any
	behind   []int // how far positions are behind the number of tokens, because images take fewer

	mode   mlx.CompileMode
	step   *step // nil before the first one
	recent int   // of the tokens, those whose keys and values are in the tails

	// table has what steps get of their positions, for all tokens of a tail at once: the rotary embedding's cos and sin, and the
	// positions in the cache, a row for each token; nil if no tail has begun. MLX lets a GPU fetch an array that is new on the
	// host only when a kernel asks for it, which costs as much as ten kernels.
	table keptArrays
}

// keptArrays are arrays of a cache, nil at first. Those of a layer are keys and values [B, heads, capacity, D] and the tail
// of steps (see [mlx.TokenCache]), or two other states.
type keptArrays [3]*mlx.Array

// cacheStep is by how many tokens a cache grows.
const cacheStep = 256

// cacheRoom returns for how many tokens a cache has room that holds some.
func cacheRoom(tokens int) int { return (tokens + cacheStep - 1) / cacheStep * cacheStep }

func newCache(layers, batch, capacity int) *Cache {
	return &Cache{layers: make([]keptArrays, layers), batch: batch, capacity: capacity, behind: make([]int, batch)}
}

// Len returns the number of tokens of each sequence, with padding.
func (c *Cache) Len() int { return c.tokens }

// Pad declares that the first tokens of each sequence are padding, whose ids do not matter. With it
// prompts of different lengths make a batch. It must be called before the first token.
func (c *Cache) Pad(left []int) {
	if c.tokens > 0 || len(left) != c.batch || slices.Min(left) < 0 {
		mlx.Throw(fmt.Errorf("padding %v for a cache of %d sequences with %d tokens, expected one number for each, before the first token",
			left, c.batch, c.tokens))
	}
	c.padding = slices.Clone(left)
	if slices.Max(left) == 0 {
		c.padding = nil
	}
}

// Compile makes steps of one token compiled in a mode, unless a hook looks at modules. The cache must be closed,
// and used, in the job that runs.
func (c *Cache) Compile(mode mlx.CompileMode) {
	mlx.CheckKernels()
	c.mode = mode
}

// Compiled reports whether steps are compiled.
func (c *Cache) Compiled() bool { return c.mode != mlx.Uncompiled }

// Close frees the memory of the cache. It must be called on the MLX thread.
func (c *Cache) Close() {
	if c.step != nil {
		c.step.free()
	}
	c.table.set(0, nil, nil, nil)
	for i := range c.layers {
		c.layers[i].set(0, nil, nil, nil)
	}
}

// set replaces arrays. The old ones are freed before the new ones are evaluated, so
// that MLX can overwrite them.
func (k *keptArrays) set(from int, arrays ...*mlx.Array) {
	for i, a := range arrays {
		if old := k[from+i]; old != nil && old != a {
			old.Free()
		}
		mlx.Keep(a)
		k[from+i] = a
	}
}

// extend appends keys and values [B, heads, T, D] of new tokens, and returns those of all.
func (c *Cache) extend(layer int, k, v *mlx.Array) (allK, allV *mlx.Array) {
	l, after := &c.layers[layer], c.tokens+k.Dim(2)
	l.set(0, c.put(l[0], c.tokens, k), c.put(l[1], c.tokens, v))
	return l[0].Slice(2, 0, after), l[1].Slice(2, 0, after)
}

// put returns old, which may be nil, with the rows x from a token on, and with more room if it needs some.
func (c *Cache) put(old *mlx.Array, token int, x *mlx.Array) *mlx.Array {
	room, after := 0, token+x.Dim(2)
	if old != nil {
		room = old.Dim(2)
	}
	if after > room {
		shape := x.Shape()
		shape[2] = max(c.capacity, cacheRoom(after)) - room
		more := mlx.Zeros(x.Dtype(), shape...)
		if old != nil {
			more = mlx.Concat(2, old, more)
		}
		old = more
	}
	return old.SliceUpdate(2, token, x)
}

// settle moves the rows of the tails to keys and values.
func (c *Cache) settle() {
	for i := range c.layers {
		l := &c.layers[i]
		if c.recent == 0 || l[2] == nil {
			continue
		}
		parts := l[2].Slice(3, 0, c.recent).Split(2, 0)
		from := c.tokens - c.recent
		l.set(0, c.put(l[0], from, parts[0].Squeeze(0)), c.put(l[1], from, parts[1].Squeeze(0)))
	}
	c.recent = 0
	c.table.set(0, nil, nil, nil)
}
