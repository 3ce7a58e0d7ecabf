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
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Environment variables of ranks.
const (
	// Env is 1 in a process that gomflux launch started.
	Env = "GOMFLUX_LAUNCHED"
	// EnvDone has the indices of the images that an earlier start of the same run has written, with
	// commas between them.
	EnvDone = "GOMFLUX_DONE"
)

const (
	Marker   = 0x1e // begins a beat
	Interval = 2 * time.Second
)

// Silence is how long one side may be silent. Tests shorten it.
var Silence = 20 * time.Second

// A Beat is what a rank reports of itself.
type Beat struct {
	Done      []int  `json:"done,omitempty"`      // indices of images that it has written since the beat before
	Resumable bool   `json:"resumable,omitempty"` // the others can do the rest without it
	Progress  string `json:"progress,omitempty"`  // what it does, for people
}

var line struct {
	sync.Mutex
	to   io.Writer // nil in a process without a launcher
	next Beat
}

// Start begins the life line if a launcher started this process, and calls end when the launcher is
// gone. It returns what the command reads as its standard input.
func Start(stdin io.Reader, stderr io.Writer, end func()) io.Reader {
	if os.Getenv(Env) != "1" {
		return stdin
	}
	os.Unsetenv(Env)               // a process that this one starts has no launcher
	signal.Ignore(syscall.SIGPIPE) // of standard error, if the launcher is gone: end comes instead
	line.Lock()
	line.to = stderr
	line.Unlock()
	go func() {
		for ; ; time.Sleep(Interval) {
			beat()
		}
	}()
	input, write := io.Pipe()
	go listen(stdin, write, end)
	return input
}

// listen reads what the launcher writes, and passes the first line on.
func listen(stdin io.Reader, input *io.PipeWriter, end func()) {
	var silent Silent
	go func() {
		for !silent.Tick() {
			time.Sleep(time.Second)
		}
		end()
	}()
	lines := bufio.NewReader(stdin)
	first, err := lines.ReadBytes('\n')
	go func() {
		var text string
		if json.Unmarshal(first, &text) == nil {
			io.WriteString(input, text)
		}
		input.Close()
	}()
	for err == nil {
		silent.Heard()
		_, err = lines.ReadByte()
	}
	end()
}

// A Silent counts seconds of silence. Seconds in which this process was stopped itself do not count.
type Silent struct{ seconds atomic.Int32 }

// Heard ends the silence.
func (s *Silent) Heard() { s.seconds.Store(0) }

// Tick is called every second, and reports whether the silence lasts too long.
func (s *Silent) Tick() bool { return time.Duration(s.seconds.Add(1))*time.Second > Silence }

// beat writes a beat, in one piece.
func beat() {
	line.Lock()
	defer line.Unlock()
	text, err := json.Marshal(line.next)
	if err != nil {
		panic(err) // it has only numbers and texts
	}
	line.to.Write(append(append([]byte{Marker}, text...), '\n'))
	line.next.Done = nil
}

// Launched reports whether a launcher started this process.
func Launched() bool {
	line.Lock()
	defer line.Unlock()
	return line.to != nil
}

// Done reports that this rank has written the image of an index. Without a launcher it does nothing.
func Done(index int) { report(true, func(b *Beat) { b.Done = append(b.Done, index) }) }

// Resumable reports that the work is split so that the other ranks can do the rest without one of them:
// if one is lost, the launcher starts the others again, and [Before] lists the images that are written.
func Resumable() { report(true, func(b *Beat) { b.Resumable = true }) }

// Progress reports what this rank does, with the next beat.
func Progress(text string) { report(false, func(b *Beat) { b.Progress = text }) }

func report(now bool, change func(*Beat)) {
	if !Launched() {
		return
	}
	line.Lock()
	change(&line.next)
	line.Unlock()
	if now {
		beat()
	}
}

// Before returns the indices of the images that earlier starts of this run have written.
func Before() (done map[int]bool) {
	done = map[int]bool{}
	for word := range strings.SplitSeq(os.Getenv(EnvDone), ",") {
		if i, err := strconv.Atoi(word); err == nil {
			done[i] = true
		}
	}
	return done
}
