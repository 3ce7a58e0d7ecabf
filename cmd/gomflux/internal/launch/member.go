package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

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
