package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

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

// An order is what a rank is started with: the first line of its standard input. So nothing has to be
// quoted for the shell of another machine, nor can others see it in a list of processes.
type order struct {
	Args   []string          `json:"args"`
	Env    []string          `json:"env"`
	Files  map[string]string `json:"files"` // contents of files that variables name
	Folder string            `json:"folder"`
}

// newRankCommand is the command that the launcher runs on every host. It becomes the command of the order.
func newRankCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "rank",
		Short:  "Run the command that is on standard input (gomflux launch does this on every host)",
		Hidden: true,
		Args:   cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Reset() // or the process that follows would not know of a signal
			o, err := readOrder(os.Stdin)
			switch {
			case cmd.Context().Err() != nil:
				return context.Cause(cmd.Context())
			case err != nil:
				return cli.UsageErrorf("order of the launcher: %w", err)
			}
			return o.obey(cmd.ErrOrStderr())
		},
	}
}

// readOrder reads a line, and nothing after it, which the command reads.
func readOrder(r io.Reader) (o order, err error) {
	var line []byte
	for b := []byte{0}; b[0] != '\n'; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return o, err
		}
	}
	return o, json.Unmarshal(line, &o)
}

// obey replaces this process by that of the command.
func (o *order) obey(stderr io.Writer) error {
	if err := os.Chdir(o.Folder); err != nil {
		folder, _ := os.Getwd()
		fmt.Fprintf(stderr, "gomflux: warning: %v, so that files are in %s\n", err, folder)
	}
	for name, text := range o.Files { // short ones, which MLX reads once: as pipes that stay open
		var ends [2]int
		err := syscall.Pipe(ends[:])
		if err == nil {
			_, err = syscall.Write(ends[1], []byte(text))
			syscall.Close(ends[1])
		}
		if err != nil {
			return err
		}
		o.Env = append(o.Env, fmt.Sprintf("%s=/dev/fd/%d", name, ends[0]))
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, append(os.Args[:1], o.Args...), append(os.Environ(), o.Env...))
}
