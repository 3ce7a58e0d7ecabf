package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/models/inspect"
)

// What inspect --against prints.
type (
	comparison struct {
		Model      string          `json:"model"`
		Against    string          `json:"against"`
		Tolerance  float64         `json:"tolerance"`
		Components []*comparedPart `json:"components"`
		Differing  int             `json:"differing"` // tensors, including those that only one model has

		all bool // print every tensor
	}
	comparedPart struct {
		Name    string           `json:"name"`
		Only    string           `json:"only,omitempty"` // model or other
		OnlyA   []string         `json:"only_in_model"`
		OnlyB   []string         `json:"only_in_other"`
		Roles   comparedGroups   `json:"roles"`
		Layers  comparedGroups   `json:"layers"`
		Tensors []comparedTensor `json:"tensors"`
	}
	comparedGroups []*comparedGroup
	comparedGroup  struct {
		Name      string           `json:"name"`
		Tensors   int              `json:"tensors"`
		Differing int              `json:"differing"`
		Relative  checkpoint.Float `json:"relative_error"` // the largest
		MaxAbs    checkpoint.Float `json:"max_abs"`        // the largest
		Cosine    checkpoint.Float `json:"cosine"`         // the smallest
		compared  int
		problem   string
	}
	comparedTensor struct {
		*inspect.TensorDifference
		Within bool `json:"within_tolerance"`
	}
)

// compare compares a model with that of --against.
func (o *inspectOptions) compare(ctx context.Context, out *ui.Output, progress *ui.Progress, model *openWeights) error {
	other, err := o.openWeights(o.against, "")
	if err != nil {
		return err
	}
	defer other.Close()
	for _, part := range slices.Concat(model.Components, other.Components) {
		if part.Err != nil {
			return cli.Coded(cli.ExitModel, part.Err)
		}
	}
	if err := checkCommon(model, other); err != nil {
		return err
	}
	c, err := inspect.Compare(ctx, model.Weights, other.Weights, progress.Loading)
	if err != nil {
		return err
	}
	progress.Close()
	r := newComparison(c, model.name, other.name, o.tolerance.OrZero(), o.all)
	if err := out.Result(r); err != nil {
		return err
	}
	if r.Differing > 0 {
		return fmt.Errorf("%s of %s and %s differ by more than the tolerance of %g",
			ui.Plural(r.Differing, "tensor"), quote.Printable(r.Model), quote.Printable(r.Against), r.Tolerance)
	}
	return nil
}

// checkCommon refuses models without a common component, such as a single file and
// a whole model.
func checkCommon(a, b *openWeights) error {
	names := func(w *openWeights) (list []string) {
		for _, c := range w.Components {
			list = append(list, c.Name)
		}
		return list
	}
	of, against := names(a), names(b)
	common := slices.ContainsFunc(of, func(name string) bool { return slices.Contains(against, name) })
	if common || len(of) == 1 && len(against) == 1 {
		return nil
	}
	return cli.UsageErrorf("%s has %s, and %s has %s: no common component "+
		"(a file can be compared with the folder of a component, such as MODEL/transformer)",
		quote.Printable(a.name), ui.FirstOf(of, 3), quote.Printable(b.name), ui.FirstOf(against, 3))
}

func newComparison(c *inspect.Comparison, model, other string, tolerance float64, all bool) *comparison {
	r := &comparison{Model: model, Against: other, Tolerance: tolerance, Components: []*comparedPart{}, all: all}
	for _, c := range c.Components {
		part := &comparedPart{
			Name: c.Name, OnlyA: append([]string{}, c.OnlyA...), OnlyB: append([]string{}, c.OnlyB...),
			Roles: comparedGroups{}, Layers: comparedGroups{}, Tensors: []comparedTensor{},
		}
		part.Only = map[string]string{"a": "model", "b": "other"}[c.Only]
		if c.Only != "" {
			r.Differing++
		}
		r.Differing += len(c.OnlyA) + len(c.OnlyB)
		for _, d := range c.Tensors {
			within := d.Within(tolerance)
			if !within {
				r.Differing++
			}
			part.Roles.add(inspect.RoleOf(d.Name), d, within)
			part.Layers.add(inspect.LayerOf(d.Name), d, within)
			part.Tensors = append(part.Tensors, comparedTensor{d, within})
		}
		r.Components = append(r.Components, part)
	}
	return r
}

