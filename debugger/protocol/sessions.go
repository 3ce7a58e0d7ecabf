package protocol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/parity/runs"
)

const (
	maxStatus  = 16 << 20               // size of NAME.json, in bytes
	askTimeout = 500 * time.Millisecond // for a session's own answer about its state
)

// ErrNoSession means that no session has been found.
var ErrNoSession = errors.New("no session")

var (
	ends   = []string{Finished, Failed, Killed, Terminated}
	states = append([]string{Starting, Loading, Running, Stopped}, ends...)
)

// Ended reports whether the session has ended.
func (s Status) Ended() bool { return slices.Contains(ends, s.State) }

// In reports whether a session belongs to a folder: it was started there or in a folder above, or it is
// not known where. Every session belongs to "".
func (s Status) In(folder string) bool {
	if s.Folder == "" || folder == "" {
		return true
	}
	below, err := filepath.Rel(s.Folder, folder)
	return err == nil && filepath.IsLocal(below)
}

// WorkingFolder returns the working directory, to which a new session belongs.
func WorkingFolder() string {
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return ""
	}
	return dir
}

// An EndedError is about a session that has ended.
type EndedError struct{ Status Status }

func (e *EndedError) Error() string {
	s := e.Status
	text := "session " + s.Session
	switch s.State {
	case Killed:
		text += ": its process was killed"
	case Failed:
		text += " has failed: " + s.Error
	case Terminated:
		text += " was terminated"
	default:
		text += " has finished"
	}
	return fmt.Sprintf("%s (%s start begins another)", text, program(s.Side))
}

// Sessions returns the sessions in the folder: the live ones as they answer, or as
// last known if they do not answer at once, and those that have ended. It removes the
// sockets, locks and temporary files of sessions that were killed.
func (f *Folder) Sessions() ([]Status, error) { return f.each(f.ask) }

// each calls look for every session of the folder.
func (f *Folder) each(look func(name string) (*Status, error)) ([]Status, error) {
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	all := []Status{}
	var errs []error
	for _, name := range names {
		s, err := look(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("session %s: %w", name, err))
		}
		if s != nil {
			all = append(all, *s)
		}
	}
	return all, errors.Join(errs...)
}

