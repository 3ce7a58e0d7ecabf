package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/hints"
	"github.com/gomflux/gomflux/parity/runs"
)

// A Verdict names what is wrong first.
type Verdict struct {
	OK     bool   `json:"ok"`
	Stage  string `json:"stage,omitempty"`  // the first that diverges
	Module string `json:"module,omitempty"` // the first that diverges
	Tensor string `json:"tensor,omitempty"` // the tensor that shows it
	Text   string `json:"text"`
	Hints  []Hint `json:"hints,omitempty"`
	// HintLimits is that of Tensor.
	HintLimits string `json:"hint_limits,omitempty"`
	// Children are the modules right inside Module.
	Children []Child `json:"children,omitempty"`
	// Ask lists globs of the tensors of modules inside that the run lacks, for a closer look.
	Ask []string `json:"ask,omitempty"`
	// Behind lists modules inside Module whose inputs are wrong because of it, so that it is not known
	// whether they are right.
	Behind []string `json:"behind,omitempty"`
	// Others lists further modules that differ: on their own, if modules got the reference's
	// inputs.
	Others []string `json:"others,omitempty"`
	// Kinds groups the others by names that differ by numbers alone.
	Kinds []Others `json:"kinds,omitempty"`

	// Unseen is set if the reference could be asked for more.
	Unseen bool `json:"-"`

	isolated bool // modules got the reference's inputs
}

// Explained reports whether the module has others inside it that were compared, and a hint explains all
// that is wrong.
func (v *Verdict) Explained() bool { return len(v.Children) > 0 && hints.Share(v.Hints) >= hints.Exact }

// Same reports whether two verdicts say the same.
func (v *Verdict) Same(other Verdict) bool {
	return v.Tensor == other.Tensor && v.Module == other.Module && slices.Equal(v.Hints, other.Hints)
}

// Others are further modules that differ, of one kind.
type Others struct {
	Modules    string `json:"modules"` // such as transformer.layers.{0-29}.attention@0
	Count      int    `json:"count"`
	Tensor     string `json:"tensor"` // of the first one
	Hints      []Hint `json:"hints,omitempty"`
	HintLimits string `json:"hint_limits,omitempty"` // as of a tensor
}

// A Child is a module inside the one that diverges, and its own error.
type Child struct {
	Module string `json:"module"`
	OK     bool   `json:"ok"`
	L2     Number `json:"l2"`
}

func (r *Report) verdict() Verdict {
	if !slices.Contains(r.Readings, Isolated) {
		return r.firstToDiffer()
	}
	var culprits []culprit
	for _, t := range r.Tensors {
		if t.ownOK() {
			continue
		}
		module := r.attribute(t)
		at := slices.IndexFunc(culprits, func(c culprit) bool { return c.module == module })
		if at < 0 {
			at, culprits = len(culprits), append(culprits, culprit{module: module, tensor: t, hinted: t})
		}
		culprits[at].add(t)
	}
	if len(culprits) == 0 {
		return r.drift()
	}
	c := culprits[0]
	v := Verdict{Stage: c.tensor.Stage, Module: c.module, Tensor: c.tensor.Name, Hints: c.hints(),
		HintLimits: c.hinted.HintLimits, Behind: c.behind, isolated: true}
	v.Text = fmt.Sprintf("%s diverges first, in stage %s: ", c.module, v.Stage)
	switch {
	case !c.tensor.SameShape():
		v.Text += fmt.Sprintf("%s has %s", c.tensor.Name, c.tensor.shapesText())
	case c.tensor.Module != c.module:
		v.Text += fmt.Sprintf("it passes on %s, which is wrong (%v), although its inputs are right", c.tensor.Name, c.tensor.best())
	case withCache[c.tensor.Name] != "":
		v.Text += fmt.Sprintf("%s (%s) is wrong (%v), although all is right without a cache: what the cache keeps, or the positions after "+
			"it, are wrong", c.tensor.Name, withCache[c.tensor.Name], c.tensor.best())
	case r.stepped(c.tensor):
		v.Text += fmt.Sprintf("%s is wrong (%v), although noise_pred is right: the scheduler's step, or what follows it, is wrong",
			c.tensor.Name, c.tensor.best())
	default:
		v.Text += fmt.Sprintf("%s is wrong (%v)", c.tensor.Name, c.tensor.best())
	}
	v.Children = r.children(c.module)
	v.others(culprits[1:])
	if len(v.Children) == 0 {
		v.closer(culprits)
	}
	return v
}

