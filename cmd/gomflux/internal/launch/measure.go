package launch

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
)

// A speed is that of the connection of two ranks.
type speed struct {
	Latency   float64 `json:"latency_seconds"` // of gathering one number
	Bandwidth float64 `json:"bits_per_second"` // in each direction, while both send
}

// Text implements ui.Result.
func (s speed) Text(p *ui.Page) { ui.WriteJSON(p, s) }

// newMeasureCommand is the command that doctor --hosts launches on every pair.
func newMeasureCommand() *cobra.Command {
	var o cli.OutputFlags
	return &cobra.Command{
		Use:    "measure BACKEND",
		Short:  "Measure the connection of two ranks (doctor --hosts does this)",
		Hidden: true,
		Args:   cli.OneArg("the backend"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := mlx.Open(); err != nil {
				return cli.Coded(cli.ExitLibrary, err)
			}
			var s speed
			err := mlx.Do(cmd.Context(), func() (err error) {
				s, err = measure(args[0])
				return err
			})
			if err != nil {
				return err
			}
			return o.Out(cmd).Result(s)
		},
	}
}

// measure joins a group of two and measures it.
func measure(backend string) (s speed, err error) {
	g, err := mlx.JoinGroup(backend)
	if err != nil {
		return s, err
	}
	gather := func(elements, times int) float64 {
		x := mlx.Full(1, mlx.Float32, elements)
		mlx.Eval(x)
		mlx.Eval(g.AllGather(x)) // both are there
		start := time.Now()
		for range times {
			mlx.Eval(g.AllGather(x))
		}
		return time.Since(start).Seconds() / float64(times)
	}
	const elements = 4 << 20 // 16 MB, of the size of a layer's keys and values
	s.Latency = gather(1, 200)
	s.Bandwidth = 32 * elements / gather(elements, 8)
	return s, nil
}
