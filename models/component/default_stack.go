package component

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx/nn"
)

// What a block takes by default, as factors of what its linear layers give for each
// token. One set of them holds for all transformers and text encoders.
const (
	madePerOutput = 2.2
	readPerOutput = 2.8
	// A block that a time modulates has more between its layers than a plain one, as
	// text encoders have them.
	modulatedAlive = 3.75
	plainAlive     = 2
	// A table of biases in a block is added to its scores, in copies.
	plainScores, biasedScores = 1, 3

	defaultCast, defaultCastAlone = 0.3, 0.7
)

// DefaultStack describes the blocks of any module by the names and shapes of its
// parameters, for a class without constants of its own. It is empty for a module
// in which it finds no blocks.
//
// Blocks are what has names that differ by one number. Those of the list with most
// weights count, and those of lists beside it that are as wide.
func DefaultStack(model any) Stack {
	parameters := nn.Parameters(model)
	alive := float64(plainAlive)
	if modulated(parameters) {
		alive = modulatedAlive
	}
	s := Stack{Scores: plainScores, Cast: defaultCast, CastAlone: defaultCastAlone}
	outputs := 0.0 // of all blocks
	for _, l := range mainBlocks(blockLists(parameters)) {
		s.Blocks += l.blocks
		outputs += float64(l.blocks) * l.outputs()
		s.Heads = max(s.Heads, l.heads())
		// the CPU evaluates one block after the other, and the largest counts
		s.Alive = max(s.Alive, alive*l.together())
		if l.biases > 0 {
			s.Scores = biasedScores
		}
	}
	if s.Blocks == 0 {
		return Stack{}
	}
	s.Made = madePerOutput * outputs / float64(s.Blocks)
	s.Read = readPerOutput * outputs / float64(s.Blocks)
	return s
}

// Width is what goes from block to block of a module, 0 for one in which
// [DefaultStack] finds no blocks.
func Width(model any) int {
	if main := mainBlocks(blockLists(nn.Parameters(model))); len(main) > 0 {
		return main[0].width
	}
	return 0
}

// What diffusers and transformers call layers that do not see all tokens, or by
// which heads are counted.
var (
	modulations  = regexp.MustCompile(`norm|modulation|mod[._]`) // of a time
	secondStream = regexp.MustCompile(`(^|\.)add_[qkv]_proj\.`)  // text beside the picture
	queryLayers  = regexp.MustCompile(`(^|\.)(to_q|q_proj|q)\.`)
	queryNorms   = regexp.MustCompile(`(^|\.)(norm_q|q_norm)\.`)
)

// modulated reports whether linear layers are for the modulation of others.
func modulated(parameters []nn.Parameter) bool {
	for _, p := range parameters {
		if p.Kind() == nn.LinearWeight && modulations.MatchString(p.Name) {
			return true
		}
	}
	return false
}

// A blockList is a list of blocks that are alike, with the sizes of its first.
type blockList struct {
	parent  string // the name of what has the list
	first   string // the number of the first block
	blocks  int
	linears int   // layers of a block
	weights int64 // of these
	width   int   // of what goes from block to block
	output  int   // of all linear layers of a block that see tokens
	queries int   // of the layer of queries
	head    int   // size of the norm of queries
	biases  int   // heads of a table of biases
	streams int   // 2 if text has layers of its own beside the picture's, or 1
}

// blockLists are the lists of blocks of a model. A block has more than one linear
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

// addLinear counts a linear layer that sees tokens.
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

// outputs is what the linear layers of a block give for a token, which goes through
// those of one stream.
func (l *blockList) outputs() float64 { return float64(l.output) / float64(l.streams) }

// together is what of outputs is in memory at a time: of two streams, that are
// evaluated one after the other, one.
func (l *blockList) together() float64 { return l.outputs() / float64(l.streams) }

// heads is how many heads attention has, as most models have them where nothing
// says it.
func (l *blockList) heads() int {
	width, size := l.queries, 64
	if width == 0 {
		width = l.width
	}
	if width >= 2048 {
		size = 128
	}
	if l.head > 0 && l.head < width { // a norm over all heads does not say it
		size = l.head
	}
	if l.biases > 0 {
		return l.biases
	}
	return max(1, width/size)
}

// mainBlocks are the list with most weights, and those beside it that are as wide.
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