// stepped reports whether a tensor is what the scheduler makes of a prediction that was compared.
func (r *Report) stepped(t *Tensor) bool {
	n, err := hooks.ParseName(t.Name)
	return err == nil && (n.Module == "latents" || n.Module == "latents.stepped") && r.Find(fmt.Sprint("noise_pred@", n.Step)) != nil
}

// closer takes the hints of a module that is inside the one that diverges first, at another step or call
// for which the run has more tensors, if they explain more.
func (v *Verdict) closer(culprits []culprit) {
	path := func(module string) string { return (&Tensor{Name: module}).ModuleName() }
	outer, share := path(v.Module), max(0, share(v.Hints))
	for _, c := range culprits {
		s, inner := c.share(), path(c.module)
		if s > share && (inner == outer || strings.HasPrefix(inner, outer+".")) {
			share = s
			v.Hints, v.HintLimits, v.Behind = c.hints(), c.hinted.HintLimits, c.behind
			v.Hints[0].Text = fmt.Sprintf("%s is wrong by itself: %s", c.hinted.Name, v.Hints[0].Text)
		}
	}
}

// firstToDiffer is the verdict where each side computed everything itself, so that a module may
// differ only because of one before it.
func (r *Report) firstToDiffer() Verdict {
	var v Verdict
	var others []culprit
	seen := map[string]bool{}
	for _, t := range r.Tensors {
		switch {
		case t.OK():
		case v.Tensor == "":
			v = Verdict{
				Stage: t.Stage, Module: t.Module, Tensor: t.Name, Hints: t.Hints, HintLimits: t.HintLimits, Children: r.children(t.Module),
				Text: r.differs(t),
			}
			seen[t.Module] = true
		case !seen[t.Module]:
			seen[t.Module] = true
			others = append(others, culprit{module: t.Module, tensor: t, hinted: t})
		}
	}
	v.others(others)
	if v.Tensor == "" {
		return r.drift()
	}
	return v
}

// others lists further modules that differ, and their kinds.
func (v *Verdict) others(all []culprit) {
	for _, c := range all {
		v.Others = append(v.Others, c.module)
	}
	for _, k := range Kinds(all, func(c culprit) string { return c.module }) {
		first := slices.IndexFunc(k.Modules, func(c culprit) bool { return len(c.hinted.Hints) > 0 })
		c := k.Modules[max(0, first)]
		v.Kinds = append(v.Kinds, Others{k.Name, len(k.Modules), c.hinted.Name, c.hints(), c.hinted.HintLimits})
	}
}

// differs is the text about the first tensor that differs, and in which order it is the first.
func (r *Report) differs(t *Tensor) string {
	by := ""
	if !r.Replayed && t.made == 0 {
		by = fmt.Sprintf(" by name (neither run has %s, which has the order)", runs.TraceFile)
	}
	if !t.SameShape() {
		return fmt.Sprintf("%s is the first to differ%s, in stage %s: it has %s", t.Name, by, t.Stage, t.shapesText())
	}
	return fmt.Sprintf("%s is the first to differ%s, in stage %s (%s)", t.Name, by, t.Stage, t.errorText())
}

// withCache describes the ways to compute a language model's logits with a cache, by their names.
var withCache = map[string]string{
	"logits.cached": "the prompt, then token by token",
	"logits.parts":  "the prompt in parts, then tokens in parts",
	"logits.batch":  "in a batch with a longer text, with padding",
	"logits.longer": "the longer text of that batch",
}

