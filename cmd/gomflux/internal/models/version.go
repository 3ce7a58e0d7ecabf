package models

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

const versionHelp = `Version prints the version of gomflux, the Go version and the platform.

With --json it prints one object: version, go, platform, system, time, and of
MLX its version (mlx), whether it finds a GPU (gpu), the backends that connect
processes (backends), or the problem if it is unusable.
` + cli.ExitStatus

func NewVersionCommand() *cobra.Command {
	var o cli.OutputFlags
	var listen []string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  versionHelp,
		Args:  cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !o.JSON {
				return o.Out(cmd).Result(cli.VersionInfo{})
			}
			return o.Out(cmd).Result(cli.NewVersionInfo(cmd.Context(), listen))
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	cmd.Flags().StringSliceVar(&listen, "listen", nil, "with --json: report whether these `addresses` are free")
	cmd.Flags().MarkHidden("listen") // for gomflux launch
	return cmd
}
