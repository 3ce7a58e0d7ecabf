package launch

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// A screen is the standard output and error of the launcher, on which all ranks write.
type screen struct {
	sync.Mutex
	stdout, stderr io.Writer
	tty            bool
	status         string // the last line of a terminal, which changes
	open           bool   // the text on stderr does not end with a line
}

// write writes what a rank prints, in place of the status.
func (s *screen) write(to io.Writer, text []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	if s.status != "" && !s.open {
		io.WriteString(s.stderr, "\r\x1b[K")
	}
	n, err := to.Write(text)
	if to == s.stderr && len(text) > 0 {
		s.open = text[len(text)-1] != '\n'
	}
	s.draw()
	return n, err
}

// show replaces the status, which only a terminal shows.
func (s *screen) show(status string) {
	s.Lock()
	defer s.Unlock()
	if !s.tty || status == s.status {
		return
	}
	if s.status != "" && !s.open {
		io.WriteString(s.stderr, "\r\x1b[K")
	}
	s.status = status
	s.draw()
}

func (s *screen) draw() {
	if s.status != "" && !s.open {
		io.WriteString(s.stderr, s.status)
	}
}

// output is the standard output of rank 0.
type output struct{ *screen }

func (o output) Write(text []byte) (int, error) { return o.write(o.stdout, text) }

// A filter reads the standard error of a rank. It takes beats out, and keeps the line with which gomflux
// reports an error, since it is known only later whether it is the reason or a consequence.
type filter struct {
	*screen
	prefix string // of every line; with "" text is passed on as it comes
	beat   func(rank.Beat)

	text   []byte // of the line that has not ended
	passed int    // how much of it was passed on
	marked []byte // of a beat that has not ended, nil outside of beats
	held   string // a line with an error
	last   string // the line before, without its end
}

// complaint begins the line of an error, and of a warning.
const complaint = "gomflux: "

func (f *filter) Write(text []byte) (int, error) {
	for rest := text; len(rest) > 0; {
		if f.marked != nil {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				f.marked = append(f.marked, rest...)
				break
			}
			var b rank.Beat
			if json.Unmarshal(append(f.marked, rest[:end]...), &b) == nil {
				f.beat(b)
			}
			f.marked, rest = nil, rest[end+1:]
			continue
		}
		end := bytes.IndexAny(rest, "\n\x1e")
		if end < 0 {
			f.text = append(f.text, rest...)
			break
		}
		f.text = append(f.text, rest[:end]...)
		if rest[end] == rank.Marker {
			f.marked = []byte{}
		} else {
			f.line()
		}
		rest = rest[end+1:]
	}
	start := string(f.text[:min(len(f.text), len(complaint))])
	if f.prefix == "" && len(f.text) > f.passed && (f.passed > 0 || !strings.HasPrefix(complaint, start)) {
		f.release()
		f.write(f.stderr, f.text[f.passed:])
		f.passed = len(f.text)
	}
	return len(text), nil
}

// line ends a line.
func (f *filter) line() {
	f.release()
	f.last = string(f.text)
	if f.passed == 0 && strings.HasPrefix(f.last, complaint) && !strings.HasPrefix(f.last, complaint+"warning: ") {
		f.held = f.last
	} else {
		f.write(f.stderr, []byte(f.prefixed(f.last[f.passed:])))
	}
	f.text, f.passed = nil, 0
}

func (f *filter) prefixed(text string) string {
	if f.prefix != "" {
		text = f.prefix + ui.Escape(strings.TrimSuffix(text[strings.LastIndexByte(strings.TrimSuffix(text, "\r"), '\r')+1:], "\r"))
	}
	return text + "\n"
}

// release writes the line that was kept.
func (f *filter) release() {
	if f.held != "" {
		f.write(f.stderr, []byte(f.prefixed(f.held)))
		f.held = ""
	}
}

// reason ends the text, and returns the error that it ends with, or else its last line.
func (f *filter) reason() string {
	if len(f.text) > 0 {
		f.line()
	}
	if f.held != "" {
		return strings.TrimPrefix(f.held, complaint)
	}
	return strings.TrimSpace(f.last)
}
