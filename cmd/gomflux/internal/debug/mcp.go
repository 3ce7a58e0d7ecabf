package debug

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

const debugMCPHelp = `Mcp offers the debugger to a coding assistant: the commands of gomflux debug,
gomflux parity and gomflux inspect, and those of gomflux tensors that look into
runs, as tools of a server for the Model Context Protocol on standard input and
output. The assistant starts it. Most have a file in which it is registered:

  {
    "mcpServers": {
      "gomflux": {
        "command": "gomflux",
        "args": ["debug", "mcp"]
      }
    }
  }

A tool is named after its command: debug_break, tensors_list, parity_run. Its
arguments are the flags of the command, with _ for -, and the other arguments by
name. It runs the command, which cannot take --json, in a process of its own, in
the folder in which the server was started, and returns the text that it prints:
the verdict of a comparison first, and at most 20 kB. If the command fails
without a result, the tool reports an error: the message, and the exit code,
which is also in _meta as exit_code.

A request that the assistant cancels ends as with Ctrl-C: a session lives on.
The server ends when its standard input is closed, which cancels requests after
a second. Sessions live on then too.
Its log goes to standard error.

EXIT STATUS
  0    standard input was closed
  1    an error while running
  2    invalid input
  130  interrupted`

func newDebugMCPCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "Offer these commands to a coding assistant, as tools (MCP)",
		Long:  debugMCPHelp,
		Example: `  gomflux debug mcp
  claude mcp add gomflux -- gomflux debug mcp`,
		Args: cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveAssistant(cmd.Context(), cmd.Root(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// afterEnd is how long calls may still run when the client is gone.
const afterEnd = time.Second

// serveAssistant serves the tools until the client is gone, and waits for their processes.
func serveAssistant(ctx context.Context, root *cobra.Command, in io.Reader, out, log io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel() // comes first
	server := mcp.NewServer(&mcp.Implementation{Name: "gomflux", Version: cli.Version()}, &mcp.ServerOptions{
		Instructions: assistantInstructions,
		Logger:       slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	for _, a := range assistantTools() {
		if err := a.describe(root); err != nil {
			return err
		}
		server.AddTool(a.tool(), func(request context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			calls.Add(1)
			defer calls.Done()
			request, end := context.WithCancel(request)
			defer end()
			defer context.AfterFunc(ctx, end)()
			return a.call(request, json.RawMessage(r.Params.Arguments))
		})
	}
	gone := func() { time.AfterFunc(afterEnd, cancel) }
	client, err := server.Connect(ctx, &mcp.IOTransport{Reader: &watched{io.NopCloser(in), gone}, Writer: unclosed{out}}, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { client.Close() })()
	err = client.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, cli.ErrInterrupted) {
		return cause
	}
	return err
}

// A watched is a reader that reports its end.
type watched struct {
	io.ReadCloser
	ended func()
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err != nil {
		w.ended()
	}
	return n, err
}

// An unclosed is a writer that is not closed.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
