package parity

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A Report is what a comparison has found.
type Report struct {
	Run      string   `json:"run"`
	Model    string   `json:"model"` // or the other run
	Device   string   `json:"device,omitempty"`
	Dtype    string   `json:"dtype,omitempty"`
	RefDtype string   `json:"reference_dtype,omitempty"`
	Readings []string `json:"readings"`
	Verdict  Verdict  `json:"verdict"`
	Stages   []*Stage `json:"stages"` // backwards from pixels
	// Tensors are in the order in which they were made.
	Tensors []*Tensor `json:"tensors"`
	// Missing are the reference's tensors that were not compared and should have
	// been, Untapped those that have no counterpart.
	Missing  []string   `json:"missing,omitempty"`
	Untapped []Untapped `json:"untapped,omitempty"`
	// The first step that ran, on both sides.
	FirstStep    int `json:"first_step"`
	RefFirstStep int `json:"reference_first_step"`
	Width        int `json:"width,omitempty"`
	Height       int `json:"height,omitempty"`
	// Rounds are what [Bisect] did.
	Rounds []Round `json:"rounds,omitempty"`

	replayed        bool
	sights          []sight // in the order in which they passed
	ours, reference []uint8 // pictures
}

// A Tensor is one of the reference's with what was found in its place.
type Tensor struct {
	Name      string `json:"name"`
	Reference string `json:"reference,omitempty"` // its name there, if it is another
	Module    string `json:"module"`              // with its step and call
	Kind      string `json:"kind"`                // output, input or inner value
	Stage     string `json:"stage"`
	Order     int    `json:"order"`
	Shape     []int  `json:"shape"`
	RefShape  []int  `json:"reference_shape"`
	Guess     string `json:"shape_guess,omitempty"`
	Dtype     string `json:"dtype"`
	RefDtype  string `json:"reference_dtype"`
	// The readings: from the start of the run, as a whole from the reference's
	// inputs, and its own arithmetic alone.
	Free      *Reading   `json:"free,omitempty"`
	Isolated  *Reading   `json:"isolated,omitempty"`
	Own       *Reading   `json:"own,omitempty"`
	Got       []float64  `json:"first_values"`
	Ref       []float64  `json:"reference_first_values"`
	Hints     []Hint     `json:"hints,omitempty"`
	Histogram *Histogram `json:"histogram,omitempty"`

	made int // its place in the run, from 1; 0 if that is not known
}

// A Reading is one comparison of a tensor.
type Reading struct {
	Difference
	Tolerance Tolerance
	OK        bool
}

// A Hint is a known pattern that the tensors at hand show.
type Hint struct {
	Key  string `json:"key"`
	Text string `json:"text"`
}

// A Stage is a part of the pipeline.
type Stage struct {
	Name     string  `json:"name"`
	OK       bool    `json:"ok"`
	Tensors  int     `json:"tensors"`
	Failing  int     `json:"failing"`
	Free     float64 `json:"free"`     // the largest relative L2
	Isolated float64 `json:"isolated"` // the same of modules' own errors
	Worst    string  `json:"worst,omitempty"`
}

// A Verdict says what is wrong first.
type Verdict struct {
	OK bool `json:"ok"`
	// Stage and Module are the first divergent ones, Tensor shows it.
	Stage    string  `json:"stage,omitempty"`
	Module   string  `json:"module,omitempty"`
	Tensor   string  `json:"tensor,omitempty"`
	Text     string  `json:"text"`
	Hints    []Hint  `json:"hints,omitempty"`
	Children []Child `json:"children,omitempty"` // of the module
	// Ask are globs of names that the reference's run should have for a closer
	// look: those of modules inside that are not in it.
	Ask []string `json:"ask,omitempty"`
	// Others differ too: by themselves, where modules got the reference's inputs.
	Others []string `json:"others,omitempty"`

	unseen   bool // the reference could be asked for more
	isolated bool // modules got the reference's inputs
}

// A Child is a module inside the one that diverges, and its own error.
type Child struct {
	Module string  `json:"module"`
	OK     bool    `json:"ok"`
	L2     float64 `json:"l2"`
}

