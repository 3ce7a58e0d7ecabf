package runs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// finite returns an error if a tensor is not finite everywhere, which describes the inputs of its module too.
func (s *Session) finite(tap hooks.Tap) error {
	if tap.Output.AllFinite() {
		return nil
	}
	out, err := FromArray(tap.FullName(), tap.Output)
	if err != nil {
		return err
	}
	stats := out.Stats()
	text := fmt.Sprintf("%d of %d values are not finite (%s, %s)", stats.NaN+stats.Inf, out.Len(), out.Tensor().Type(), stats.Range())
	made := "its inputs are finite, so this module produced them"
	var inputs []string
	for _, in := range tap.Inputs {
		x, err := FromArray(in.Key, in.Array)
		if err != nil {
			return err
		}
		stats := x.Stats()
		inputs = append(inputs, fmt.Sprintf("in.%s %s from %s", in.Key, x.Tensor().Type(), stats.Range()))
		if stats.NaN > 0 {
			made = fmt.Sprintf("in.%s already has them, so they come from an earlier module", in.Key)
		}
	}
	if len(inputs) > 0 {
		text += "; " + made + ": " + strings.Join(inputs, ", ")
	}
	return errors.New(text)
}