// drift is the verdict where every module is within tolerance on its own.
func (r *Report) drift() Verdict {
	for _, t := range r.Tensors {
		if t.OK() {
			continue
		}
		reading, what := t.Free, "accumulated since the start of the run"
		if t.Isolated != nil && !t.Isolated.OK {
			reading, what = t.Isolated, "accumulated inside it"
		}
		return Verdict{
			Stage: t.Stage, Module: t.Module, Tensor: t.Name, Children: r.children(t.Module),
			Text: fmt.Sprintf("every module is within tolerance given the reference's inputs, but at %s the error that %s exceeds the "+
				"tolerance (%v)", t.Name, what, reading),
		}
	}
	switch {
	case len(r.Tensors) == 0:
		return Verdict{Text: "nothing was compared: both runs have no tensor name in common"}
	case r.Replayed && slices.ContainsFunc(r.Missing, isValue):
		name := r.Missing[slices.IndexFunc(r.Missing, isValue)]
		return Verdict{Text: fmt.Sprintf("%s is in the reference's run, but was not computed here", name), Stage: StageOf(name),
			Tensor: name}
	case r.FirstStep != r.RefFirstStep:
		text := fmt.Sprintf("the first step that ran is %d, the reference's %d", r.FirstStep, r.RefFirstStep)
		return Verdict{Text: text, Stage: "scheduler"}
	}
	text := fmt.Sprintf("all %d tensors are within tolerance", len(r.Tensors))
	if len(r.Absent) > 0 {
		text = fmt.Sprintf("all %d tensors of the components that are there are within tolerance", len(r.Tensors))
	}
	return Verdict{OK: true, Text: text}
}

// A culprit is a module that computes something wrong, and the tensor that shows it.
type culprit struct {
	module string
	tensor *Tensor
	hinted *Tensor   // of the module, the first with a hint that explains all, or else most
	more   []*Tensor // of the module, with hints about further mistakes
	behind []string  // modules inside it with wrong inputs and outputs
}

// share is how much of a difference hints explain. More than Exact is rounding.
func share(found []Hint) float64 { return min(hints.Share(found), hints.Exact) }

func (c culprit) share() float64 { return share(c.hinted.Hints) }

// add takes a wrong tensor that the module causes.
func (c *culprit) add(t *Tensor) {
	switch {
	case share(t.Hints) > c.share():
		c.hinted = t
	case len(t.Hints) > 0 && t.Hints[0].Mistake() && !slices.ContainsFunc(c.hints(), repeats(t.Hints[0])):
		c.more = append(c.more, t)
	}
	if t.Kind == hooks.Output.String() && t.Module != c.module && !slices.Contains(c.more, t) && !slices.Contains(c.behind, t.Module) {
		c.behind = append(c.behind, t.Module)
	}
}

// hints returns those of the culprit's tensors.
func (c culprit) hints() []Hint {
	found := slices.Clone(c.hinted.Hints)
	for _, t := range c.more {
		h := t.Hints[0]
		h.Text = fmt.Sprintf("%s is wrong too: %s", t.Name, h.Text)
		found = append(found, h)
	}
	return found
}

// attribute finds the module that causes a wrong tensor: the nearest one around it whose inputs
// are right. A wrong input is caused by the module around the one that gets it.
func (r *Report) attribute(t *Tensor) string {
	module := t.Module
	if t.Kind == hooks.Input.String() {
		module = r.parent(module)
	}
	for module != "" && r.wrongInput(module) {
		module = r.parent(module)
	}
	if module == "" { // of the pipeline
		module = ModuleOf(t.Name)
	}
	return module
}

// wrongInput reports whether a module gets a wrong input.
func (r *Report) wrongInput(module string) bool {
	return slices.ContainsFunc(r.Tensors, func(t *Tensor) bool {
		return t.Module == module && t.Kind == hooks.Input.String() && !t.ownOK()
	})
}

// parent returns the nearest module around one that was compared, at the same step and call, or
// "".
func (r *Report) parent(module string) string {
	n, err := hooks.ParseName(module)
	if err != nil {
		return ""
	}
	for {
		if n.Module = hooks.Parent(n.Module); n.Module == "" {
			return ""
		}
		for _, name := range []string{n.String(), hooks.Name{Module: n.Module, Step: n.Step}.String()} {
			if slices.ContainsFunc(r.Tensors, func(t *Tensor) bool { return t.Module == name }) {
				return name
			}
		}
	}
}

// children returns the modules right inside one, with their own errors.
func (r *Report) children(module string) []Child {
	n, err := hooks.ParseName(module)
	if err != nil || !IsModule(n.Module) {
		return nil
	}
	var out []Child
	for _, t := range r.Tensors {
		if t.Kind == hooks.Output.String() && r.parent(t.Module) == module && t.best() != nil {
			c := Child{t.Module, t.ownOK(), t.best().L2}
			at := slices.IndexFunc(out, func(other Child) bool { return other.Module == c.Module })
			if at < 0 {
				out = append(out, c)
			} else if out[at].OK && !c.OK || out[at].OK == c.OK && out[at].L2 < c.L2 { // the worst of its outputs
				out[at] = c
			}
		}
	}
	return out
}
