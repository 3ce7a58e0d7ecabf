package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
)

// phaseOf returns the phase in which a component runs.
func phaseOf(c component.Component) models.Phase {
	if c.Class.Role == component.Transformer {
		return models.PhaseStep
	}
	return models.PhaseEncode
}

// off returns the relative errors of the estimates of all runs with some constants.
func (b *bench) off(c component.Component, s component.BlockMemory, runs []*measured) (errors []float64) {
	b.trial[c.Class] = s
	defer delete(b.trial, c.Class)
	for _, m := range runs {
		e := m.run.Estimate()
		estimated := e.Step
		if phaseOf(c) == models.PhaseEncode {
			estimated = e.Encode
		}
		errors = append(errors, float64(estimated)/float64(m.peaks[phaseOf(c)])-1)
	}
	return errors
}

// report fits a component's constants and writes them with the errors of the estimates.
func (b *bench) report(w io.Writer, c component.Component, runs []*measured) {
	standard, width := component.DefaultBlockMemory(c.Model), float64(component.Width(c.Model))
	if width == 0 {
		fmt.Fprintf(w, "%s has no blocks.\n\n", c.Class.Name)
		return
	}
	loss := func(s component.BlockMemory) float64 { return squares(b.off(c, s, runs)) }
	if loss(standard) == loss(component.BlockMemory{Blocks: standard.Blocks, Heads: standard.Heads}) {
		fmt.Fprintf(w, "%s is not fitted: another text encoder takes more in all runs.\n\n", c.Class.Name)
		return
	}
	e := runs[0].run.Estimate()
	cpu := b.Device() == mlx.CPU
	fmt.Fprintf(w, "%s, %s: %d runs on the %v in %v, width %.0f\n\n", c.Class.Name, phaseOf(c), len(runs), e.Device, e.Dtype, width)

	first := standard
	if c.Class.Blocks != nil { // with the heads and blocks of the config
		own := c.Class.Blocks(c.Model)
		first.Blocks, first.Heads = own.Blocks, own.Heads
	}
	fitted := fit(first, knobs(cpu, width), loss)
	fmt.Fprintf(w, "\t%s\n\n", literal(fitted, width, cpu))

	columns := []column{{"fitted", b.off(c, fitted, runs)}}
	if c.Class.Blocks != nil {
		columns = append(columns, column{"class", b.off(c, c.Class.Blocks(c.Model), runs)})
	}
	columns = append(columns, column{"default", b.off(c, standard, runs)})
	table(w, phaseOf(c), runs, columns)
}

// A column has the errors with some constants.
type column struct {
	name   string
	errors []float64
}

// table writes the errors of all runs.
func table(w io.Writer, phase models.Phase, runs []*measured, columns []column) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush()
	row := func(name, peak string, value func(column) string) {
		fmt.Fprintf(t, "%s\t%s\t", name, peak)
		for _, c := range columns {
			fmt.Fprintf(t, "%s\t", value(c))
		}
		fmt.Fprintln(t)
	}
	percent := func(x float64) string { return fmt.Sprintf("%+.1f %%", 100*x) }
	row("run", "peak", func(c column) string { return c.name })
	for i, m := range runs {
		peak := fmt.Sprintf("%.1f MB", float64(m.peaks[phase])/1e6)
		row(m.name, peak, func(c column) string { return percent(c.errors[i]) })
	}
	row("mean square", "", func(c column) string { return fmt.Sprintf("%.1f %%", 100*squares(c.errors)) })
	row("worst", "", func(c column) string {
		worst := 0.0
		for _, e := range c.errors {
			if math.Abs(e) > math.Abs(worst) {
				worst = e
			}
		}
		return percent(worst)
	})
	fmt.Fprintln(t)
}

// literal returns the constants that are fitted on a device as a Go literal, relative to the width
// w.
func literal(s component.BlockMemory, width float64, cpu bool) string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }
	if !cpu {
		return fmt.Sprintf("component.BlockMemory{Blocks: %d, Heads: %d, Written: %s * w, Read: %s * w}", s.Blocks, s.Heads,
			number(s.Written/width), number(s.Read/width))
	}
	return fmt.Sprintf("component.BlockMemory{Blocks: %d, Heads: %d, Live: %s * w, Scores: %s, Cast: %s, CastAlone: %s}",
		s.Blocks, s.Heads, number(s.Live/width), number(s.Scores), number(s.Cast), number(s.CastAlone))
}
