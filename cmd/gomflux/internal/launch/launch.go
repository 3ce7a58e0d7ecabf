package launch

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

const launchHelp = `Launch runs a command of gomflux on several machines, or several times on one,
as the ranks of a group that MLX connects. The command then spreads its work.

MACHINES
--hosts names machines as ssh does; the first one is rank 0. ssh must reach each
without asking for a password (ssh-copy-id), and gomflux must have the same
version there. localhost is this machine. The ranks connect to the addresses by
which ssh reaches the machines. For other cables a file of mlx.launch names
addresses, and with jaccl devices (mlx.distributed_config writes it):

  [{"ssh": "mac1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]},
   {"ssh": "mac2", "ips": ["10.0.0.2"], "rdma": ["rdma_en2", null]}]

It can also be an object with hosts, backend and envs (a list of NAME=VALUE).
gomflux doctor --hosts checks the machines and the network between them.

Ranks run in the folder of the same name as this one, if the machine has it, or
in the home folder. --model and input files must be on every machine.

OUTPUT
Standard output is that of rank 0, which writes the images, on its own machine.
Messages of the others begin with their name. A command that reads its prompt
from standard input (--prompt -) reads that of the launcher, on every rank.

FAULTS
A rank that fails, is killed, or is silent for 20 seconds, because its machine
sleeps or was unplugged, ends all others, and the error names it. So does one
that stays in a step for 20 seconds and for four times the longest step. If
each rank generates images of its own, the others are started again instead,
for the images that are missing. Ctrl-C ends all. Ranks end by themselves if
the launcher or the connection to it is gone.

The connections of the ring are neither encrypted nor authenticated: use cables
or networks that you trust.

mlx.launch can start gomflux too, without what FAULTS describes:
mlx.launch --hostfile hosts.json -- gomflux generate ...
` + cli.ExitStatus + `
Other codes are those of the command.`

func NewCommand() *cobra.Command {
	o := NewFlags()
	cmd := &cobra.Command{
		Use:   "launch (--hosts NAMES | --hostfile FILE | --local N) -- COMMAND ...",
		Short: "Run a command on several machines or GPUs at once",
		Long:  launchHelp,
		Example: `  gomflux launch --hosts mac1,mac2 -- generate -m z-image-turbo -p "a lighthouse" --seed 1 2 3 4
  gomflux launch --hostfile hosts.json --backend jaccl -- generate -m flux2-dev -p "a lighthouse"
  gomflux launch --local 2 -- generate -m qwen-image -p "a lighthouse"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := o.group()
			switch {
			case err != nil:
				return cli.Coded(cli.ExitUsage, err)
			case len(args) == 0:
				return cli.UsageErrorf("the command is missing (gomflux launch --local 2 -- generate --prompt ...)")
			case args[0] == "launch":
				return cli.UsageErrorf("launch cannot start launch")
			}
			out := (&cli.OutputFlags{}).Out(cmd)
			if err := g.prepare(cmd.Context()); err != nil {
				return cli.ComplainAll(out, err)
			}
			var input []byte
			if slices.ContainsFunc(args, func(arg string) bool { return arg == "-" || strings.HasSuffix(arg, "=-") }) {
				if input, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			return g.run(cmd.Context(), out, args, string(input))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // the flags after the command are its own
	o.AddHosts(f)
	o.addRun(f)
	cmd.AddCommand(newRankCommand(), newMeasureCommand())
	return cmd
}
