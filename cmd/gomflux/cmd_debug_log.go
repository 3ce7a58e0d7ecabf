package main

import (
	"bytes"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugLogHelp = `Log prints what the run has printed: progress, warnings, and the names of images.
It works after the end of the run too.

With --json it prints one object: lines.
` + sessionStatus

func newDebugLogCommand() *cobra.Command {
	var o sessionFlags
	lines := count("number")
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Print what the run has printed",
		Long:    debugLogHelp,
		Example: `  gomflux debug log --lines 20`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := o.choose()
			if err != nil {
				return err
			}
			if s.Ended() {
				return o.out(cmd).Result(sessionLog{protocol.Lines{Lines: lastLines(s.Output, lines.orZero())}})
			}
			return call[sessionLog](cmd, &o, protocol.Log, protocol.LogArguments{Lines: lines.orZero()})
		},
	}
	o.add(cmd)
	cmd.Flags().VarP(&lines, "lines", "n", "print only the last lines (default: all)")
	return cmd
}

const (
	mostLog     = 1 << 20 // bytes that are read from the end of a file of output
	shownOutput = 5       // lines of the output of a failed run
)

// lastLines returns the last n lines of a file, or all if n is 0. A file that cannot be
// read has no lines.
func lastLines(file string, n int) []string {
	f, err := os.Open(file)
	if err != nil {
		return []string{}
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return []string{}
	}
	start := max(0, size-mostLog)
	text, err := io.ReadAll(io.NewSectionReader(f, start, mostLog))
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return []string{}
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if start > 0 {
		lines = lines[1:] // the first is not whole
	}
	if n > 0 {
		lines = lines[max(0, len(lines)-n):]
	}
	return lines
}
