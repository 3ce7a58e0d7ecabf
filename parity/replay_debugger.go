package parity

import (
	"strings"

	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
)

// noteJudgement records what a comparison found about a tensor of a call, for the debugger. The first wrong
// tensor of a call counts.
func (r *replay) noteJudgement(tap hooks.Tap, t *report.Tensor, want *mlx.Array) {
	if r.Debugger == nil {
		return
	}
	j := r.judged[tap.Name]
	if j == nil {
		j = &debugger.Judgement{OK: true}
		r.judged[tap.Name] = j
	}
	if tap.Point == (hooks.Point{}) {
		j.Want = want
	}
	text := t.Wrong()
	if !j.OK || text == "" {
		return
	}
	j.OK, j.Text = false, text
	var lines []string
	for _, h := range t.Hints {
		lines = append(lines, h.Text)
	}
	if len(lines) > 0 {
		j.Text += "\n" + strings.Join(lines, "\n")
	}
}

// askDebugger passes a tap to the debugger. It returns what replaces the output: the reference's tensor,
// as without a debugger, unless the debugger has stopped at a wrong one or set another.
func (r *replay) askDebugger(tap hooks.Tap, reference *mlx.Array) (*mlx.Array, error) {
	var j *debugger.Judgement
	if tap.Point == (hooks.Point{}) {
		if j = r.judged[tap.Name]; j == nil {
			j = &debugger.Judgement{OK: true}
		}
		j.Load = r.ref.Array
		delete(r.judged, tap.Name)
	}
	set, next, err := r.Debugger(tap, j)
	switch {
	case err != nil || set != nil:
		return set, err
	case next == debugger.Accept && reference == nil: // accept is refused without a tensor
		return j.Want.AsType(tap.Output.Dtype()), nil
	case next == debugger.Own && j != nil && !j.OK:
		return nil, nil
	}
	return reference, nil
}
