package debug

import (
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/checkpoint"
)

// stopVariables are what debug vars prints.
type stopVariables struct{ protocol.Variables }

func (v stopVariables) Text(p *ui.Page) {
	var t ui.Table
	t.Row("NAME", "DTYPE", "SHAPE", "min", "max", "mean", "std", "nan", "inf", "first values")
	for _, one := range v.Variables.Variables {
		if one.Value == "" {
			row := append([]string{one.Name, one.Dtype, shapeText(one.Shape)}, statCells(one.Stats)...)
			t.Row(append(row, firstValues(one.Preview))...)
		}
	}
	if len(t) > 1 {
		p.Table(t)
	}
	for _, one := range v.Variables.Variables {
		switch {
		case one.Value == "":
		case one.Dtype == "": // not a tensor
			line(p, "%s = %s", one.Name, one.Value)
		default:
			line(p, "%s %s: %s", one.Name, tensorType(one.Dtype, one.Shape), one.Value)
		}
	}
	if len(v.Parameters) == 0 {
		return
	}
	p.Printf("parameters\n")
	t = nil
	for _, one := range v.Parameters {
		row := []string{one.Path, one.Dtype, shapeText(one.Shape)}
		if one.Stats != nil {
			row = append(row, statCells(*one.Stats)...)
		}
		if one.Quantized != "" {
			row = append(row, fmt.Sprintf("(quantized: %s)", one.Quantized))
		}
		t.Row(row...)
	}
	p.Table(t)
}

// firstValues are the first three values of a tensor.
func firstValues(preview []checkpoint.Float) string {
	var words []string
	for _, v := range preview[:min(3, len(preview))] {
		words = append(words, fmt.Sprintf("%.4g", float64(v)))
	}
	return strings.Join(words, " ")
}

// statCells are the cells of a table for statistics.
func statCells(s checkpoint.Stats) []string {
	return []string{number6(s.Min), number6(s.Max), number6(s.Mean), number6(s.Std), fmt.Sprint(s.NaN), fmt.Sprint(s.Inf)}
}

// variableText describes a tensor in a line.
func variableText(v protocol.Variable) string {
	s := v.Stats
	text := fmt.Sprintf("%s %s  min %s  max %s  mean %s  std %s", v.Name, tensorType(v.Dtype, v.Shape),
		number6(s.Min), number6(s.Max), number6(s.Mean), number6(s.Std))
	if s.NaN > 0 {
		text += fmt.Sprintf("  nan %d", s.NaN)
	}
	if s.Inf > 0 {
		text += fmt.Sprintf("  inf %d", s.Inf)
	}
	return text
}

// number6 returns a number with six digits.
func number6(v checkpoint.Float) string { return fmt.Sprintf("%.6g", float64(v)) }
