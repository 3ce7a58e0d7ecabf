package launch

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
)

// A process is a rank that was started: gomflux itself, or the ssh that runs it elsewhere.
type process struct {
	host   int // index of the group's hosts
	name   string
	remote bool
	cmd    *exec.Cmd
	stdin  io.WriteCloser // the life line: the rank ends when it is closed
	filter filter
	silent rank.Silent
	stop   chan struct{} // closed when the process has ended

	mu   sync.Mutex
	beat rank.Beat // what it has reported; Done has all images
}

// maxEnd is how long a rank may take to end by itself.
const maxEnd = 5 * time.Second

// start starts a rank with its order.
func (g *group) start(host int, o order, input string, s *screen) (*process, error) {
	p := &process{host: host, name: g.name(host), remote: !g.hosts[host].here(), stop: make(chan struct{})}
	if !g.local {
		p.name += fmt.Sprintf(" (rank %d)", o.rank)
	}
	var err error
	if p.cmd, err = g.command(&g.hosts[host], "launch", "rank"); err != nil {
		return nil, err
	}
	p.filter = filter{screen: s, beat: p.heard}
	if o.rank > 0 {
		p.filter.prefix = g.name(host) + ": "
	} else {
		p.cmd.Stdout = output{s}
	}
	p.cmd.Stderr, p.cmd.WaitDelay = alive{p}, 2*time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the launcher, which ends all
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	first, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	second, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go func() { // it may not read, if it is stopped
		for text := fmt.Sprintf("%s\n%s\n", first, second); ; text = "\n" {
			if _, err := io.WriteString(p.stdin, text); err != nil {
				return
			}
			select {
			case <-p.stop:
				return
			case <-time.After(rank.Interval):
			}
		}
	}()
	return p, nil
}

// alive takes all that a rank writes to standard error as a sign of life.
type alive struct{ *process }

func (a alive) Write(text []byte) (int, error) {
	a.silent.Heard()
	return a.filter.Write(text)
}

// heard is called for every beat.
func (p *process) heard(b rank.Beat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.Done = append(p.beat.Done, b.Done...)
	p.beat = b
}

func (p *process) reported() rank.Beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

// wait waits for the end, and reports it.
func (p *process) wait(ended chan<- *process) {
	p.cmd.Wait() // failure reads its state
	close(p.stop)
	ended <- p
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.stop:
		return false
	default:
		return true
	}
}

// kill ends the process and those that it started. A rank elsewhere that hangs ends when it wakes and
// finds its standard input closed.
func (p *process) kill() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// failure describes how the process has ended, code is the exit code for the launcher, and lost is true if
// it cannot be started again. It returns "" if it has ended well.
func (p *process) failure() (reason string, code int, lost bool) {
	state, said := p.cmd.ProcessState, p.filter.reason()
	if state.Success() {
		p.filter.release()
		return "", 0, false
	}
	status, _ := state.Sys().(syscall.WaitStatus)
	switch code := state.ExitCode(); {
	case status.Signaled():
		return fmt.Sprintf("was killed (signal %d, %v)", status.Signal(), status.Signal()), cli.ExitFailure, true
	case p.remote && code == 255:
		return "the connection was lost: " + said, cli.ExitFailure, true
	case code > 128 && code != cli.ExitInterrupted: // a shell's way to report a signal
		return fmt.Sprintf("was killed (signal %d, %v)", code-128, syscall.Signal(code-128)), cli.ExitFailure, true
	case said == "":
		return fmt.Sprintf("has ended with exit code %d", code), code, false
	default:
		return said, code, false
	}
}
