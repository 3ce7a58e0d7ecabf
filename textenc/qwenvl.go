package textenc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// This file has what Qwen2.5-VL and Qwen3-VL share: images among the tokens of a prompt, and
// rotary embeddings in three dimensions.

// qwenVLRope has the settings of a rotary embedding, in newer or older files.
type qwenVLRope struct {
	RopeTheta    *float64 `json:"rope_theta"`
	RopeType     string   `json:"rope_type"`
	Type         string   `json:"type"` // in older files
	MRopeSection []int    `json:"mrope_section"`
	// PartialRotaryFactor is the part of a head's features that is rotated; only Qwen3.5 has one.
	PartialRotaryFactor *float64 `json:"partial_rotary_factor"`
}

// newQwenVLRope returns rope_scaling or, without it, rope_parameters. If they lack
// rope_theta, it is theta, the config's, or else otherwise.
func newQwenVLRope(scaling, parameters *qwenVLRope, theta *float64, otherwise float64) qwenVLRope {
	r := *cmp.Or(scaling, parameters, &qwenVLRope{})
	r.RopeType = cmp.Or(r.RopeType, r.Type, "default")
	r.RopeTheta = cmp.Or(r.RopeTheta, theta, &otherwise)
	return r
}

// interleaved returns the rotary embedding of Qwen3-VL, which rotates so many pairs of a head's features.
func (r qwenVLRope) interleaved(pairs int) func(positions [][]int) nn.Rope {
	return func(positions [][]int) nn.Rope {
		return nn.NewInterleavedMRope(positions, [3]int(r.MRopeSection), pairs, *r.RopeTheta)
	}
}

// An ImageConfig is the config of a text encoder that sees images.
type ImageConfig interface {
	// ExpandImages repeats each image token in a tokenized prompt as often as its image has
	// features. The prompt has one for each image.
	ExpandImages(ids []int32, images []VisionInput) ([]int32, error)
	imageTokens() imageTokens
}

// ImageToken returns the id of the token that stands for an image in a prompt.
func ImageToken(c ImageConfig) int32 { return c.imageTokens().id }

// imageTokens describe the tokens of images in a prompt.
type imageTokens struct {
	model   string // for errors
	id      int32  // of the token that stands for an image
	patches visionPatches
}

// expand repeats each image token in a tokenized prompt as often as its image has
// features. The prompt has one for each image.
func (t imageTokens) expand(ids []int32, images []VisionInput) ([]int32, error) {
	var out []int32
	found := 0
	for _, id := range ids {
		if id != t.id {
			out = append(out, id)
			continue
		}
		if found++; found <= len(images) {
			out = append(out, slices.Repeat([]int32{id}, t.patches.tokens(images[found-1]))...)
		}
	}
	if found != len(images) {
		return nil, fmt.Errorf("%d image tokens in the prompt for %d images, expected one for each "+
			"(the prompt itself must not contain <|image_pad|>)", found, len(images))
	}
	return out, nil
}

// A qwenVLInput is the input of a language model that sees images.
type qwenVLInput struct {
	ids, embeds *mlx.Array // [B, T] and [B, T, hidden_size]
	positions   [][]int    // of each token in time, height and width; see [pass.positions]
	// The others are nil without images. deepstack has the features of images that are added after each of the
	// first layers, to the tokens for which isImage is true.
	images    []VisionInput
	deepstack []*mlx.Array
	isImage   func(token int) bool
}

// A visionEncoder is the vision encoder of a model.
type visionEncoder interface {
	// Forward returns the features [n, out_hidden_size] of checked images in dtype, one image after the other, and
	// those that are added after the first layers of the language model, nil without any.
	Forward(images []VisionInput, dtype mlx.Dtype) (features *mlx.Array, deepstack []*mlx.Array)
}

