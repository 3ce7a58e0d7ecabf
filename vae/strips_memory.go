package vae

import (
	"cmp"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A memoryModel estimates the memory that layers take.
type memoryModel struct {
	device mlx.Device
	dtype  mlx.Dtype
	budget int64 // bytes per image, or noBudget
	// members is the number of processes that divide the rows of an image, of which one is estimated.
	members int
}

const noBudget = math.MaxInt64

// onHost reports whether package host computes the layers.
func (m memoryModel) onHost() bool {
	return m.device == mlx.CPU && m.dtype == mlx.Float32 && mlx.ConvolvesOnHost()
}

// item is the size of an element in bytes.
func (m memoryModel) item() int64 {
	if m.dtype == mlx.Float32 {
		return 4
	}
	return 2
}

// peak returns the largest memory that one of the layers takes, and the size of the last one's output.
func (m memoryModel) peak(layers []layer, in size) (int64, size) {
	most := int64(0)
	for _, l := range layers {
		var n int64
		n, in = l.memory(in, m)
		most = max(most, n)
	}
	return most, in
}

// DecodeMemory estimates the memory in bytes that Decode takes for one image.
func (m *coder) DecodeMemory(height, width int, d mlx.Device, dtype mlx.Dtype) int64 {
	h, w := (height+m.scale-1)/m.scale, (width+m.scale-1)/m.scale
	return m.strips.peak(d, dtype, m.Decoder.layers(), size{max(1, h), max(1, w), m.latentChannels}, 1)
}

// EncodeMemory estimates the memory in bytes that Encode takes for one image.
func (m *coder) EncodeMemory(height, width int, d mlx.Device, dtype mlx.Dtype) int64 {
	if m.Encoder == nil {
		return 0
	}
	return m.strips.peak(d, dtype, m.Encoder.layers(), size{max(1, height), max(1, width), m.imageChannels}, m.scale)
}

// peak returns the largest memory that one of the layers takes in a process. A row of latents is scale rows of the input.
func (s *strips) peak(d mlx.Device, dtype mlx.Dtype, layers []layer, in size, scale int) int64 {
	m := s.memoryModel(d, dtype)
	if rows := in.h / scale; s.divides(rows) {
		m.members, m.budget = s.group.Size(), cmp.Or(s.budget, allRows)
		in.h = (rows + m.members - 1) / m.members * scale
	}
	most, _ := m.peak(layers, in)
	return most
}

func (s *strips) memoryModel(d mlx.Device, dtype mlx.Dtype) memoryModel {
	return memoryModel{device: d, dtype: dtype, budget: s.limit(), members: 1}
}

func (s stage) memory(in size, m memoryModel) (int64, size) {
	out := s.size(in)
	if m.onHost() && m.budget == noBudget {
		return in.bytes(4) + s.wholeOnHost(in.bytes(4), out.bytes(4)) + s.weights(in).bytes(4), out
	}
	rows := m.rows(s, in)
	n := in.bytes(m.item()) + out.bytes(m.item()) + m.temporaries(s, in, rows)
	if m.onHost() && rows == out.h { // a single strip is the output
		n -= out.bytes(m.item())
	}
	return n, out
}

// wholeOnHost is the memory for a whole image if package host computes it, in addition to the input
// of the stage, or of the block that it is in.
func (s stage) wholeOnHost(in, out int64) int64 {
	switch {
	case s.norm != nil && s.residual > 0:
		return max(2*in, in+out, 3*out)
	case s.norm != nil:
		return max(2*in, in+out, 2*out)
	case s.double != nil:
		return 6*in + out
	case s.conv.Stride > 1: // padded
		return 2*in + out
	}
	return out
}

func (r *resnet) memory(in size, m memoryModel) (int64, size) {
	first, second := r.stages()
	a, between := first.memory(in, m)
	b, out := second.memory(between, m)
	if m.onHost() && m.budget == noBudget {
		b -= between.bytes(4) // which replaces its input
	}
	return max(a, in.bytes(m.item())+b), out
}

func (a *attention) memory(in size, m memoryModel) (int64, size) { return attentionMemory(in, m) }

func attentionMemory(in size, m memoryModel) (int64, size) {
	out := in
	in.h *= m.members // the keys are those of all rows
	tokens := int64(in.h) * int64(in.w)
	if m.onHost() {
		return 6 * in.bytes(4), out
	}
	each := max(tokens, min(tokens*tokens, int64(scores(m.budget))))
	if m.device == mlx.CPU { // updates the scores in place
		return 6*in.bytes(4) + 4*each, out
	}
	return 6*in.bytes(4) + 12*each, out
}

// perRow estimates the bytes of temporaries that a stage takes for each row of its
// output (each), and those for the rows around a strip that the convolution needs too
// (edges). The factors count copies of rows.
func (m memoryModel) perRow(s stage, in size) (each, edges int64) {
	out := s.size(in)
	row := size{1, in.w, in.c}
	if s.double != nil {
		row.w *= 2
	}
	// copies of the convolution's input (as it is, padded, and padded again by MLX), and of
	// the input of group and channel norms
	input, group, channel := int64(3), int64(7), int64(4)
	unfolded := int64(out.w) * int64(in.c) * 4
	switch {
	case m.onHost(): // without copies by MLX
		input, group, channel, unfolded = 2, 2, 2, 0
		s.residual = min(s.residual, out.c)
	case m.device == mlx.CPU:
		unfolded *= 9
		if m.budget == noBudget {
			input = 2 // padded by MLX only
		}
	case m.device.Backend() == mlx.BackendMetal:
		input, group, channel, unfolded = 3, 4, 2, s.winograd(in)*m.item()
	case m.item() < 4: // measured with CUDA
		input, group, channel, unfolded = 2, 4, 2, 0
	}
	input *= row.bytes(m.item())
	normalised := int64(0)
	switch s.norm.(type) {
	case *nn.GroupNorm:
		normalised = group * row.bytes(4)
	case *channelNorm:
		normalised = channel * row.bytes(4)
	}
	stride := int64(s.conv.Stride)
	convolved := stride*input + unfolded + 2*out.rowBytes(m.item()) + size{1, out.w, s.residual}.rowBytes(m.item())
	return max(convolved, stride*normalised), 2 * max(input, normalised)
}

// winograd returns the number of values that MLX computes on Metal for each row of the output if it
// transforms the tiles of a convolution: 64 for 36 pixels of each channel of the input and the output.
func (s stage) winograd(in size) int64 {
	out := s.size(in)
	weight := nn.Parameters(s.conv)[0].Stored()
	if weight[len(weight)-1] != 3 || s.conv.Stride != 1 || in.c%32 != 0 || out.c%32 != 0 || in.c+out.c < 256 {
		return 0
	}
	return int64(out.w) * int64(in.c+out.c) * 64 / 36
}

// rows returns how many rows of a stage's output are computed at a time: as few as the
// smallest number of strips within the budget needs, and as a kernel may compute.
func (m memoryModel) rows(s stage, in size) int {
	out, weight := s.size(in), nn.Parameters(s.conv)[0].Stored()
	n, kernel := out.h, weight[len(weight)-1]
	each, edges := m.perRow(s, in)
	most := int(min(int64(n), max(1, (m.budget-edges)/each)))
	if m.budget != noBudget {
		most = m.device.RowsAtOnce(most, 2*float64(kernel*kernel)*float64(in.c)*float64(out.c)*float64(out.w))
	}
	strips := (n + most - 1) / most
	return (n + strips - 1) / strips
}

// statisticsRows returns how many rows a norm reads at a time for its statistics.
func (m memoryModel) statisticsRows(in size) int {
	return int(min(int64(in.h), max(1, m.budget/(3*in.rowBytes(4)))))
}

// temporaries estimates the bytes that a stage takes for a strip of rows, in addition to
// its input and output.
func (m memoryModel) temporaries(s stage, in size, rows int) int64 {
	each, edges := m.perRow(s, in)
	return int64(rows)*each + edges + s.weights(in).bytes(m.item())
}

// weights returns the number of weights, which are cast to the dtype.
func (s stage) weights(in size) size { return size{9, in.c, s.size(in).c} }
