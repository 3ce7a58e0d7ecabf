package launch

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A speed is that of the connection of two ranks.
type speed struct {
	Latency   float64 `json:"latency_seconds"` // of gathering one number
	Bandwidth float64 `json:"bits_per_second"` // in each direction, while both send
}

// newMeasureCommand is the command that doctor --hosts launches on every pair.
func newMeasureCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "measure BACKEND",
		Short:  "Measure the connection of two ranks (doctor --hosts does this)",
		Hidden: true,
		Args:   cli.OneArg("the backend"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := mlx.Open(); err != nil {
				return cli.Coded(cli.ExitLibrary, err)
			}
			return mlx.Do(cmd.Context(), func() error {
				g, err := mlx.JoinGroup(args[0])
				if err != nil {
					return err
				}
				const elements = 4 << 20 // 16 MB, of the size of a layer's keys and values
				return ui.WriteJSON(cmd.OutOrStdout(), speed{models.GatherTime(g, 1, 100),
					32 * elements / models.GatherTime(g, elements, 4)})
			})
		},
	}
}
