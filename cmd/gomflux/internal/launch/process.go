package launch

import (
	"bufio"
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
	silent       rank.Silent
	problem      string // why it is given up while it runs
	ended        chan struct{}
	screen       *screen

	held, last string // a line with an error that is not printed yet, and the last one

	mu    sync.Mutex
	beat  rank.Beat // what it has reported; Done has all images
	still int       // seconds in beat.Step
}

// start starts a rank. It is sent to ended when it has ended, and all it said is read.
func (g *group) start(host, number int, o order, input string, s *screen, ended chan<- *process) (*process, error) {
	p := &process{host: host, name: g.name(host), remote: !g.Hosts[host].here(), ended: make(chan struct{}), screen: s}
	if number > 0 {
		p.prefix = p.name + ": "
	}
	if !g.local {
		p.name += fmt.Sprintf(" (rank %d)", number)
	}
	var err error
	if p.cmd, err = g.command(host, "launch", "rank"); err != nil {
		return nil, err
	}
	if number == 0 {
		p.cmd.Stdout = s
	}
	said, stderr := io.Pipe()
	p.cmd.Stderr, p.cmd.WaitDelay = stderr, 2*time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the launcher, which ends all
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.silent.Begin(maxStart)
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
		close(p.ended)
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
		p.silent.Heard()
		before, beat, marked := strings.Cut(line, rank.Marker)
		text += before // a beat can come within a line
		switch {
		case marked:
			p.heard(beat)
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

func (p *process) heard(beat string) {
	var b rank.Beat
	if json.Unmarshal([]byte(beat), &b) == nil {
		p.mu.Lock()
		if b.Step != p.beat.Step {
			p.still = 0
		}
		b.Done = append(p.beat.Done, b.Done...)
		p.beat = b
		p.mu.Unlock()
	}
}

func (p *process) reported() rank.Beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

// tick is called every second while the process runs, with the seconds of the longest step of all ranks. It
// notes a problem of a process that is silent or gets no further, and returns true if that lasts too long.
func (p *process) tick(longest float64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := patience + time.Duration(5*longest*float64(time.Second)).Round(time.Second)
	if p.beat.Longest == 0 {
		limit += compiling
	}
	silence, still := p.silent.Tick(), time.Duration(p.still)*time.Second
	p.still++
	switch p.problem = ""; {
	case silence > rank.Silence/2:
		p.problem = fmt.Sprintf("was silent for %v (stopped, asleep or unplugged)", min(silence, rank.Silence))
	case p.beat.Step > 0 && longest > 0 && still > limit:
		p.problem = fmt.Sprintf("got no further than %s for %v (no step before took more than %.2g s)", ui.Plain(p.beat.Progress), limit,
			longest)
	}
	return silence > rank.Silence || p.problem != "" && still > limit+2*rank.Interval // others of its step are late too then
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
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