// names returns the names of all sessions that have files.
func (f *Folder) names() ([]string, error) {
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		for _, suffix := range suffixes {
			if name, ok := strings.CutSuffix(e.Name(), suffix); ok && CheckName(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.SortFunc(names, checkpoint.CompareNames)
	return slices.Compact(names), nil
}

// ask returns the state of a session by its own answer, or that of look.
func (f *Folder) ask(name string) (*Status, error) {
	s, err := f.look(name)
	if s == nil || s.Ended() {
		return s, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c, err := dial(ctx, f, name)
	if err != nil {
		return f.lookAgain(name, lockWait)
	}
	defer c.Close()
	var own Status
	if err := c.Do(ctx, GetStatus, nil, &own); err != nil || !slices.Contains(states, own.State) {
		return f.look(name)
	}
	own.Session = name
	if own.Ended() { // its process is about to remove its files
		c.Close()
		if s, err := f.lookAgain(name, endWait); err == nil && s != nil && s.Ended() {
			return s, nil
		}
	}
	return &own, nil
}

// look returns the state of a session from its files. If its process was killed, it
// removes all files except NAME.json, which then has the state [Killed]. The result is
// nil if nothing is left.
func (f *Folder) look(name string) (*Status, error) { return f.lookAgain(name, 0) }

// lookAgain is look, which for a time does not believe that a session lives: another
// process may just clean up.
func (f *Folder) lookAgain(name string, wait time.Duration) (*Status, error) {
	s, err := f.readStatus(name)
	if err == nil && s.Ended() && !f.has(name, lockSuffix) {
		return s, nil
	}
	release, lockErr := f.lock(name, wait)
	if errors.Is(lockErr, filelock.ErrHeld) {
		if s, err = f.readStatus(name); err != nil { // the session has only begun
			s = &Status{Session: name, State: Starting, Command: []string{}}
		}
		return s, nil
	}
	if lockErr != nil {
		return nil, lockErr
	}
	defer release()
	s, err = f.readStatus(name) // it may have ended since
	switch {
	case errors.Is(err, fs.ErrNotExist): // killed before it had a state
		s, err = nil, nil
	case err != nil:
		s = &Status{Session: name, State: Killed, Error: err.Error(), Command: []string{}}
		err = f.writeStatus(*s)
	case !s.Ended():
		s.State, s.Progress, s.Stop = Killed, "", nil
		err = f.writeStatus(*s)
	}
	return s, errors.Join(err, f.remove(name, socketSuffix, tempSuffix, lockSuffix))
}

func (f *Folder) has(name, suffix string) bool {
	_, err := os.Lstat(f.file(name, suffix))
	return err == nil
}

func (f *Folder) readStatus(name string) (*Status, error) {
	data, err := checkpoint.ReadFile(os.DirFS(f.Path), name+statusSuffix, maxStatus)
	if err != nil {
		return nil, err
	}
	s, err := parseStatus(data)
	if err == nil && s.Session != name {
		err = fmt.Errorf("it is of session %q", s.Session)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.file(name, statusSuffix), err)
	}
	return s, nil
}

// parseStatus parses NAME.json.
func parseStatus(data []byte) (*Status, error) {
	var s Status
	if err := checkpoint.ParseJSON(data, &s); err != nil {
		return nil, err
	}
	if err := CheckName(s.Session); err != nil {
		return nil, err
	}
	if !slices.Contains(states, s.State) {
		return nil, fmt.Errorf("unknown state %q", s.State)
	}
	return &s, nil
}

// Forget removes NAME.json of sessions that have ended.
func (f *Folder) Forget(sessions []Status) error {
	var errs []error
	for _, s := range sessions {
		if s.Ended() {
			errs = append(errs, f.forget(s.Session))
		}
	}
	return errors.Join(errs...)
}

// forgetWait is how long forget waits for a lock: another command may look at the session, or its
// process may not have released it yet.
const forgetWait = 2 * time.Second

// forget removes NAME.json unless a new session has taken the name.
func (f *Folder) forget(name string) error {
	release, err := f.lock(name, forgetWait)
	if errors.Is(err, filelock.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	return f.remove(name, statusSuffix, socketSuffix, tempSuffix, lockSuffix)
}

// Choose returns the session that a command of a side is meant for: the named one, of
// either side and of any folder, or the only live one of the own side that belongs to the
// working directory, or if no session lives the last one that has ended. The caller must
// check whether the session has ended. The state is from the session's file and may be
// out of date.
func (f *Folder) Choose(name, side, working string) (Status, error) {
	if name != "" {
		return f.named(name)
	}
	all, err := f.each(f.look)
	if err != nil {
		return Status{}, err
	}
	var live []Status
	var ended Status
	elsewhere := 0
	for _, s := range all {
		switch {
		case s.Side != side && s.Side != "":
		case !s.In(working):
			elsewhere++
		case s.Ended():
			if ended.Session == "" || s.Began >= ended.Began {
				ended = s
			}
		default:
			live = append(live, s)
		}
	}
	start := program(side) + " start begins one"
	switch {
	case len(live) == 1:
		return live[0], nil
	case len(live) > 1:
		return Status{}, fmt.Errorf("%d sessions are running: %s (choose one with --session)", len(live), namesOf(live))
	case ended.Session != "":
		return ended, nil
	case elsewhere > 0:
		return Status{}, fmt.Errorf("%w of this folder (%d of others: gomflux debug sessions --user lists them; %s)",
			ErrNoSession, elsewhere, start)
	}
	return Status{}, fmt.Errorf("%w (%s)", ErrNoSession, start)
}

func (f *Folder) named(name string) (Status, error) {
	if err := CheckName(name); err != nil {
		return Status{}, err
	}
	exists := slices.ContainsFunc(suffixes, func(suffix string) bool { return f.has(name, suffix) })
	if exists {
		if s, err := f.look(name); s != nil {
			return *s, err
		} else if err != nil {
			return Status{}, err
		}
	}
	all, err := f.each(f.look)
	if err != nil {
		return Status{}, err
	}
	if len(all) == 0 {
		return Status{}, fmt.Errorf("%w %s", ErrNoSession, name)
	}
	return Status{}, fmt.Errorf("%w %s (there are: %s)", ErrNoSession, name, namesOf(all))
}

func namesOf(sessions []Status) string {
	var names []string
	for _, s := range sessions {
		names = append(names, s.Session)
	}
	return strings.Join(names, ", ")
}

// program returns the command for the sessions of a side.
func program(side string) string {
	if side == runs.Reference {
		return "gomflux-reference debug"
	}
	return "gomflux debug"
}
