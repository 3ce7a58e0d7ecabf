package launch

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

// An order is what a rank is started with: the first line of its standard input. So nothing has to be
// quoted for the shell of another machine, nor can others see it in a list of processes.
type order struct {
	Args   []string          `json:"args"`
	Env    []string          `json:"env"`
	Files  map[string]string `json:"files"` // contents of files that variables name
	Folder string            `json:"folder"`

	rank int
}

// newRankCommand is the command that the launcher runs on every host. It becomes the command of the order.
func newRankCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "rank",
		Short:  "Run the command that is on standard input (gomflux launch does this on every host)",
		Hidden: true,
		Args:   cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := readOrder(os.Stdin)
			if err != nil {
				return cli.Coded(cli.ExitUsage, fmt.Errorf("order of the launcher: %w", err))
			}
			return o.obey(cmd.ErrOrStderr())
		},
	}
}

// readOrder reads a line, and nothing after it, which the command reads.
func readOrder(r io.Reader) (o order, err error) {
	var line strings.Builder
	for b := []byte{0}; b[0] != '\n'; line.Write(b) {
		if _, err := io.ReadFull(r, b); err != nil {
			return o, err
		}
	}
	return o, json.Unmarshal([]byte(line.String()), &o)
}

// obey replaces this process by that of the command.
func (o *order) obey(stderr io.Writer) error {
	if err := os.Chdir(o.Folder); err != nil {
		folder, _ := os.Getwd()
		fmt.Fprintf(stderr, "gomflux: warning: %v, so that files are in %s\n", err, folder)
	}
	for name, text := range o.Files {
		path, err := openFile(text)
		if err != nil {
			return err
		}
		o.Env = append(o.Env, name+"="+path)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, append([]string{os.Args[0]}, o.Args...), append(os.Environ(), o.Env...))
}

// openFile returns the name of an open file without a name in a folder, so that nothing is left of it,
// however the process ends.
func openFile(text string) (string, error) {
	f, err := os.CreateTemp("", "gomflux-")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return "", err
	}
	if _, err := f.WriteString(text); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil { // on a Mac a file opened by /dev/fd shares its offset
		return "", err
	}
	fd, err := unix.Dup(int(f.Fd())) // without close-on-exec
	return fmt.Sprintf("/dev/fd/%d", fd), err
}