// add adds a difference to the group of that name.
func (g *comparedGroups) add(name string, d *inspect.TensorDifference, within bool) {
	i := slices.IndexFunc(*g, func(group *comparedGroup) bool { return group.Name == name })
	if i < 0 {
		i = len(*g)
		*g = append(*g, &comparedGroup{Name: name, Cosine: 1})
	}
	group := (*g)[i]
	group.Tensors++
	if !within {
		group.Differing++
	}
	group.problem = cmp.Or(group.problem, d.Mismatch)
	if d.Mismatch == "" {
		group.compared++
		group.Relative, group.MaxAbs = max(group.Relative, d.Relative), max(group.MaxAbs, d.MaxAbs)
		group.Cosine = min(group.Cosine, d.Cosine)
	}
}

func (r *comparison) Text(p *ui.Page) {
	for i, c := range r.Components {
		if i > 0 {
			p.Printf("\n")
		}
		if c.Only != "" {
			model := map[string]string{"model": r.Model, "other": r.Against}[c.Only]
			p.Printf("%s: only in %s\n", quote.Printable(c.Name), quote.Printable(model))
			continue
		}
		p.Printf("%s\n", quote.Printable(c.Name))
		equal := c.Roles.print(p, "tensor in all layers", r.all)
		c.Layers.print(p, "layer", r.all)
		if r.all {
			p.Table(c.table())
		} else {
			p.Printf("%s equal\n", ui.Plural(equal, "tensor"))
		}
		printOnly(p, r.Model, c.OnlyA, r.all)
		printOnly(p, r.Against, c.OnlyB, r.all)
	}
	p.Printf("\n%s beyond the tolerance of %g\n", ui.Plural(r.Differing, "difference"), r.Tolerance)
}

// print prints the groups with differences, or all groups, and returns the number
// of tensors in the others.
func (g comparedGroups) print(p *ui.Page, what string, all bool) (equal int) {
	t := ui.Table{{what, "differing", "relative error", "largest difference", "cosine", ""}}
	for _, group := range g {
		if group.Differing == 0 && group.MaxAbs == 0 && !all {
			equal += group.Tensors
			continue
		}
		row := []string{group.Name, fmt.Sprintf("%d of %d", group.Differing, group.Tensors), "-", "-", "-", group.problem}
		if group.compared > 0 {
			row[2], row[3], row[4] = number3(group.Relative), number3(group.MaxAbs), fmt.Sprintf("%.7g", float64(group.Cosine))
		}
		t.Row(row...)
	}
	if len(t) > 1 {
		p.Table(t)
	}
	return equal
}

func number3(f checkpoint.Float) string { return fmt.Sprintf("%.3g", float64(f)) }

// table returns the table of a component's tensors.
func (c *comparedPart) table() ui.Table {
	t := ui.Table{{"tensor", "dtypes", "elements that differ", "relative error", "largest difference", "cosine"}}
	for _, d := range c.Tensors {
		dtypes := d.DtypeA
		if d.DtypeB != d.DtypeA {
			dtypes += ", " + d.DtypeB
		}
		if d.Mismatch != "" {
			t.Row(d.Name, dtypes, d.Mismatch, "-", "-", "-")
			continue
		}
		cosine := fmt.Sprintf("%.7g", float64(d.Cosine))
		t.Row(d.Name, dtypes, strconv.Itoa(d.Differing), number3(d.Relative), number3(d.MaxAbs), cosine)
	}
	return t
}

// printOnly prints tensors that only one model has: all of them, or how many there
// are of each in all layers.
func printOnly(p *ui.Page, model string, names []string, all bool) {
	model = quote.Printable(model)
	if all {
		for _, name := range names {
			p.Printf("only in %s: %s\n", model, quote.Printable(name))
		}
		return
	}
	counts := map[string]int{}
	for _, name := range names {
		counts[inspect.RoleOf(name)]++
	}
	for _, name := range names { // in their order
		role := inspect.RoleOf(name)
		if n := counts[role]; n > 0 {
			p.Printf("only in %s: %s: %s\n", model, ui.Plural(n, "tensor"), quote.Printable(role))
		}
		delete(counts, role)
	}
}
