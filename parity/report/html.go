package report

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"image/png"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx/hooks"
)

//go:embed report.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{"error": ErrorText, "others": Others.text}).Parse(pageText))

// HTML writes the report as a single page without external files: the chain of stages, plots of
// errors, both images and their difference, and a histogram of each tensor.
func (r *Report) HTML(w io.Writer) error {
	pictures, err := r.images()
	if err != nil {
		return err
	}
	free, isolated := slices.Contains(r.Readings, Free), slices.Contains(r.Readings, Isolated)
	err = page.Execute(w, struct {
		*Report
		Free, Isolated bool
		Blocks, Plot   template.HTML
		Pictures       []pageImage
	}{r, free, isolated, r.blocksPlot(), r.tensorsPlot(), pictures})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// A pageImage is an image on the page.
type pageImage struct {
	Title string
	URL   template.URL
}

// images returns the reference's image, ours, and their difference.
func (r *Report) images() ([]pageImage, error) {
	if len(r.ours) == 0 || len(r.ours) != len(r.reference) {
		return nil, nil
	}
	difference := make([]uint8, len(r.ours))
	for i, v := range r.ours {
		difference[i] = max(v, r.reference[i]) - min(v, r.reference[i])
	}
	most := slices.Max(difference)
	factor := 255 / max(1, most)
	for i := range difference {
		difference[i] *= factor
	}
	var out []pageImage
	for _, p := range []struct {
		title string
		rgb   []uint8
	}{
		{"reference", r.reference}, {"ours", r.ours},
		{fmt.Sprintf("difference, times %d (at most %d of 255)", factor, most), difference},
	} {
		var b bytes.Buffer
		if err := png.Encode(&b, pixels.FromRGB(p.rgb, r.Height, r.Width)); err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		url := "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
		out = append(out, pageImage{p.title, template.URL(url)})
	}
	return out, nil
}

// Size of the plots in pixels, and exponents of the ends of their logarithmic axis.
const (
	plotWidth, plotHeight, plotLeft = 1000, 260, 60
	plotLowest, plotHighest         = -9, 1
)

// plotY returns the vertical position of an error.
func plotY(l2 Number) float64 {
	e := float64(plotLowest)
	switch {
	case !l2.Finite():
		e = plotHighest
	case l2 > 0:
		e = min(max(math.Log10(float64(l2)), plotLowest), plotHighest)
	}
	return 10 + (plotHighest-e)/(plotHighest-plotLowest)*(plotHeight-40)
}

func plotX(i, n int) float64 {
	return plotLeft + (float64(i)+0.5)/float64(max(n, 1))*(plotWidth-plotLeft-10)
}

// beginPlot draws the axis.
func beginPlot(b *strings.Builder) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img">`, plotWidth, plotHeight)
	for e := plotLowest; e <= plotHighest; e += 2 {
		y := plotY(Number(math.Pow10(e)))
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f" class="grid"/><text x="%d" y="%.1f" text-anchor="end">1e%d</text>`,
			plotLeft, plotWidth-10, y, plotLeft-6, y+4, e)
	}
}

// block returns the name of a block (a member of a list of modules) without its step, or "".
func block(t *Tensor) string {
	n, err := hooks.ParseName(t.Name)
	if err != nil || n.Point != (hooks.Point{}) || n.Call > 0 || Depth(n.Module) < 1 || !IsModule(n.Module) {
		return ""
	}
	parts := strings.Split(n.Module, ".")
	if len(parts) > 4 || strings.Trim(parts[len(parts)-1], "0123456789") != "" {
		return ""
	}
	return n.Module
}

// blocksPlot draws the errors of blocks, a line for each stage.
func (r *Report) blocksPlot() template.HTML {
	var names, lines []string
	byStage := map[string]map[string]*Tensor{}
	for _, t := range r.Tensors {
		name := block(t)
		if name == "" || t.best() == nil {
			continue
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if byStage[t.Stage] == nil {
			byStage[t.Stage] = map[string]*Tensor{}
			lines = append(lines, t.Stage)
		}
		byStage[t.Stage][name] = t
	}
	if len(names) == 0 {
		return ""
	}
	var b strings.Builder
	beginPlot(&b)
	last, lists := "", 0
	for i, name := range names {
		if list := hooks.Parent(name); list != last {
			last = list
			y := plotHeight - 4 - 12*(lists%2)
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`, plotX(i, len(names)), y, template.HTMLEscapeString(list))
			lists++
		}
	}
	for line, stage := range lines {
		colour := fmt.Sprintf("hsl(%d 70%% 40%%)", line*67%360)
		drawLine(&b, names, byStage[stage], colour, "", (*Tensor).best)
		drawLine(&b, names, byStage[stage], colour, "4 3", func(t *Tensor) *Reading { return t.Free })
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// drawLine draws one reading of the blocks of a stage.
func drawLine(b *strings.Builder, names []string, blocks map[string]*Tensor, colour, dash string, of func(*Tensor) *Reading) {
	var points []string
	for i, name := range names {
		t := blocks[name]
		if t == nil || of(t) == nil {
			continue
		}
		l2 := of(t).L2
		x, y := plotX(i, len(names)), plotY(l2)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s: L2 %.2e</title></circle>`,
			x, y, colour, template.HTMLEscapeString(t.Name), l2)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-dasharray="%s"/>`, strings.Join(points, " "), colour, dash)
}

// tensorsPlot draws the error of every tensor, in the order in which they are computed: points by
// themselves, rings from the start of the run.
func (r *Report) tensorsPlot() template.HTML {
	var b strings.Builder
	beginPlot(&b)
	stage, labelled := "", 0.0
	for i, t := range r.Tensors {
		x := plotX(i, len(r.Tensors))
		if t.Stage != stage {
			stage = t.Stage
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1[1]f" y1="10" y2="%d" class="grid"/>`, x, plotHeight-30)
			if x-labelled > 60 && x < plotWidth-60 { // there is room
				fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`, x, plotHeight-16, template.HTMLEscapeString(stage))
				labelled = x
			}
		}
		point := func(class string, ok bool, l2 Number) {
			if !ok {
				class += " bad"
			}
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.5" class="%s" data-index="%d"><title>%s: L2 %.2e</title></circle>`,
				x, plotY(l2), class, i, template.HTMLEscapeString(t.Name), l2)
		}
		switch own := t.best(); {
		case t.Stats != nil:
			point("own", t.Stats.OK, t.Stats.largest())
		case own == nil: // another shape
			point("own", false, Infinite)
		default:
			if t.Free != nil {
				point("free", t.Free.OK, t.Free.L2)
			}
			if own != t.Free {
				point("own", own.OK, own.L2)
			}
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}
