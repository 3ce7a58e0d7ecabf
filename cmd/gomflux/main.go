// Command gomflux generates images from text with diffusion models on Apple's MLX.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/bench"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/debug"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/generate"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/launch"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/models"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/parity"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/serve"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/atomicfile"
)

// Results go to standard output, everything else to standard error. Messages start
// with "gomflux: ", in lower case, without a period at the end, and with a hint if
// the user can do something. See package ui.

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if p := recover(); p != nil {
			atomicfile.RemoveAll()
			fmt.Fprintln(stderr, cli.InternalError(p))
			code = cli.ExitFailure
		}
	}()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer handleSignals(cancel, stderr)()
	stdin = rank.Start(stdin, stderr, func() { // at once: a computation of MLX cannot be aborted
		atomicfile.RemoveAll()
		os.Exit(cli.ExitInterrupted)
	})

	root := newRootCommand()
	started := false // errors before are cobra's, about the command line
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(cli.JoinValues(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var c *cli.CodedError
	switch {
	case err == nil, errors.Is(err, cli.ErrReported):
	case errors.Is(err, cli.ErrInterrupted):
		fmt.Fprintln(stderr, "gomflux: interrupted")
	case !started && !errors.As(err, &c):
		err = cli.UsageErrorf("%w (gomflux --help lists commands and topics)", err)
		fallthrough
	default:
		ui.Complain(stderr, err)
	}
	if !started && slices.Contains([]string{"generate", "edit", "inpaint"}, cmd.Name()) && slices.Contains(args, "--json") {
		cli.Failed(&ui.Output{Stdout: stdout, Format: ui.JSONLines}, err)
	}
	return cli.ExitCode(err)
}

// handleSignals makes the first signal cancel the context and the second one end the
// process: a computation of MLX cannot be aborted.
func handleSignals(cancel context.CancelCauseFunc, stderr io.Writer) (stop func()) {
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead, with an error
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		for {
			got, ok := <-signals
			if !ok {
				return
			}
			if got != os.Interrupt || !cli.Skip() {
				break
			}
		}
		cancel(cli.ErrInterrupted)
		if _, ok := <-signals; !ok {
			return
		}
		atomicfile.RemoveAll()
		fmt.Fprintln(stderr, "gomflux: interrupted")
		os.Exit(cli.ExitInterrupted)
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gomflux",
		Short: "Generate images from text with diffusion models on Apple's MLX",
		Long: `Gomflux generates images from text with diffusion models on Apple's MLX: with
Metal on Macs, with CUDA or on the CPU on Linux.

  gomflux generate --model shapes --prompt "a red circle left of a blue square"`,
		Version:       cli.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,

		DisableSuggestions: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(strings.NewReplacer(
		".FlagUsages", ".FlagUsagesWrapped 80",
		"{{rpad .CommandPath .CommandPathPadding}}", `{{rpad (printf "%s help %s" .Parent.Name .Name) 24}}`,
	).Replace(root.UsageTemplate()))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return cli.UsageErrorf("%w (%s --help lists the flags)", err, cmd.CommandPath())
		}
		return cli.Coded(cli.ExitUsage, err)
	})
	root.AddCommand(
		generate.NewCommand(), generate.NewEditCommand(), generate.NewInpaintCommand(), generate.NewUpscaleCommand(), bench.NewCommand(),
		models.NewInfoCommand(), models.NewModelsCommand(), models.NewListCommand(), models.NewShowCommand(),
		models.NewPullCommand(), models.NewRmCommand(), models.NewCacheCommand(), models.NewSaveCommand(),
		models.NewDecodeCommand(), models.NewDescribeCommand(), models.NewRoundtripCommand(), models.NewInspectCommand(),
		serve.NewCommand(), launch.NewCommand(),
		parity.NewCommand(), parity.NewTensorsCommand(), debug.NewCommand(newRootCommand),
		models.NewDoctorCommand(), models.NewVersionCommand(), newCompletionCommand(),
	)
	root.AddCommand(newTopics()...)
	checkTopics(root)
	registerCompletions(root) // of all commands above
	return root
}
