package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/expr"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/runs"
)

// A debugHost is the debugging session that a command runs under. A nil one does nothing.
type debugHost struct {
	name    string // of the session, "" for the first free number
	command []string
	output  string   // file
	ready   *os.File // gets a line when the session can be used
	tree    *runs.Tree
	cancel  context.CancelCauseFunc // of the run

	session  *debugger.Session
	reserved *protocol.Reservation
	stop     context.CancelFunc // of the server
	served   chan struct{}      // closed when it has stopped
	ended    sync.Once
}

type debugHostKey struct{}

// debugHostOf returns the session of a command's context, or nil.
func debugHostOf(ctx context.Context) *debugHost {
	h, _ := ctx.Value(debugHostKey{}).(*debugHost)
	return h
}

// begin begins the session, after the command has checked its flags, and waits until a client lets
// the run begin.
func (h *debugHost) begin(ctx context.Context, replay bool) error {
	if h == nil {
		return nil
	}
	folder, err := protocol.OpenFolder()
	if err != nil {
		return coded(exitUsage, err)
	}
	if h.reserved, err = folder.Reserve(h.name); err != nil {
		return coded(exitUsage, err)
	}
	h.session, err = debugger.New(debugger.Options{
		Name: h.reserved.Name, Command: h.command, PID: os.Getpid(), Output: h.output, Tree: h.tree, Replay: replay,
		Compare: compareForExpressions,
		Context: ctx, Terminate: h.terminate, Kill: h.kill,
	})
	if err != nil {
		h.reserved.Close(protocol.Status{})
		return err
	}
	listener, err := h.reserved.Listen()
	if err != nil {
		return coded(exitUsage, err)
	}
	serve, stop := context.WithCancel(context.Background())
	h.stop, h.served = stop, make(chan struct{})
	go func() {
		defer close(h.served)
		protocol.Serve(serve, listener, h.session.Handle)
	}()
	runs.StopAtCheckpoints(h.session.Checkpoint)
	status := h.session.Status()
	if err := h.reserved.WriteStatus(status); err != nil {
		return err
	}
	line, err := json.Marshal(status)
	if err != nil {
		return err
	}
	h.ready.Write(append(line, '\n')) // if the client has gone, the session lives on
	h.ready.Close()
	return h.session.Begin(ctx)
}

// compareForExpressions is the function compare of expressions.
func compareForExpressions(got, want []float32) expr.Difference {
	d := parity.Compare(got, want)
	return expr.Difference{
		{Name: "l2", Value: d.L2}, {Name: "max", Value: d.Max}, {Name: "max_ref", Value: d.MaxRef}, {Name: "mean", Value: d.Mean},
		{Name: "cosine", Value: d.Cosine}, {Name: "at", Value: d.At}, {Name: "count", Value: d.Count}, {Name: "finite", Value: d.Finite},
	}
}

// terminate ends the run.
func (h *debugHost) terminate(cause error) { h.cancel(fmt.Errorf("%w: %w", errInterrupted, cause)) }

// end ends the session of a command that returned an error.
func (h *debugHost) end(err error) {
	if h.session == nil {
		return
	}
	h.ended.Do(func() {
		code := exitCode(err)
		switch {
		case errors.Is(err, debugger.ErrTerminated):
			err = debugger.ErrTerminated
		case code == exitInterrupted:
			err = errInterrupted
		case errors.Is(err, errDiffers): // the comparison has done its work
			err = nil
		}
		final := h.session.End(err, code)
		h.stop()
		select {
		case <-h.served:
		case <-time.After(time.Second): // an expression is in a step that does not end
		}
		h.session.Close()
		h.reserved.Close(final)
	})
}

// kill ends the process of a run that does not end.
func (h *debugHost) kill() {
	h.end(fmt.Errorf("%w: %w", errInterrupted, debugger.ErrTerminated))
	os.Exit(exitInterrupted)
}

// loading reports the progress of a run.
func (h *debugHost) loading(p gomflux.Progress) {
	if h == nil || p.Phase != gomflux.PhaseLoad {
		return
	}
	text := "loading the " + p.Component
	if p.TotalBytes > 0 {
		text += fmt.Sprintf(" (%d %%)", p.Bytes*100/p.TotalBytes)
	}
	h.session.Loading(text)
}

// loaded reports the modules of the loaded model.
func (h *debugHost) loaded(m *gomflux.Model) {
	if h == nil {
		return
	}
	var modules []hooks.Module
	for _, module := range m.Modules() {
		modules = append(modules, hooks.Module(module))
	}
	h.session.Loaded(modules)
}

// recording reports the folder of the run that is recorded.
func (h *debugHost) recording(run *runs.Run) {
	if h != nil && run != nil {
		h.session.Recording(run.Dir)
	}
}

// replay adds the session to the options of a replay.
func (h *debugHost) replay(p *parity.Options) {
	if h != nil {
		p.Debugger, p.Loaded = h.session.Judged, h.session.Loaded
	}
}
