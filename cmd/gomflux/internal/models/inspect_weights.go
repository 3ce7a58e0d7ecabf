package models

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
)

// What inspect prints.
type (
	inspection struct {
		Model      string           `json:"model"`
		Path       string           `json:"path,omitempty"`
		Class      string           `json:"class,omitempty"`
		Components []*inspectedPart `json:"components"`
		Flags      []inspectedFlag  `json:"flags"`
		Errors     int              `json:"errors"`
		Warnings   int              `json:"warnings"`

		all bool // print every tensor
	}
	inspectedPart struct {
		Name       string            `json:"name"`
		Unchecked  string            `json:"unchecked,omitempty"`
		Parameters int               `json:"parameters"`
		Bytes      int64             `json:"bytes"`
		Dtypes     map[string]int    `json:"dtypes"`
		Tensors    []inspectedTensor `json:"tensors"`
	}
	inspectedTensor struct {
		Name       string `json:"name"`
		File       string `json:"file"`
		Dtype      string `json:"dtype"`
		Shape      []int  `json:"shape"`
		Parameters int    `json:"parameters"`
		Bytes      int64  `json:"bytes"`
		Unused     bool   `json:"unused,omitempty"`
		*checkpoint.Stats
	}
	inspectedFlag struct {
		Component string `json:"component"`
		Kind      string `json:"kind"`
		Severity  string `json:"severity"` // error or warning
		Tensor    string `json:"tensor,omitempty"`
		Text      string `json:"text"`
	}
)

func newInspection(w *openWeights, all bool) *inspection {
	r := &inspection{
		Model: w.name, Path: w.path, Class: w.Class, all: all,
		Components: []*inspectedPart{}, Flags: []inspectedFlag{},
	}
	for _, c := range w.Components {
		part := &inspectedPart{Name: c.Name, Dtypes: map[string]int{}, Tensors: []inspectedTensor{}}
		if c.Unchecked != nil {
			part.Unchecked = c.Unchecked.Error()
		}
		for _, t := range c.Tensors {
			part.Parameters += t.Len()
			part.Bytes += t.Bytes()
			part.Dtypes[string(t.Dtype)]++
			one := inspectedTensor{t.Name, w.relative(t.File), string(t.Dtype), t.Shape, t.Len(), t.Bytes(), t.Unused, t.Stats}
			if t.Dtype == checkpoint.U32 || t.Dtype == checkpoint.U8 {
				one.Stats = nil // packed words are not values
			}
			part.Tensors = append(part.Tensors, one)
		}
		r.Components = append(r.Components, part)
		for _, f := range c.Flags() {
			severity := "warning"
			if f.Error {
				severity = "error"
				r.Errors++
			} else {
				r.Warnings++
			}
			r.Flags = append(r.Flags, inspectedFlag{c.Name, string(f.Kind), severity, f.Tensor, f.Text})
		}
	}
	return r
}

func (r *inspection) Text(p *ui.Page) {
	t := ui.Table{{"component", "tensors", "parameters", "dtype", "size", "values", "std"}}
	for _, c := range r.Components {
		t.Row(c.row()...)
	}
	p.Table(t)
	if r.all {
		for _, c := range r.Components {
			p.Printf("\n")
			p.Table(c.table())
		}
	}
	p.Printf("\n")
	for _, c := range r.Components {
		c.notes(p)
	}
	for _, f := range r.Flags {
		words := []string{f.Severity, quote.Printable(f.Component), f.Kind}
		if f.Tensor != "" {
			words = append(words, quote.Printable(f.Tensor))
		}
		p.Printf("%s\n", strings.Join(append(words, quote.Printable(f.Text)), ": "))
	}
	p.Printf("%s, %s\n", ui.Plural(r.Errors, "error"), ui.Plural(r.Warnings, "warning"))
}

// row returns the row of a component.
func (c *inspectedPart) row() []string {
	lowest, highest, std := math.Inf(1), math.Inf(-1), []float64{}
	for _, tensor := range c.Tensors {
		if s := tensor.Stats; s != nil && !math.IsNaN(float64(s.Std)) {
			lowest, highest = min(lowest, float64(s.Min)), max(highest, float64(s.Max))
			std = append(std, float64(s.Std))
		}
	}
	values, deviations := "-", "-"
	if len(std) > 0 {
		values = fmt.Sprintf("%.4g to %.4g", lowest, highest)
		deviations = fmt.Sprintf("%.3g to %.3g", slices.Min(std), slices.Max(std))
	}
	dtypes := strings.Join(slices.Sorted(maps.Keys(c.Dtypes)), ", ")
	return []string{
		c.Name, strconv.Itoa(len(c.Tensors)), strconv.Itoa(c.Parameters), cmp.Or(dtypes, "-"),
		units.Bytes(c.Bytes), values, deviations,
	}
}

// table returns the table of a component's tensors.
func (c *inspectedPart) table() ui.Table {
	t := ui.Table{{c.Name, "dtype", "shape", "min", "max", "mean", "std", "NaN", "inf", "file"}}
	for _, tensor := range c.Tensors {
		row := []string{tensor.Name, tensor.Dtype, fmt.Sprint(tensor.Shape), "-", "-", "-", "-", "-", "-", tensor.File}
		if s := tensor.Stats; s != nil {
			for i, v := range []checkpoint.Float{s.Min, s.Max, s.Mean, s.Std} {
				row[3+i] = fmt.Sprintf("%.4g", float64(v))
			}
			row[7], row[8] = strconv.Itoa(s.NaN), strconv.Itoa(s.Inf)
		}
		t.Row(row...)
	}
	return t
}

// notes writes what is neither an error nor a warning.
func (c *inspectedPart) notes(p *ui.Page) {
	name := quote.Printable(c.Name)
	if c.Unchecked != "" {
		p.Printf("note: %s: names and shapes are not checked: %s\n", name, quote.Printable(c.Unchecked))
	}
	var unused []string
	for _, tensor := range c.Tensors {
		if tensor.Unused {
			unused = append(unused, quote.Printable(tensor.Name))
		}
	}
	if len(unused) > 0 {
		p.Printf("note: %s: %s not needed: %s\n", name, ui.Plural(len(unused), "tensor"), ui.FirstOf(unused, 3))
	}
}
