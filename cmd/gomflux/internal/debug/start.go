package debug

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const debugStartHelp = `Start runs generate, edit, inpaint, parity run or parity live in the background,
in a new debugging session. The session stops before the model is loaded:
gomflux debug continue begins the run. With --run it goes on until the first
breakpoint.

The flags of the command are checked at once, and its errors are reported as
without a session. Its output is in a file that debug status names; debug log
prints it.

A session with a model in memory ends with its run, or with debug terminate. The
name of a session is needed only if there are several; the default is the first
free number.

With --json it prints the status of the session: session, side, state, progress,
stop, error, exit_code, command, pid, folder, began, run, trace, output and
last.
` + debugStatus

// debugStartOptions are the flags of gomflux debug start.
type debugStartOptions struct {
	cli.OutputFlags
	name, logDir string
	breaks       []string
	run          bool
	maxWait      cli.Optional[float64]
}

func newDebugStartCommand() *cobra.Command {
	o := &debugStartOptions{maxWait: cli.Scale("seconds")}
	cmd := &cobra.Command{
		Use:   "start [--break GLOB]... [--run] -- COMMAND ...",
		Short: "Run generate, edit, inpaint or parity run in a session",
		Long:  debugStartHelp,
		Example: `  gomflux debug start -- generate -m shapes -p "a red circle" --seed 7
  gomflux debug start --run --break transformer.layers.0@3 -- generate -m shapes -p "a red circle"
  gomflux debug start --name port -- parity run logs/runs/latest/reference --model ./z-image`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(args); err != nil {
				return err
			}
			return o.start(cmd.Context(), cmd.ErrOrStderr(), o.Out(cmd), args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.breaks, "break", nil, "stop after tensors whose names match a `glob` (can be repeated)")
	f.BoolVar(&o.run, "run", false, "begin the run, and wait until it stops")
	f.Var(&o.maxWait, "max-wait", "with --run: wait at most this long (default: 60)")
	f.StringVar(&o.name, "name", "", "`name` of the session")
	f.StringVar(&o.logDir, "log-dir", "", "`folder` for traces and saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
	o.AddJSON(f, "a JSON object")
	return cmd
}

func (o *debugStartOptions) validate(args []string) error {
	commands := []string{"generate", "edit", "inpaint", "parity run", "parity live"}
	makesRun := slices.ContainsFunc(commands, func(run string) bool { return strings.HasPrefix(strings.Join(args, " ")+" ", run+" ") })
	switch {
	case len(args) == 0:
		return cli.UsageErrorf("the command is missing (gomflux debug start -- generate --prompt ...)")
	case !makesRun:
		return cli.UsageErrorf("%s makes no run (debug start takes %s)",
			strings.Join(args[:min(2, len(args))], " "), strings.Join(commands, ", "))
	case o.maxWait.Given() && !o.run:
		return cli.UsageErrorf("--max-wait has no effect without --run")
	}
	if o.name != "" {
		if err := protocol.CheckName(o.name); err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
	}
	return nil
}

// start starts the session's process, and prints how far it has come.
func (o *debugStartOptions) start(ctx context.Context, stderr io.Writer, out *ui.Output, args []string) error {
	tree, err := runs.Open(o.logDir)
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	if size, err := tree.Size(); err != nil || size > tree.Limit {
		if err == nil {
			err = fmt.Errorf("%s holds %s of runs, the limit is %s (gomflux tensors clear --archive makes room)",
				tree.Root, units.Gigabytes(size), units.Gigabytes(tree.Limit))
		}
		return cli.Coded(cli.ExitUsage, err)
	}
	folder, err := protocol.OpenFolder()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	process, status, err := o.spawn(ctx, tree, stderr, out, args)
	if err != nil || status == nil {
		return err
	}
	client, err := protocol.Dial(ctx, folder, status.Session)
	if err != nil {
		return debugError(err)
	}
	defer client.Close()
	for _, glob := range o.breaks {
		if err := client.Do(ctx, protocol.Break, protocol.BreakArguments{Glob: glob}, nil); err != nil {
			client.Do(context.WithoutCancel(ctx), protocol.Terminate, nil, status)
			process.Wait()
			return errors.Join(debugError(err), folder.Forget([]protocol.Status{*status}))
		}
	}
	if !o.run {
		return out.Result(startedSession{*status})
	}
	return resumeSession(ctx, out, client, protocol.Continue, protocol.ResumeArguments{MaxWait: o.maxWait.OrElse(defaultMaxWait)})
}

// spawn starts the process of a session. It returns nil if the command ended at once without an
// error, as with --help.
func (o *debugStartOptions) spawn(
	ctx context.Context, tree *runs.Tree, stderr io.Writer, out *ui.Output, args []string,
) (*exec.Cmd, *protocol.Status, error) {
	output, err := debugger.NewOutput(tree)
	if err != nil {
		return nil, nil, err
	}
	defer output.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer ready.Close()
	serve := []string{"debug", "serve", "--name=" + o.name, "--output=" + output.Name(), "--log-dir=" + o.logDir, "--"}
	process := cli.Self(context.WithoutCancel(ctx), slices.Concat(serve, args)...)
	process.Stdout, process.Stderr, process.ExtraFiles = output, output, []*os.File{theirs}
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the terminal
	err = process.Start()
	theirs.Close()
	if err != nil {
		os.Remove(output.Name())
		return nil, nil, fmt.Errorf("the session's process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { process.Process.Signal(syscall.SIGTERM) })
	line, err := bufio.NewReader(ready).ReadBytes('\n')
	if stop() && err == nil {
		var status protocol.Status
		if err := json.Unmarshal(line, &status); err != nil {
			return nil, nil, fmt.Errorf("the session's process: %w", err)
		}
		return process, &status, nil
	}
	return nil, nil, o.failed(ctx, process, output.Name(), stderr, out)
}

// failed reports what a command printed that ended before its session began.
func (o *debugStartOptions) failed(ctx context.Context, process *exec.Cmd, output string, stderr io.Writer, out *ui.Output) error {
	err := process.Wait()
	text, readErr := os.ReadFile(output)
	os.Remove(output)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited || readErr != nil {
		return errors.Join(err, readErr)
	}
	if err == nil { // --help
		_, err = out.Stdout.Write(text)
		return err
	}
	stderr.Write(text)
	return cli.Coded(exit.ExitCode(), cli.ErrReported)
}
