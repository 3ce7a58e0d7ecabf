package nn

// NewMRope computes the table of multimodal rotary embeddings (M-RoPE, Qwen2-VL).
// sections are numbers of feature pairs: the pairs of section i are rotated by axis i
// of the positions, starting again with the first axis after the last. Frequencies are
// those of all features together. They and the angles are rounded to float32, as
// transformers does.
func NewMRope(positions [][]int, sections []int, theta float64) Rope {
	var axes []int // of each pair
	for i, n := range sections {
		for range n {
			axes = append(axes, i)
		}
	}
	return newMRope(positions, axes, theta)
}

// NewInterleavedMRope is [NewMRope] for half pairs of features whose axes alternate
// (Qwen3-VL): the first sections[i] pairs at 3j+i belong to axis i of height (1) and width
// (2), and all others to time (0).
func NewInterleavedMRope(positions [][]int, sections [3]int, half int, theta float64) Rope {
	axes := make([]int, half)
	for i := range axes {
		if axis := i % 3; i/3 < sections[axis] {
			axes[i] = axis
		}
	}
	return newMRope(positions, axes, theta)
}

// newMRope computes the table for pairs of features with the given axes.
func newMRope(positions [][]int, axes []int, theta float64) Rope {
	pairs := make([]ropePair, len(axes))
	for i, axis := range axes {
		pairs[i] = ropePair{axis, frequency32(theta, i, 2*len(axes))}
	}
	return newTable(positions, pairs, round32)
}