// stageOf is the stage that makes a tensor.
func stageOf(name string) string {
	n, err := hooks.ParseName(name)
	if err != nil {
		return "latents"
	}
	prefix := func(p string) bool { return strings.HasPrefix(n.Module, p) }
	switch {
	case n.Step >= 0:
		return "step " + strconv.Itoa(n.Step)
	case n.Module == "image":
		return "picture"
	case n.Module == "image.in" || n.Module == "latents.image" || n.Module == "latents.reference" || prefix("vae.encode") || prefix("vae.quant_conv"):
		return "encode"
	case prefix("vae"):
		return "vae"
	case strings.Contains(n.Module, ".input_ids") || strings.HasSuffix(n.Module, "attention_mask"):
		return "tokenizer"
	case prefix("text_encoder") || strings.HasSuffix(n.Module, "embeds") || prefix("vision.") || n.Module == "image.condition":
		return "text"
	case n.Module == "sigmas" || n.Module == "timesteps":
		return "scheduler"
	}
	return "latents"
}

// stageKey is a stage's name in the tolerance table.
func stageKey(stage string) string {
	word, _, _ := strings.Cut(stage, " ")
	return word
}

// moduleOf is a name without its point.
func moduleOf(name string) string {
	module, _, _ := strings.Cut(name, ":")
	return module
}

// moduleName is the module's path alone.
func (t *Tensor) moduleName() string {
	n, err := hooks.ParseName(t.Name)
	if err != nil {
		return t.Name
	}
	return n.Module
}

// at is the module's path and step.
func (t *Tensor) at() string {
	n, err := hooks.ParseName(t.Name)
	if err != nil {
		return t.Name
	}
	return fmt.Sprint(n.Module, "@", n.Step)
}

// shapes says whether both have one shape.
func (t *Tensor) shapes() bool { return slices.Equal(t.Shape, t.RefShape) }

// best is the reading that a verdict is made of.
func (t *Tensor) best() *Reading {
	switch {
	case t.Own != nil:
		return t.Own
	case t.Isolated != nil:
		return t.Isolated
	}
	return t.Free
}

// OK says whether every reading holds.
func (t *Tensor) OK() bool {
	for _, r := range []*Reading{t.Free, t.Isolated, t.Own} {
		if r != nil && !r.OK {
			return false
		}
	}
	return t.shapes()
}

// ownOK says whether the tensor's own error is one of rounding.
func (t *Tensor) ownOK() bool {
	r := t.best()
	return t.shapes() && (r == nil || r.OK)
}

