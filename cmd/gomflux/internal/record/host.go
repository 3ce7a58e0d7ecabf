package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/runs"
)

// A Host is the debugging session that a command runs under. A nil one does nothing.
type Host struct {
	Name    string // of the session, "" for the first free number
	Command []string
	Output  string   // file
	Ready   *os.File // gets a line when the session can be used
	Tree    *runs.Tree
	Cancel  context.CancelCauseFunc // of the run

	Session  *debugger.Session
	reserved *protocol.Reservation
	stop     context.CancelFunc // of the server
	served   chan struct{}      // closed when it has stopped
	ended    sync.Once
}

type HostKey struct{}

// HostOf returns the session of a command's context, or nil.
func HostOf(ctx context.Context) *Host {
	h, _ := ctx.Value(HostKey{}).(*Host)
	return h
}

// Begin begins the session, after the command has checked its flags, and waits until a client lets
// the run begin.
func (h *Host) Begin(ctx context.Context, replay bool) error {
	if h == nil {
		return nil
	}
	folder, err := protocol.OpenFolder()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	if h.reserved, err = folder.Reserve(h.Name); err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	h.Session, err = debugger.New(debugger.Options{
		Name: h.reserved.Name, Command: h.Command, PID: os.Getpid(), Folder: protocol.WorkingFolder(),
		Output: h.Output, Tree: h.Tree, Replay: replay,
		Context: ctx, Terminate: h.terminate, Kill: h.kill,
	})
	if err != nil {
		h.reserved.Close(protocol.Status{})
		return err
	}
	listener, err := h.reserved.Listen()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	serve, stop := context.WithCancel(context.Background())
	h.stop, h.served = stop, make(chan struct{})
	go func() {
		defer close(h.served)
		protocol.Serve(serve, listener, h.Session.Handle)
	}()
	runs.StopAtCheckpoints(h.Session.Checkpoint)
	status := h.Session.Status()
	if err := h.reserved.WriteStatus(status); err != nil {
		return err
	}
	line, err := json.Marshal(status)
	if err != nil {
		return err
	}
	h.Ready.Write(append(line, '\n')) // if the client has gone, the session lives on
	h.Ready.Close()
	return h.Session.Begin(ctx)
}

// terminate ends the run.
func (h *Host) terminate(cause error) { h.Cancel(fmt.Errorf("%w: %w", cli.ErrInterrupted, cause)) }

// End ends the session of a command that returned an error.
func (h *Host) End(err error) {
	if h.Session == nil {
		return
	}
	h.ended.Do(func() {
		code := cli.ExitCode(err)
		switch {
		case errors.Is(err, debugger.ErrTerminated):
			err = debugger.ErrTerminated
		case code == cli.ExitInterrupted:
			err = cli.ErrInterrupted
		case errors.Is(err, cli.ErrDiffers): // the comparison has done its work
			err = nil
		}
		final := h.Session.End(err, code)
		h.stop()
		select {
		case <-h.served:
		case <-time.After(time.Second): // an expression is in a step that does not end
		}
		h.Session.Close()
		h.reserved.Close(final)
	})
}

// kill ends the process of a run that does not end.
func (h *Host) kill() {
	h.End(fmt.Errorf("%w: %w", cli.ErrInterrupted, debugger.ErrTerminated))
	os.Exit(cli.ExitInterrupted)
}

// Loading reports the progress of a run.
func (h *Host) Loading(p gomflux.Progress) {
	if h == nil || p.Phase != gomflux.PhaseLoad {
		return
	}
	text := "loading the " + p.Component
	if p.TotalBytes > 0 {
		text += fmt.Sprintf(" (%d %%)", p.Bytes*100/p.TotalBytes)
	}
	h.Session.Loading(text)
}

// Loaded reports the modules of the loaded model.
func (h *Host) Loaded(m *gomflux.Model) {
	if h == nil {
		return
	}
	var modules []hooks.Module
	for _, module := range m.Modules() {
		modules = append(modules, hooks.Module(module))
	}
	h.Session.Loaded(modules)
}

// Recording reports the folder of the run that is recorded.
func (h *Host) Recording(run *runs.Run) {
	if h != nil && run != nil {
		h.Session.Recording(run.Dir)
	}
}

// Replay adds the session to the options of a replay.
func (h *Host) Replay(p *parity.Options) {
	if h != nil {
		p.Debugger = h.Session.Judged
		p.Loaded = func(pipeline *models.Pipeline) { h.Session.Loaded(pipeline.Modules()) }
	}
}
