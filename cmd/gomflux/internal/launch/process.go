package launch

import (
	"bufio"
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

// A screen is where all ranks write. Its status is a last line on a terminal, which changes.
type screen struct {
	sync.Mutex
	stdout, stderr io.Writer
	tty            bool
	status         string
}

// print writes a text above the status.
func (s *screen) print(to io.Writer, text string) {
	s.Lock()
	defer s.Unlock()
	if s.status != "" {
		io.WriteString(s.stderr, "\r\x1b[K")
	}
	io.WriteString(to, text)
	io.WriteString(s.stderr, s.status)
}

// show replaces the status.
func (s *screen) show(status string) {
	s.Lock()
	defer s.Unlock()
	if s.tty && status != s.status {
		s.status = string([]rune(status)[:min(len([]rune(status)), 79)]) // it must not become two lines
		io.WriteString(s.stderr, "\r\x1b[K"+s.status)
	}
}

// Write writes standard output of rank 0.
func (s *screen) Write(text []byte) (int, error) {
	s.print(s.stdout, string(text))
	return len(text), nil
}

// A process is a rank that was started: gomflux itself, or the ssh that runs it elsewhere.
type process struct {
	host         int // index of the group's hosts
	name, prefix string
	remote       bool
	cmd          *exec.Cmd
	stdin        io.WriteCloser // the life line: the rank ends when it is closed
	over         bool           // it has ended
	problem      string         // why it is given up while it runs, if that is tooLate, or some other is
	tooLate      bool
	missing      bool // beats have not come
	silent       bool // for so long that this is the problem
	screen       *screen

	held, last string // a line with an error that is not printed yet, and the last one

	mu      sync.Mutex
	beat    rank.Beat     // what it has reported; Done has all images
	silence time.Duration // since it has written something, counted in ticks, so not while this process is stopped
	still   time.Duration // in beat.Step
}

// start starts a rank. It is sent to ended when it has ended, and all it said is read.
func (g *group) start(host, number int, o order, input string, s *screen, ended chan<- *process) (*process, error) {
	p := &process{host: host, name: g.name(host), remote: !g.Hosts[host].here(), screen: s}
	p.silence = -max(minStart, 2*g.Hosts[host].took)
	if number > 0 {
		p.prefix = p.name + ": "
	}
	if !g.local {
		p.name += fmt.Sprintf(" (rank %d)", number)
	}
	p.cmd = g.command(context.Background(), host, "launch", "rank") // it is asked to end before it is killed
	if number == 0 {
		p.cmd.Stdout = s
	}
	said, stderr := io.Pipe()
	p.cmd.Stderr = stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	first, _ := json.Marshal(o) // only texts
	second, _ := json.Marshal(input)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go func() { // it does not read if it is stopped
		for text := fmt.Sprintf("%s\n%s\n", first, second); ; text = "\n" {
			if _, err := io.WriteString(p.stdin, text); err != nil {
				return
			}
			time.Sleep(rank.Interval)
		}
	}()
	read := make(chan struct{})
	go func() {
		p.read(said)
		close(read)
	}()
	go func() {
		p.cmd.Wait() // failure reads its state
		stderr.Close()
		<-read
		ended <- p
	}()
	return p, nil
}

// read reads what the rank writes to standard error. It takes beats out, and keeps the line with which
// gomflux reports an error, since it is known only later whether it is the reason or a consequence.
func (p *process) read(r io.Reader) {
	lines, text := bufio.NewReader(r), ""
	for {
		line, err := lines.ReadString('\n')
		before, beat, marked := strings.Cut(line, rank.Marker)
		p.heard(beat)
		text += before // a beat can come within a line
		switch {
		case marked:
		case strings.HasPrefix(text, "[ring] ") && !strings.HasPrefix(text, "[ring] Rank "):
			text = "" // MLX's lines about a peer that is gone; those about a rank are of MLX_RING_VERBOSE
		case text != "":
			p.release()
			p.held, p.last, text = text, strings.TrimSpace(text), ""
			if !strings.HasPrefix(p.last, "gomflux: ") || strings.HasPrefix(p.last, "gomflux: warning: ") {
				p.release()
			}
		}
		if err != nil {
			return
		}
	}
}

// release prints the line that was kept.
func (p *process) release() {
	text := p.held
	if p.held = ""; text == "" {
		return
	}
	if p.prefix != "" {
		text = p.prefix + ui.Escape(strings.TrimRight(text, "\r\n")) + "\n"
	}
	p.screen.print(p.screen.stderr, text)
}

// heard notes a sign of life, and a beat if it is one.
func (p *process) heard(beat string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = 0
	var b rank.Beat
	if json.Unmarshal([]byte(beat), &b) != nil {
		return
	}
	if b.Step != p.beat.Step {
		p.still = 0
	}
	b.Done = append(p.beat.Done, b.Done...)
	p.beat = b
}

func (p *process) reported() rank.Beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

// tick is called every second while the process runs, with the seconds of the longest step of all ranks, or 0 if steps may
// last, for how long all have waited for each other, the most connections that one has lost, and for how long. It notes a
// problem of a process that is silent, has lost those, or gets no further, a little before it is tooLate, so that others
// that are as late have the same one.
func (p *process) tick(longest float64, joining time.Duration, lost int, cut time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const same = 2 * rank.Interval
	p.silence += time.Second
	p.still += time.Second
	limit := max(patience, time.Duration(4*longest*float64(time.Second)).Round(time.Second))
	if p.beat.Longest == 0 {
		limit += compiling
	}
	p.problem, p.tooLate = "", false
	p.missing, p.silent = p.silence > 3*rank.Interval, p.silence > rank.Silence-same
	switch {
	case p.silent:
		p.problem = fmt.Sprintf("was silent for %v (stopped, asleep or unplugged)", rank.Silence)
		p.tooLate = p.silence > rank.Silence
	case joining > patience:
		p.problem = fmt.Sprintf("have not found each other for %v (is there a firewall, or a cable unplugged?)", patience)
		p.tooLate = true
	case lost > 0 && p.beat.Lost == lost:
		p.problem = "the connection to other ranks was lost (is a cable unplugged?)"
		p.tooLate = cut > same // MLX may say so before
	case lost == 0 && p.beat.Step > 0 && longest > 0 && p.still > limit-same:
		p.problem = fmt.Sprintf("got no further than %s for %v (no step before took more than %.2g s)", ui.Plain(p.beat.Progress), limit,
			longest)
		p.tooLate = p.still > limit
	}
}

// cause describes how the process has failed.
func (p *process) cause() cause {
	if p.problem != "" {
		return cause{p.problem, cli.ExitFailure, true}
	}
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	said := strings.TrimPrefix(p.last, "gomflux: ")
	switch code := status.ExitStatus(); {
	case status.Signaled():
		return cause{fmt.Sprintf("was killed (signal %d, %v)", status.Signal(), status.Signal()), cli.ExitFailure, true}
	case p.remote && code == 255:
		return cause{"the connection was lost: " + said, cli.ExitFailure, true}
	case p.held == "":
		return cause{fmt.Sprintf("has ended with exit code %d", code), code, false}
	default:
		return cause{said, code, false}
	}
}