// Find is the entry of a tensor, or nil.
func (r *Report) Find(name string) *Tensor {
	i := slices.IndexFunc(r.Tensors, func(t *Tensor) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return r.Tensors[i]
}

// judge fills in stages and verdict.
func (r *Report) judge() {
	byStage := map[string]*Stage{}
	for _, t := range r.Tensors {
		s := byStage[t.Stage]
		if s == nil {
			s = &Stage{Name: t.Stage, OK: true}
			byStage[t.Stage] = s
			r.Stages = append(r.Stages, s)
		}
		s.Tensors++
		if !t.OK() {
			s.OK = false
			s.Failing++
		}
		l2 := func(x *Reading) float64 {
			switch {
			case x == nil:
				return 0
			case !x.Finite:
				return math.Inf(1)
			}
			return x.L2
		}
		s.Free = max(s.Free, l2(t.Free))
		if own := max(l2(t.Own), l2(t.Isolated)); own > s.Isolated {
			s.Isolated, s.Worst = own, t.Name
		}
	}
	slices.SortStableFunc(r.Stages, func(a, b *Stage) int { return stageOrder(a.Name) - stageOrder(b.Name) })
	r.Verdict = r.verdict()
}

// stageOrder counts backwards from pixels.
func stageOrder(stage string) int {
	word, step, _ := strings.Cut(stage, " ")
	if word == "step" {
		n, _ := strconv.Atoi(step)
		return 1e6 - n
	}
	i := slices.Index(stages, word)
	if i >= slices.Index(stages, "latents") {
		return 2e6 + i
	}
	return i
}

func (r *Report) verdict() Verdict {
	if !slices.Contains(r.Readings, Isolated) {
		return r.firstToDiffer()
	}
	var culprits []culprit
	seen := map[string]bool{}
	for _, t := range r.Tensors {
		if t.ownOK() {
			continue
		}
		if c := r.attribute(t); !seen[c.module] {
			seen[c.module] = true
			culprits = append(culprits, c)
		}
	}
	if len(culprits) == 0 {
		return r.drift()
	}
	c := culprits[0]
	v := Verdict{Stage: c.tensor.Stage, Module: c.module, Tensor: c.tensor.Name, Hints: c.tensor.Hints, isolated: true}
	var text strings.Builder
	fmt.Fprintf(&text, "%s diverges first, in stage %s", c.module, v.Stage)
	switch {
	case !c.tensor.shapes():
		fmt.Fprintf(&text, ": %s has %s", c.tensor.Name, c.tensor.shapesText())
	case c.tensor.Module != c.module:
		fmt.Fprintf(&text, ": what it hands on as %s is wrong (%v), while what it got is right", c.tensor.Name, c.tensor.best())
	default:
		fmt.Fprintf(&text, ": %s is wrong (%v)", c.tensor.Name, c.tensor.best())
	}
	v.Text = text.String()
	v.Children = r.children(c.module)
	for _, other := range culprits[1:] {
		v.Others = append(v.Others, other.module)
	}
	return v
}

// shapesText says how the shapes differ.
func (t *Tensor) shapesText() string {
	text := fmt.Sprintf("shape %v, the reference's %v", t.Shape, t.RefShape)
	if t.Guess != "" {
		text += fmt.Sprintf(" (%s)", t.Guess)
	}
	return text
}

// firstToDiffer is the verdict where nothing is known but what each side made,
// so that a module may differ only because of one before it.
func (r *Report) firstToDiffer() Verdict {
	var v Verdict
	for _, t := range r.Tensors {
		switch {
		case t.OK():
		case v.Tensor == "":
			v = Verdict{Stage: t.Stage, Module: t.Module, Tensor: t.Name, Hints: t.Hints, Children: r.children(t.Module), Text: r.differs(t)}
		case t.Module != v.Module && !slices.Contains(v.Others, t.Module):
			v.Others = append(v.Others, t.Module)
		}
	}
	if v.Tensor == "" {
		return r.drift()
	}
	return v
}

// differs says of a tensor that it is the first to differ, and in which order.
func (r *Report) differs(t *Tensor) string {
	by := ""
	if !r.replayed && t.made == 0 {
		by = fmt.Sprintf(" by name (no %s says which was made first)", traceFile)
	}
	if !t.shapes() {
		return fmt.Sprintf("%s is the first to differ%s, in stage %s: it has %s", t.Name, by, t.Stage, t.shapesText())
	}
	return fmt.Sprintf("%s is the first to differ%s, in stage %s (%v)", t.Name, by, t.Stage, t.best())
}

// drift is the verdict where every module holds by its own.
func (r *Report) drift() Verdict {
	for _, t := range r.Tensors {
		if t.OK() {
			continue
		}
		reading, what := t.Free, "the error that has come together since the start of the run"
		if t.Isolated != nil && !t.Isolated.OK {
			reading, what = t.Isolated, "the error that comes together inside it"
		}
		return Verdict{
			Stage: t.Stage, Module: t.Module, Tensor: t.Name, Children: r.children(t.Module),
			Text: fmt.Sprintf("every module holds given the reference's inputs, but at %s %s is beyond the tolerance (%v)", t.Name, what, reading),
		}
	}
	switch {
	case len(r.Tensors) == 0:
		return Verdict{Text: "nothing was compared: no tensor has the name of one of the reference's"}
	case r.replayed && slices.ContainsFunc(r.Missing, isValue):
		name := r.Missing[slices.IndexFunc(r.Missing, isValue)]
		return Verdict{Text: fmt.Sprintf("%s is in the reference and was not made", name), Stage: stageOf(name), Tensor: name}
	case r.FirstStep != r.RefFirstStep:
		return Verdict{Text: fmt.Sprintf("the first step that ran is %d, the reference's %d", r.FirstStep, r.RefFirstStep), Stage: "scheduler"}
	}
	return Verdict{OK: true, Text: fmt.Sprintf("all %d tensors hold", len(r.Tensors))}
}

// isValue says whether a name is a value of the pipeline.
func isValue(name string) bool {
	n, err := hooks.ParseName(name)
	return err == nil && !inside.MatchString(n.Module)
}

// A culprit is a module that computes something wrong, and the tensor that
// shows it.
type culprit struct {
	module string
	tensor *Tensor
}

// attribute finds whose fault a wrong tensor is: a module's whose inputs are
// right. A wrong input is the fault of the module around.
func (r *Report) attribute(t *Tensor) culprit {
	module := t.Module
	if t.Kind == hooks.Input.String() {
		module = r.parent(module)
	}
	for module != "" && r.wrongInput(module) {
		module = r.parent(module)
	}
	if module == "" { // of the pipeline
		module = moduleOf(t.Name)
	}
	return culprit{module, t}
}

func (r *Report) wrongInput(module string) bool {
	return slices.ContainsFunc(r.Tensors, func(t *Tensor) bool {
		return t.Module == module && t.Kind == hooks.Input.String() && !t.ownOK()
	})
}

// parent is the nearest module around one that was compared, at the same step
// and call; "" is none.
func (r *Report) parent(module string) string {
	n, err := hooks.ParseName(module)
	if err != nil {
		return ""
	}
	for {
		i := strings.LastIndexByte(n.Module, '.')
		if i < 0 {
			return ""
		}
		n.Module = n.Module[:i]
		for _, name := range []string{n.String(), hooks.Name{Module: n.Module, Step: n.Step}.String()} {
			if slices.ContainsFunc(r.Tensors, func(t *Tensor) bool { return t.Module == name }) {
				return name
			}
		}
	}
}

// children are the modules right inside one, with their own errors.
func (r *Report) children(module string) []Child {
	n, err := hooks.ParseName(module)
	if err != nil || !inside.MatchString(n.Module) {
		return nil
	}
	var out []Child
	for _, t := range r.Tensors {
		if t.Kind == hooks.Output.String() && r.parent(t.Module) == module && t.best() != nil {
			out = append(out, Child{t.Module, t.ownOK(), t.best().L2})
		}
	}
	return out
}

// A Histogram counts the values of both sides in bins of equal width.
type Histogram struct {
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Got       []int   `json:"got"`
	Reference []int   `json:"reference"`
}

const bins = 32

func histogram(got, want []float32) *Histogram {
	a, b := rangeOf(got), rangeOf(want)
	h := &Histogram{Min: min(a.Min, b.Min), Max: max(a.Max, b.Max), Got: make([]int, bins), Reference: make([]int, bins)}
	fill := func(counts []int, values []float32) {
		for _, v := range values {
			at := 0
			if h.Max > h.Min {
				at = min(bins-1, int(bins*((float64(v)-h.Min)/(h.Max-h.Min))))
			}
			if at >= 0 && !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
				counts[at]++
			}
		}
	}
	fill(h.Got, got)
	fill(h.Reference, want)
	return h
}

