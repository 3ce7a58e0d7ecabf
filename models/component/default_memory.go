package component

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx/nn"
)

// The default memory model of a block, as factors of the output elements of its linear
// layers per token. The same factors apply to all transformers and text encoders.
const (
	writtenPerOutput = 2.2
	readPerOutput    = 2.8
	// A block with timestep modulation keeps more elements between its layers than the
	// plain block of a text encoder.
	modulatedLive = 3.75
	plainLive     = 2
	// An attention bias is added to the scores, which takes copies.
	plainScores, biasedScores = 1, 3

	defaultCast, defaultCastAlone = 0.3, 0.7
)

// DefaultBlockMemory returns a memory model for any module, from the names and shapes
// of its parameters. It is for classes without constants of their own, and empty if
// the module has no blocks.
//
// Blocks are modules whose names differ in one number. The list of blocks with the
// most weights is used, together with its sibling lists of the same width.
func DefaultBlockMemory(model any) BlockMemory {
	parameters := nn.Parameters(model)
	live := float64(plainLive)
	if modulated(parameters) {
		live = modulatedLive
	}
	s := BlockMemory{Scores: plainScores, Cast: defaultCast, CastAlone: defaultCastAlone}
	outputs := 0.0 // of all blocks
	for _, l := range mainBlocks(blockLists(parameters)) {
		s.Blocks += l.blocks
		outputs += float64(l.blocks) * l.outputs()
		s.Heads = max(s.Heads, l.heads())
		// the CPU evaluates one block at a time, so the largest block determines the peak
		s.Live = max(s.Live, live*l.outputs())
		if l.biases > 0 {
			s.Scores = biasedScores
		}
	}
	if s.Blocks == 0 {
		return BlockMemory{}
	}
	s.Written = writtenPerOutput * outputs / float64(s.Blocks)
	s.Read = readPerOutput * outputs / float64(s.Blocks)
	return s
}

// Width returns the hidden size of a module's blocks, 0 if [DefaultBlockMemory] finds
// no blocks.
func Width(model any) int {
	if main := mainBlocks(blockLists(nn.Parameters(model))); len(main) > 0 {
		return main[0].width
	}
	return 0
}

// Names in diffusers and transformers of layers that do not process all tokens, and of
// layers that determine the number of heads.
var (
	modulations  = regexp.MustCompile(`norm|modulation|mod[._]`) // timestep modulation
	secondStream = regexp.MustCompile(`(^|\.)add_[qkv]_proj\.`)  // projections of the text stream
	queryLayers  = regexp.MustCompile(`(^|\.)(to_q|q_proj|q)\.`)
	queryNorms   = regexp.MustCompile(`(^|\.)(norm_q|q_norm)\.`)
)

// modulated reports whether some linear layers compute a modulation.
func modulated(parameters []nn.Parameter) bool {
	for _, p := range parameters {
		if p.Kind() == nn.LinearWeight && modulations.MatchString(p.Name) {
			return true
		}
	}
	return false
}

// A blockList is a list of equal blocks, with the sizes of the first one.
type blockList struct {
	parent  string // the name of the module that contains the list
	first   string // the number of the first block
	blocks  int    // the number of blocks
	linears int    // linear layers in a block
	weights int64  // elements in the weights of these
	width   int    // the hidden size
	output  int    // the sum of the output sizes of all linear layers that process tokens
	queries int    // the output size of the query projection
	head    int    // the size of the query norm
	biases  int    // the heads of an attention bias
	streams int    // 2 if text has layers of its own, otherwise 1
}

// blockLists returns the lists of blocks in a model. A block has more than one linear
// layer.
func blockLists(parameters []nn.Parameter) (found []*blockList) {
	lists := map[string]*blockList{}
	var order []*blockList
	for _, p := range parameters {
		list, number, name := cutNumber(p.Name)
		if name == "" {
			continue
		}
		l := lists[list]
		if l == nil {
			parent := list[:max(0, strings.LastIndexByte(list, '.'))]
			l = &blockList{parent: parent, first: number, streams: 1}
			lists[list], order = l, append(order, l)
		}
		if n, _ := strconv.Atoi(number); n >= l.blocks {
			l.blocks = n + 1
		}
		if number == l.first {
			l.add(p, name)
		}
	}
	for _, l := range order {
		if l.linears > 1 && l.output > 0 {
			found = append(found, l)
		}
	}
	return found
}

// cutNumber cuts a parameter's name around its first number. They are empty for a
// name without one.
func cutNumber(name string) (list, number, rest string) {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		if _, err := strconv.Atoi(part); err == nil {
			return strings.Join(parts[:i], "."), part, strings.Join(parts[i+1:], ".")
		}
	}
	return "", "", ""
}

// add counts a parameter of the first block.
func (l *blockList) add(p nn.Parameter, name string) {
	shape := p.Stored()
	switch {
	case p.Kind() == nn.EmbeddingWeight:
		l.biases = shape[1]
	case p.Kind() == nn.LinearWeight:
		l.linears++
		l.weights += int64(shape[0]) * int64(shape[1])
		if !modulations.MatchString(name) {
			l.addLinear(shape[0], shape[1], name)
		}
	case queryNorms.MatchString(name):
		l.head = shape[0]
	}
}

// addLinear counts a linear layer that processes tokens.
func (l *blockList) addLinear(out, in int, name string) {
	if l.width == 0 {
		l.width = in
	}
	l.output += out
	if queryLayers.MatchString(name) {
		l.queries = out
	}
	if secondStream.MatchString(name) {
		l.streams = 2
	}
}

// outputs returns the output elements of a block's linear layers for one token, which
// passes through the layers of one stream.
func (l *blockList) outputs() float64 { return float64(l.output) / float64(l.streams) }

// heads returns the number of attention heads. If no parameter determines it, heads of
// the common sizes are assumed.
func (l *blockList) heads() int {
	width, size := l.queries, 64
	if width == 0 {
		width = l.width
	}
	if width >= 2048 {
		size = 128
	}
	if l.head > 0 && l.head < width { // a norm over all heads does not determine their size
		size = l.head
	}
	if l.biases > 0 {
		return l.biases
	}
	return max(1, width/size)
}

// mainBlocks returns the list with the most weights and its siblings of the same width.
func mainBlocks(lists []*blockList) (same []*blockList) {
	var most *blockList
	for _, l := range lists {
		if most == nil || int64(l.blocks)*l.weights > int64(most.blocks)*most.weights {
			most = l
		}
	}
	for _, l := range lists {
		if l.parent == most.parent && l.width == most.width {
			same = append(same, l)
		}
	}
	return same
}
