// Package ui is how the command talks to its user: results go to standard
// output, as text or as JSON; progress, notes, warnings and errors go to
// standard error. Commands make values and hand them to an [Output], which
// knows the format and whether there is a terminal.
package ui

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/term"
)

// A Format is how an [Output] writes what a command has to say.
type Format int

const (
	Text      Format = iota // text for people
	JSON                    // results as JSON, each on a line; messages as text
	JSONLines               // everything as JSON lines: results, progress, warnings, errors
)

// An Output writes the results and messages of one command.
type Output struct {
	Stdout, Stderr io.Writer
	Format         Format
	Quiet          bool // leaves out notes and progress
	Verbose        bool // adds details
	// Log gets a copy of everything that is printed, except progress, unless it is nil. Its errors
	// are ignored.
	Log io.Writer

	progress *Progress // what is shown now, nil for nothing
	err      error     // the first error of writing to Stdout
	several  bool      // Next has written a result
}

// A Result is what a command reports. As JSON it is encoded by its fields.
type Result interface {
	// Text writes the result for people.
	Text(p *Page)
}

// A Message is the JSON line of a warning or an error.
type Message struct {
	MessageType string `json:"message_type"` // warning or error
	Message     string `json:"message"`
	ExitCode    int    `json:"exit_code,omitempty"`
}

// Result writes a result to standard output in the output's format.
func (o *Output) Result(r Result) error {
	if o.Format != Text {
		return WriteJSON(o.stdout(), r)
	}
	var p Page
	r.Text(&p)
	_, err := io.WriteString(o.stdout(), p.String())
	return err
}

// Next is Result for one of several results, which empty lines separate for people.
func (o *Output) Next(r Result) error {
	if o.Format == Text && o.several {
		if err := o.Line(""); err != nil {
			return err
		}
	}
	o.several = true
	return o.Result(r)
}

// Line writes a line of text to standard output, such as the name of a file.
func (o *Output) Line(text string) error {
	_, err := fmt.Fprintln(o.stdout(), text)
	return err
}

// Event writes a JSON line to standard output, if the output is JSON lines.
// [Output.Err] returns the first error.
func (o *Output) Event(v any) {
	if o.Format == JSONLines {
		o.Wrote(WriteJSON(o.stdout(), v))
	}
}

// Wrote keeps the first error of writing to standard output. A pipe that nobody
// reads any longer is not an error: the files that a command makes matter.
func (o *Output) Wrote(err error) {
	if o.err == nil && !errors.Is(err, syscall.EPIPE) {
		o.err = err
	}
}

// Err returns the first error of an [Output.Event] or [Output.Wrote].
func (o *Output) Err() error { return o.err }

// Note writes a line for people to standard error, unless the output is quiet or
// JSON.
func (o *Output) Note(format string, args ...any) {
	if o.Format == Text && !o.Quiet {
		fmt.Fprintf(o.messages(), format+"\n", args...)
	}
}

// Say is Note even when the output is quiet.
func (o *Output) Say(format string, args ...any) {
	if o.Format == Text {
		fmt.Fprintf(o.messages(), format+"\n", args...)
	}
}

// Warn warns of something that the user may not expect.
func (o *Output) Warn(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if o.Format == JSONLines {
		o.Event(Message{MessageType: "warning", Message: message})
		return
	}
	fmt.Fprintf(o.messages(), "gomflux: warning: %s\n", Escape(message))
}

// A Stream is text that comes in parts, which people read as it comes.
type Stream struct {
	to      io.Writer // nil if nobody reads it
	written bool
}

// Stream returns a stream to standard error, unless the output is quiet or JSON.
func (o *Output) Stream() *Stream {
	if o.Format == Text && !o.Quiet {
		return &Stream{to: o.messages()}
	}
	return &Stream{}
}

// Write writes a part, as [Plain].
func (s *Stream) Write(text string) {
	if s.to != nil {
		s.written = true
		io.WriteString(s.to, Plain(text))
	}
}

// Plain returns text without control characters except line ends.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return -1
		}
		return r
	}, text)
}

// End ends the last line.
func (s *Stream) End() {
	if s.written {
		io.WriteString(s.to, "\n")
		s.written = false
	}
}

// Complain writes an error for people.
func Complain(stderr io.Writer, err error) {
	fmt.Fprintf(stderr, "gomflux: %s\n", Escape(err.Error()))
}

// Status replaces the current line of a terminal; without one it does nothing.
func (o *Output) Status(format string, args ...any) {
	if IsTerminal(o.Stderr) {
		fmt.Fprintf(o.Stderr, "\r"+format, args...)
	}
}

// ClearStatus removes what Status wrote.
func (o *Output) ClearStatus() { o.Status("\x1b[K") }

// messages returns a writer for lines that stay. While progress is shown they go
// above it.
func (o *Output) messages() io.Writer { return o.logged(above{o.progress, o.Stderr}) }

func (o *Output) stdout() io.Writer { return o.logged(o.Stdout) }

func (o *Output) logged(w io.Writer) io.Writer {
	if o.Log == nil {
		return w
	}
	return logged{w, o.Log}
}

// logged copies what is written to a log.
type logged struct{ to, log io.Writer }

func (l logged) Write(text []byte) (int, error) {
	l.log.Write(text)
	return l.to.Write(text)
}

// IsTerminal reports whether a writer or reader is a terminal.
func IsTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
