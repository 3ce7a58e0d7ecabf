package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"image"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// reader returns what the browser tells a screen reader: a line for each part of the page, with its
// role, name, description and states. Live parts, which are read when they change, have their text.
func (b *browser) reader() []string {
	b.Helper()
	var nodes []*accessibility.Node
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		tree, err := cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		nodes = tree.Nodes
		return err
	}))
	byID := map[accessibility.NodeID]*accessibility.Node{}
	for _, n := range nodes {
		byID[n.NodeID] = n
	}
	var lines []string
	for _, n := range nodes {
		role := value(n.Role)
		if n.Ignored || slices.Contains([]string{"none", "generic", "StaticText", "InlineTextBox", "LabelText", "Legend"}, role) {
			continue
		}
		line := fmt.Sprintf("%s %q", role, value(n.Name))
		if d := value(n.Description); d != "" {
			line += fmt.Sprintf(" (%s)", d)
		}
		for _, p := range n.Properties {
			switch p.Name {
			case accessibility.PropertyNameModal, accessibility.PropertyNameDisabled, accessibility.PropertyNameFocused:
				if value(p.Value) == "true" {
					line += " " + string(p.Name)
				}
			case accessibility.PropertyNameChecked:
				line += " checked=" + value(p.Value)
			case accessibility.PropertyNameLive:
				line += fmt.Sprintf(" %s: %s", value(p.Value), contents(byID, n))
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// value returns a value as text, and "" for nil.
func value(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	var text string
	if json.Unmarshal(v.Value, &text) != nil {
		return string(v.Value) // a boolean or a number
	}
	return text
}

// contents returns the text in a part of the page.
func contents(byID map[accessibility.NodeID]*accessibility.Node, n *accessibility.Node) string {
	if value(n.Role) == "StaticText" {
		return value(n.Name)
	}
	var text strings.Builder
	for _, id := range n.ChildIDs {
		if child := byID[id]; child != nil {
			text.WriteString(contents(byID, child))
		}
	}
	return text.String()
}

// TestViewerIsSpoken checks what a screen reader is told in the viewer, at first and after changes.
func TestViewerIsSpoken(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("first", "second")
	b.run(chromedp.Click(".picture .full"))
	b.viewed("second")
	told := func(all ...string) {
		t.Helper()
		for _, want := range all {
			b.until(want+" in:\n"+strings.Join(b.reader(), "\n"), func() bool { return slices.Contains(b.reader(), want) })
		}
	}
	told(`dialog "Image 1 of 2" modal`, `image "second"`, `button "Next image"`, `button "Vary the seed"`, `paragraph "" polite: second`)
	b.run(chromedp.KeyEvent(kb.ArrowRight))
	told(`heading "Image 2 of 2" polite: Image 2 of 2`, `paragraph "" polite: first`)
	b.run(chromedp.KeyEvent(kb.ArrowRight))
	told(`status "" polite: This is the last image.`)
	b.run(chromedp.Click("#view-favourite"))
	told(`status "" polite: Added to favourites.`)
}

// TestPainterIsSpoken checks what a screen reader is told in the painter, at first and after changes.
func TestPainterIsSpoken(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.paintPhoto(image.Pt(80, 60))
	first := b.reader()
	for _, want := range []string{
		`dialog "Paint a mask" modal`, `group "Tool"`, `radio "Brush" checked=true`, `radio "Eraser" checked=false`,
		`radio "Fill an area" checked=false`, `slider "Size:"`, `slider "Zoom:"`,
		`button "Undo" disabled`, `button "Redo" disabled`, `button "Clear"`, `button "Invert"`, `button "Fill all"`,
		`image "photo.png"`, `application "Photo with its mask" (The arrow keys move the brush, with Shift they paint. ` +
			`The other keys are under Keys, at the end.) focused`, `DisclosureTriangle "Keys"`,
		`button "Use this mask"`, `button "Cancel"`, `status "" polite: 0 % of 80x60 pixels are painted.`,
	} {
		if !slices.Contains(first, want) {
			t.Errorf("a screen reader is not told %s, but:\n%s", want, strings.Join(first, "\n"))
		}
	}
	if slices.ContainsFunc(first, func(line string) bool { return strings.Contains(line, `"Generate"`) }) {
		t.Error("a screen reader is told of the page behind the dialog")
	}
	for _, c := range []struct{ key, want string }{
		{kb.ArrowRight, `status "" polite: Brush at 41, 30.`},
		{" ", `status "" polite: Less than 1 % of 80x60 pixels are painted.`},
		{"]", `status "" polite: 7 px`},
		{"+", `status "" polite: 141 %`},
		{"f", `radio "Fill an area" checked=true`},
		{" ", `status "" polite: This place is painted already. Less than 1 % of 80x60 pixels are painted.`},
	} {
		b.run(chromedp.KeyEvent(c.key))
		b.until(fmt.Sprintf("%s after the key %q", c.want, c.key), func() bool { return slices.Contains(b.reader(), c.want) })
	}
	// the tree of Chromium lacks aria-valuetext; the value of the zoom alone is a logarithm
	if got := b.text(`[...document.querySelectorAll("#painter [type=range]")].map(slider => slider.ariaValueText)`); got != "7 px,141 %" {
		t.Errorf("the sliders are at %s", got)
	}
	b.run(chromedp.Click("#clear"), chromedp.Click("#painter-done"))
	const alert = `alert "" assertive: Nothing is painted. Paint the part of the photo that is to be generated.`
	b.until(alert, func() bool { return slices.Contains(b.reader(), alert) })
}
