package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// A screen is where all ranks write. It guards what they have written.
type screen struct {
	sync.Mutex
	stdout, stderr io.Writer
	tty            bool
	status         string // the last line of a terminal, which changes
}

// print writes a text above the status, which it replaces. The screen is locked.
func (s *screen) print(to io.Writer, text, status string) {
	if s.status != "" || status != "" {
		io.WriteString(s.stderr, "\r\x1b[K")
	}
	io.WriteString(to, text)
	io.WriteString(s.stderr, status)
	s.status = status
}

// show replaces the status. The screen is locked.
func (s *screen) show(status string) {
	status = fmt.Sprintf("%.79s", status) // it must not become two lines
	if s.tty && status != s.status {
		s.print(s.stderr, "", status)
	}
}

// Write writes standard output of rank 0.
func (s *screen) Write(text []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	s.print(s.stdout, string(text), s.status)
	return len(text), nil
}

// A process is a rank that was started: gomflux itself, or the ssh that runs it elsewhere. Its screen guards what follows it.
type process struct {
	*host
	name, prefix string
	cmd          *exec.Cmd
	kill         func()
	stdin        io.WriteCloser // the life line: the rank ends when it is closed
	over         bool           // it has ended
	why          cause          // why it has failed, or is given up while it runs

	screen       *screen
	unread, last string        // of standard error, the line that is not complete and the last one that is
	held         bool          // that is an error, and not printed yet
	beat         rank.Beat     // what it has reported; Done has all images
	silence      time.Duration // since it has written something, counted in ticks, so not while this process is stopped
	still        time.Duration // in beat.Step
}

// start starts a rank. It is sent to ended when it has ended, and all it said is read.
func (g *group) start(number int, o order, input string, s *screen, ended chan<- *process) (*process, error) {
	h := &g.Hosts[number]
	p := &process{host: h, name: g.name(h), screen: s, silence: -max(minStart, 2*h.took)}
	if number > 0 {
		p.prefix = p.name + ": "
	}
	if !g.local {
		p.name += fmt.Sprintf(" (rank %d)", number)
	}
	ctx, kill := context.WithCancel(context.Background()) // it is asked to end before it is killed
	p.cmd, p.kill = g.command(ctx, h, "launch", "rank"), kill
	p.cmd.Stderr = p
	if number == 0 {
		p.cmd.Stdout = s
	}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go func() { // it does not read if it is stopped
		lines := json.NewEncoder(p.stdin)
		err := cmp.Or(lines.Encode(o), lines.Encode(input))
		for ; err == nil; time.Sleep(rank.Interval) {
			_, err = io.WriteString(p.stdin, "\n")
		}
	}()
	go func() {
		p.cmd.Wait() // failure reads its state
		ended <- p
	}()
	return p, nil
}

// Write takes what the rank writes to standard error. A beat can come within a line.
func (p *process) Write(text []byte) (int, error) {
	p.screen.Lock()
	defer p.screen.Unlock()
	p.silence = 0
	p.unread += string(text)
	for line, rest, ended := strings.Cut(p.unread, "\n"); ended; line, rest, ended = strings.Cut(p.unread, "\n") {
		if before, beat, marked := strings.Cut(line, rank.Marker); marked {
			p.unread = before + rest
			p.heard(beat)
		} else {
			p.unread = rest
			p.say(line + "\n")
		}
	}
	return len(text), nil
}

// heard notes a beat.
func (p *process) heard(text string) {
	var b rank.Beat
	if json.Unmarshal([]byte(text), &b) != nil {
		return
	}
	if b.Step != p.beat.Step {
		p.still = 0
	}
	b.Done = append(p.beat.Done, b.Done...)
	p.beat = b
}

// say prints a line, unless gomflux reports an error with it: then it is known only later whether it is the reason or a
// consequence.
func (p *process) say(line string) {
	if strings.HasPrefix(line, "[ring] ") && !strings.HasPrefix(line, "[ring] Rank ") || line == "" {
		return // MLX's lines about a peer that is gone; those about a rank are of MLX_RING_VERBOSE
	}
	p.release()
	p.last, p.held = line, true
	if !strings.HasPrefix(line, "gomflux: ") || strings.HasPrefix(line, "gomflux: warning: ") {
		p.release()
	}
}

// release prints the line that was kept.
func (p *process) release() {
	text := p.last
	if p.prefix != "" {
		text = p.prefix + ui.Escape(strings.TrimRight(text, "\r\n")) + "\n"
	}
	if p.held {
		p.screen.print(p.screen.stderr, text, p.screen.status)
	}
	p.held = false
}

// A cause is why a rank could not go on.
type cause struct {
	text string
	code int  // exit code for the launcher
	lost bool // it cannot be started again
}

// weight is greater for a reason that can be that of the others.
func (c cause) weight() int {
	switch {
	case c.lost:
		return 3
	case c.code == cli.ExitInterrupted:
		return 2
	case !strings.Contains(c.text, "[ring] connection to a peer was lost"): // MLX's words when a rank has ended
		return 1
	}
	return 0
}

// end notes that the process has ended, and why if it has failed.
func (p *process) end() (failed bool) {
	p.screen.Lock()
	defer p.screen.Unlock()
	p.say(p.unread)
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	said := strings.TrimPrefix(strings.TrimSpace(p.last), "gomflux: ")
	p.over, p.why = true, cause{}
	switch code := status.ExitStatus(); {
	case code == 0:
		p.release()
	case status.Signaled():
		p.why = cause{fmt.Sprintf("was killed (signal %d, %v)", status.Signal(), status.Signal()), cli.ExitFailure, true}
	case !p.here() && code == 255:
		p.why = cause{"the connection was lost: " + said, cli.ExitFailure, true}
	case !p.held:
		p.why = cause{fmt.Sprintf("has ended with exit code %d", code), code, false}
	default:
		p.why = cause{said, code, false}
	}
	return p.why != cause{}
}

// silent reports whether the process has said nothing for so long that this is why it is given up, or will be soon.
func (p *process) silent() bool { return p.silence > rank.Silence-same }

// missing reports whether beats have not come.
func (p *process) missing() bool { return p.silence > 3*rank.Interval }

// late returns a problem of a process that is silent, has lost connections, or gets no further, and by how much it is too
// late for it.
func (p *process) late(r *members) (problem string, by time.Duration) {
	limit := max(patience, time.Duration(4*r.longest*float64(time.Second)).Round(time.Second))
	if p.beat.Longest == 0 {
		limit += compiling
	}
	switch {
	case p.silent():
		return fmt.Sprintf("was silent for %v (stopped, asleep or unplugged)", rank.Silence), p.silence - rank.Silence
	case r.joining > patience:
		return fmt.Sprintf("have not found each other for %v (is there a firewall, or a cable unplugged?)", patience), r.joining - patience
	case r.lost > 0 && p.beat.Lost == r.lost:
		return "the connection to other ranks was lost (is a cable unplugged?)", r.cut - same // MLX may say so before
	case r.lost == 0 && p.beat.Step > 0 && r.longest > 0:
		return fmt.Sprintf("got no further than %s for %v (no step before took more than %.2g s)", ui.Plain(p.beat.Progress), limit,
			r.longest), p.still - limit
	}
	return "", -same
}