// input returns the input for ids [B, T]. Without images, all ids are text.
func (t imageTokens) input(table *nn.Embedding, ids *mlx.Array, images []VisionInput, p *pass, see visionEncoder) qwenVLInput {
	p.check(ids, table.Len())
	in := qwenVLInput{ids: ids, embeds: table.Gather(ids, p.dtype)}
	if len(images) == 0 {
		in.positions = p.positions(3)
		return in
	}
	if see == nil {
		mlx.Throw(fmt.Errorf("images for a %s without its vision encoder", t.model))
	}
	host := ids.Int32s()
	var positions [][]int
	err := t.patches.check(images)
	if err == nil {
		positions, err = t.place(host, images, p)
	}
	if err != nil {
		mlx.Throw(fmt.Errorf("%s: %w", t.model, err))
	}
	features, deepstack := see.Forward(images, p.dtype)
	in.positions, in.images, in.deepstack = positions, images, deepstack
	in.embeds = t.replace(in.embeds, host, features)
	in.isImage = func(i int) bool { return host[i] == t.id }
	return in
}

// place returns the positions of the tokens of all sequences, with checked images. It replaces the ids of
// padding by 0, or by 1 if 0 is the image token.
func (t imageTokens) place(ids []int32, images []VisionInput, p *pass) (positions [][]int, err error) {
	p.behind = slices.Clone(p.behind)
	for b := range p.batch {
		row, padding, first := ids[b*p.tokens:][:p.tokens], p.padded(b), p.first(b)
		for i := range padding {
			row[i] = 0
			if t.id == 0 {
				row[i] = 1
			}
			positions = append(positions, []int{first, first, first})
		}
		own, next, rest, err := t.positions(row[padding:], images, first)
		if err != nil {
			return nil, err
		}
		positions, images = append(positions, own...), rest
		p.behind[b] += first + len(own) - next
	}
	if len(images) > 0 {
		return nil, fmt.Errorf("%d images without image tokens", len(images))
	}
	return positions, nil
}

// positions returns the position of each token in time, height and width, from next on, the position
// of the token after them, and the images that are left. Text advances
// on all three; an image has one position in time, and the next token follows at the
// length of its longer side. It is an error if an image has no tokens.
func (t imageTokens) positions(ids []int32, images []VisionInput, next int) ([][]int, int, []VisionInput, error) {
	positions := make([][]int, 0, len(ids))
	for at := 0; at < len(ids); {
		if ids[at] != t.id || images == nil {
			positions = append(positions, []int{next, next, next})
			next++
			at++
			continue
		}
		if len(images) == 0 {
			return nil, 0, nil, errors.New("more image tokens than the images have features")
		}
		image := images[0]
		images = images[1:]
		n := t.patches.tokens(image)
		tokens := ids[at:min(at+n, len(ids))]
		if len(tokens) < n || slices.ContainsFunc(tokens, func(id int32) bool { return id != t.id }) {
			return nil, 0, nil, fmt.Errorf("fewer image tokens than the %d features of an image", n)
		}
		width := image.Width / t.patches.merge
		for i := range n {
			positions = append(positions, []int{next, next + i/width, next + i%width})
		}
		next += max(width, n/width)
		at += n
	}
	return positions, next, images, nil
}

// replace replaces the rows of embeddings x [B, T, D] that belong to image tokens.
func (t imageTokens) replace(x *mlx.Array, ids []int32, rows *mlx.Array) *mlx.Array {
	from := make([]int32, len(ids))
	next := int32(len(ids))
	for i := range from {
		from[i] = int32(i)
		if ids[i] == t.id {
			from[i] = next
			next++
		}
	}
	return mlx.Concat(0, x.Reshape(-1, x.Dim(2)), rows).TakeRows(from).Reshape(x.Shape()...)
}

// positionIDs returns the positions as the reference's position_ids [3, B, T], and those that the model itself
// gets from its caller, nil without images.
func (in qwenVLInput) positionIDs() (ids, passed *mlx.Array) {
	tokens := in.embeds.Dim(1)
	ids = transposed(in.positions).Reshape(3, -1, tokens)
	if in.images == nil {
		return ids, nil
	}
	return ids, ids
}

// tapped returns the inputs of the reference's model for images, nil without any.
func (in qwenVLInput) tapped() (pixels, grids *mlx.Array) {
	if in.images == nil {
		return nil, nil
	}
	return pixelsOf(in.images), gridsOf(in.images)
}

// added returns deepstack features with zeros for all other tokens, [B, T, hidden_size].
func (in qwenVLInput) added(features *mlx.Array) *mlx.Array {
	from, next := make([]int32, in.embeds.Dim(0)*in.embeds.Dim(1)), int32(1)
	for i := range from {
		if in.isImage(i) {
			from[i] = next
			next++
		}
	}
	zeros := mlx.Zeros(features.Dtype(), 1, features.Dim(1))
	return mlx.Concat(0, zeros, features).TakeRows(from).Reshape(in.embeds.Shape()...)
}

