package runs

import (
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// finite returns an error if a tensor is not finite everywhere.
func (s *Session) finite(tap hooks.Tap) error {
	if tap.Output.AllFinite() {
		return nil
	}
	out, err := FromArray(tap.FullName(), tap.Output)
	if err != nil {
		return err
	}
	e := &NotFiniteTensorError{Name: out.Name, Output: out.Tensor(), Stats: out.Stats()}
	for _, in := range tap.Inputs {
		x, err := FromArray(in.Key, in.Array)
		if err != nil {
			return err
		}
		e.Inputs = append(e.Inputs, InputStats{x.Tensor(), x.Stats()})
	}
	return e
}

// A NotFiniteTensorError describes the first tensor of a run with NaN or infinite values.
type NotFiniteTensorError struct {
	Name   string
	Output checkpoint.Tensor
	Stats  checkpoint.Stats
	Inputs []InputStats // of the module that made it
}

// InputStats has the statistics of a module's input. Its name is its position or keyword.
type InputStats struct {
	checkpoint.Tensor
	checkpoint.Stats
}

func (e *NotFiniteTensorError) Error() string {
	text := fmt.Sprintf("%d of %d values are not finite (%s, %s)",
		e.Stats.NaN+e.Stats.Inf, e.Output.Len(), e.Output.Type(), e.Stats.Range())
	made := "its inputs are finite, so this module produced them"
	var inputs []string
	for _, in := range e.Inputs {
		inputs = append(inputs, fmt.Sprintf("in.%s %s from %s", in.Name, in.Type(), in.Range()))
		if in.NaN > 0 {
			made = fmt.Sprintf("in.%s already has them, so they come from an earlier module", in.Name)
		}
	}
	if len(inputs) == 0 {
		return text
	}
	return text + "; " + made + ": " + strings.Join(inputs, ", ")
}