// guessShape says what may lie behind two shapes that differ.
func guessShape(got, want *mlx.Array) string {
	g, w := got.Shape(), want.Shape()
	without := func(s []int) []int { return slices.DeleteFunc(slices.Clone(s), func(d int) bool { return d == 1 }) }
	sorted := func(s []int) []int { return slices.Sorted(slices.Values(s)) }
	switch {
	case len(g)+1 == len(w) && len(w) > 0 && w[0] == 1 && slices.Equal(g, w[1:]):
		return "ours has no batch axis"
	case len(w)+1 == len(g) && g[0] == 1 && slices.Equal(w, g[1:]):
		return "the reference has no batch axis"
	case slices.Equal(without(g), without(w)):
		return "the same but for axes of length 1"
	case len(g) == len(w) && slices.Equal(sorted(g), sorted(w)):
		return fmt.Sprintf("transposed: ours may be the reference's axes %v", axesOf(g, w))
	case got.Size() == want.Size():
		return "as many values: packed, unpacked or heads split otherwise"
	case got.Size()*2 == want.Size():
		return "half as many values: one of two batch rows, or one of two joined halves"
	case got.Size() == want.Size()*2:
		return "twice as many values"
	}
	differ := 0
	axis := -1
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			differ++
			axis = i
		}
	}
	if len(g) == len(w) && differ == 1 {
		return fmt.Sprintf("axis %d has %d, the reference's %d: other padding, or another number of tokens", axis, g[axis], w[axis])
	}
	return ""
}

// axesOf is an order of want's axes that gives got's shape.
func axesOf(g, w []int) []int {
	used := make([]bool, len(w))
	var axes []int
	for _, d := range g {
		for i, e := range w {
			if e == d && !used[i] {
				used[i] = true
				axes = append(axes, i)
				break
			}
		}
	}
	return axes
}

// A Round is one look at a run in [Bisect].
type Round struct {
	Tensors int     `json:"tensors"` // that were compared
	Verdict Verdict `json:"verdict"`
	// Asked are the names that the reference is asked for, for the next round.
	Asked []string `json:"asked,omitempty"`
}

// Untapped are tensors of the reference that have no counterpart here, and why.
type Untapped struct {
	Reason string   `json:"reason"`
	Names  []string `json:"names"`
}