// transposed returns positions by axis, int32 [axes, n].
func transposed(positions [][]int) *mlx.Array {
	axes := len(positions[0])
	all := make([]int32, 0, axes*len(positions))
	for axis := range axes {
		for _, p := range positions {
			all = append(all, int32(p[axis]))
		}
	}
	return mlx.FromInt32(all, axes, len(positions))
}

// rotaryEmbedding is Qwen2_5_VLRotaryEmbedding or Qwen2_5_VLVisionRotaryEmbedding,
// whose tables are computed on the host.
type rotaryEmbedding struct {
	nn.Module `in:"0 1"`
}

// Forward passes the tables [L, D/2] through the hook, which sees them as [L, D] in a
// dtype, or as [B, L/B, D] if batch is not 0. x and positions are the reference's inputs.
func (r *rotaryEmbedding) Forward(rope nn.Rope, dtype mlx.Dtype, batch int, x, positions *mlx.Array) nn.Rope {
	if !r.Observed() {
		return rope
	}
	full := func(x *mlx.Array) *mlx.Array {
		x = mlx.Concat(1, x, x).AsType(dtype)
		if batch > 0 {
			x = x.Reshape(batch, -1, x.Dim(1))
		}
		return x
	}
	fullCos, fullSin := full(rope.Cos), full(rope.Sin)
	cos, sin := r.Tap2(fullCos, fullSin, x, positions)
	half := rope.Cos.Dim(1)
	if cos != fullCos {
		rope.Cos = cos.Reshape(-1, 2*half).Slice(1, 0, half).AsType(mlx.Float32)
	}
	if sin != fullSin {
		rope.Sin = sin.Reshape(-1, 2*half).Slice(1, 0, half).AsType(mlx.Float32)
	}
	return rope
}

// shortNames makes the parameters of a language model known under the names that they have
// without language_model too.
func shortNames(model any) {
	for _, p := range nn.Parameters(model) {
		if short, ok := strings.CutPrefix(p.Name, "language_model."); ok {
			*p.Param = p.Or(short)
		}
	}
}

// qwenVLText is Qwen2_5_VLTextModel or Qwen3VLTextModel.
type qwenVLText struct {
	nn.Module    `in:"inputs_embeds position_ids"`
	qwen3Decoder `w:"."`
	RotaryEmb    *rotaryEmbedding `w:"rotary_emb"`

	rotary func(positions [][]int) nn.Rope
	all    int // layers of the whole model
}

func newQwenVLText(c Qwen3Config, rotary func([][]int) nn.Rope, hiddenStates []int, layer func(Qwen3Config, int) *qwen3Layer) *qwenVLText {
	decoder := newQwen3Decoder(c, hiddenStates, layer)
	return &qwenVLText{qwen3Decoder: decoder, RotaryEmb: &rotaryEmbedding{}, rotary: rotary, all: c.NumHiddenLayers}
}

func (m *qwenVLText) begin(p *pass) { p.rope = m.rotary(p.positions(3)).Batched(p.tokens) }

// Forward returns hidden states by their numbers. If there are images, the reference gets the
// positions too.
func (m *qwenVLText) Forward(in qwenVLInput, p *pass) map[int]*mlx.Array {
	ids, passed := in.positionIDs()
	p.rope = m.RotaryEmb.Forward(m.rotary(in.positions), p.dtype, p.batch, in.embeds, ids).Batched(p.tokens)
	enter := func(layers int, x *mlx.Array) *mlx.Array {
		if i := layers - 1; i >= 0 && i < len(in.deepstack) {
			x = x.Add(in.added(in.deepstack[i]).AsType(x.Dtype()))
		}
		return x
	}
	states := m.run(in.embeds, enter, p)
	if last, ok := m.last(); ok {
		states[last] = m.Tap(states[last], in.embeds, passed)
	}
	return states
}

// last returns the number of the hidden state that the model itself returns in the reference,
// if all layers run.
func (m *qwenVLText) last() (number int, ok bool) {
	if m.Norm != nil {
		return m.all, true
	}
	return LastBeforeNorm, len(m.Layers) == m.all
}
