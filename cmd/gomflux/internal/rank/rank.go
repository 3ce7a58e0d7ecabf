// Package rank is the life line between gomflux launch and the processes that it starts, the ranks.
//
// A rank writes a beat to standard error every two seconds: a marker byte, a [Beat] as JSON, and a line
// end. The launcher filters beats out. On the rank's standard input it writes one line, the text that the
// command reads as its own input, as a JSON string, and after it an empty line every two seconds. A side
// that hears nothing for [Silence], or finds its end of the pipe closed, takes the other for dead. So
// nothing is left of a run if a process is killed or stopped, or a cable is pulled.
package rank

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
)

const (
	// Env is the variable that is 1 in a process that gomflux launch started.
	Env = "GOMFLUX_LAUNCHED"
	// EnvDone is the variable with the indices of images that earlier starts of the run have written, as a JSON array; null in
	// the first.
	EnvDone = "GOMFLUX_DONE"

	Marker   = "\x1e" // begins a beat
	Interval = 2 * time.Second
)

// Silence is how long one side may be silent. Tests shorten it.
var Silence = 20 * time.Second

// A Beat is what a rank reports of itself.
type Beat struct {
	Done      []int  `json:"done,omitempty"`      // indices of images that it has written since the beat before
	Resumable bool   `json:"resumable,omitempty"` // the others can do the rest without it
	Joining   bool   `json:"joining,omitempty"`   // it waits for the others to connect
	Lost      int    `json:"lost,omitempty"`      // number of its connections to others that are lost
	Progress  string `json:"progress,omitempty"`  // what it does, for people

	Step    int     `json:"step,omitempty"`    // the step that it is in, numbered over all its images from 1; 0 outside of them
	Longest float64 `json:"longest,omitempty"` // seconds of its longest step
}

var line struct {
	sync.Mutex
	to    io.Writer // nil in a process without a launcher
	next  Beat
	steps int       // number of steps that have begun
	begun time.Time // the last one
}

// Start begins the life line if a launcher started this process, and calls end when the launcher is
// gone. It returns what the command reads as its standard input.
func Start(stdin io.Reader, stderr io.Writer, end func()) io.Reader {
	if os.Getenv(Env) != "1" {
		return stdin
	}
	os.Unsetenv(Env)               // a process that this one starts has no launcher
	signal.Ignore(syscall.SIGPIPE) // of standard error, if the launcher is gone: end comes instead
	line.to = stderr
	var silence atomic.Int32 // in seconds, without those in which this process was stopped itself
	go func() {
		for ; ; time.Sleep(Interval) {
			report(func(b *Beat) { b.Lost = mlx.LostConnections() }, true)
		}
	}()
	go func() {
		for ; time.Duration(silence.Add(1))*time.Second <= Silence; time.Sleep(time.Second) {
		}
		end()
	}()
	lines, input := bufio.NewReader(stdin), ""
	first, err := lines.ReadBytes('\n')
	json.Unmarshal(first, &input) // half a line is no input: the launcher is gone
	go func() {
		for err == nil {
			silence.Store(0)
			_, err = lines.ReadByte()
		}
		end()
	}()
	return strings.NewReader(input)
}

// report changes the next beat, and writes it now, in one piece, or when it is time.
func report(change func(*Beat), now bool) {
	line.Lock()
	defer line.Unlock()
	if line.to == nil {
		return
	}
	if change(&line.next); now {
		text, _ := json.Marshal(line.next) // only numbers and texts
		io.WriteString(line.to, Marker+string(text)+"\n")
		line.next.Done = nil
	}
}

// Done reports that this rank has written the image of an index. Without a launcher it does nothing.
func Done(index int) { report(func(b *Beat) { b.Done = append(b.Done, index) }, true) }

// Joining reports whether this rank waits for the others to connect: if all do, and for long, they cannot.
func Joining(waits bool) { report(func(b *Beat) { b.Joining = waits }, true) }

// Resumable reports whether the work is split so that the other ranks can do the rest without one of them:
// if one is lost, the launcher starts the others again, and [Before] returns the images that are written.
func Resumable(can bool) { report(func(b *Beat) { b.Resumable = can }, true) }

// Report reports what this rank does. The launcher ends ranks that stay in a step for far longer than in those
// before: a step lasts until the next report, and ends with the last one of its phase.
func Report(p gomflux.Progress) {
	report(func(b *Beat) {
		if b.Step > 0 && p.Step > 0 {
			b.Longest = max(b.Longest, time.Since(line.begun).Seconds())
		}
		if b.Progress, b.Step = strings.TrimSpace(string(p.Phase)+" "+p.Component), 0; p.Steps > 0 {
			b.Progress = fmt.Sprintf("%s %d/%d", p.Phase, p.Step, p.Steps)
		}
		if line.begun = time.Now(); p.Step < p.Steps {
			line.steps++
			b.Step = line.steps
		}
	}, false)
}

// Before returns the indices of the images that earlier starts of this run have written, nil in the first start.
func Before() (done []int) {
	json.Unmarshal([]byte(os.Getenv(EnvDone)), &done) // "" in a process without a launcher
	return done
}
