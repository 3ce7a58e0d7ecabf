package ui

import (
	"context"
	"image"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/termpic"
)

func TestStepClock(t *testing.T) {
	var c StepClock
	start := time.Now()
	if got := c.text(start); got != "" {
		t.Errorf("before the first report: %q", got)
	}
	for i, want := range []string{"0 s", "2.00 s/step, 16.0 s left", "3.00 s/step, 21.0 s left"} {
		at := []time.Duration{5, 7, 11}[i] * time.Second
		c.Done(i+1, 10, start.Add(at))
		if got := c.text(start.Add(at)); got != want {
			t.Errorf("step %d: %q, expected %q", i+1, got, want)
		}
	}
	for after, want := range map[time.Duration]string{13 * time.Second: "3.00 s/step, 19.0 s left", time.Hour: "3.00 s/step, 0.00 s left"} {
		if got := c.text(start.Add(after)); got != want {
			t.Errorf("%s after the start: %q, expected %q", after, got, want)
		}
	}
	var slow StepClock
	slow.Done(0, 4, start)
	if got, want := slow.text(start.Add(12*time.Second)), "12 s"; got != want {
		t.Errorf("in the first step: %q, expected %q", got, want)
	}
}

// onTerminal runs f with a terminal of 100x30 characters and returns what it
// wrote there. Seen returns once a text was written.
func onTerminal(t *testing.T, f func(w *os.File, seen func(text string))) string {
	t.Helper()
	terminal, line, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if err := pty.Setsize(terminal, &pty.Winsize{Cols: 100, Rows: 30, X: 1000, Y: 600}); err != nil {
		t.Fatal(err)
	}
	chunks := make(chan string, 1000)
	go func() {
		defer close(chunks)
		buf := make([]byte, 1<<16)
		for {
			n, err := terminal.Read(buf)
			if err != nil {
				return
			}
			chunks <- string(buf[:n])
		}
	}()
	all, read := "", 0
	f(line, func(text string) {
		t.Helper()
		timeout := time.After(10 * time.Second)
		for {
			if i := strings.Index(all[read:], text); i >= 0 {
				read += i + len(text)
				return
			}
			select {
			case s := <-chunks:
				all += s
			case <-timeout:
				t.Fatalf("%q is not in %q", text, all[read:])
			}
		}
	})
	line.Close()
	for s := range chunks {
		all += s
	}
	return all
}

func TestPreview(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 32, 32))
	removed := regexp.MustCompile(`\r\x1b\[16A\x1b\[J\x1b_Ga=d,d=I,i=(\d+),q=2\x1b\\`)
	got := onTerminal(t, func(w *os.File, seen func(string)) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		d := newProgress(ctx, w, termpic.Open(ctx, w, termpic.Kitty), 1)
		d.Report(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: 3})
		d.Preview(img)
		seen("\x1b_Ga=T")
		seen("step 1/3")
		d.next = time.Now().Add(time.Hour)
		d.Preview(img) // too early
		d.next = time.Now()
		d.Report(gomflux.Progress{Phase: gomflux.PhaseStep, Step: 1, Steps: 3})
		d.Preview(img)
		seen("\x1b_Ga=T")
		seen("\x1b_Ga=d") // the one before
		seen("step 2/3")
		d.Close()
		d.Preview(img)
		d.Close()
	})
	m := removed.FindStringSubmatchIndex(got)
	if m == nil {
		t.Fatalf("the preview is not removed: %q", got[strings.LastIndex(got, "step"):])
	}
	if rest := got[m[1]:]; strings.Contains(rest, "\x1b_G") {
		t.Errorf("and then %q", rest)
	}
	shown := regexp.MustCompile(`a=T,[^;]*i=(\d+)`).FindAllStringSubmatch(got, -1)
	if len(shown) != 2 {
		t.Errorf("%d previews, expected 2", len(shown))
	}
	if last := shown[len(shown)-1][1]; last != got[m[2]:m[3]] {
		t.Errorf("preview %s is removed, and %s was last", got[m[2]:m[3]], last)
	}
}

func TestProgressInterrupted(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 32, 32))
	got := onTerminal(t, func(w *os.File, seen func(string)) {
		ctx, cancel := context.WithCancel(context.Background())
		d := newProgress(ctx, w, termpic.Open(ctx, w, termpic.Sixel), 1)
		d.Report(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: 3})
		d.Preview(img)
		seen("\x1bP")
		seen("step 1/3")
		cancel()
		seen("\r\x1b[16A\x1b[J") // the preview is gone
		seen("stopping after")
		d.next = time.Time{}
		d.Preview(img)
		d.Close()
	})
	if rest := got[strings.Index(got, "stopping after"):]; strings.Contains(rest, "\x1bP") {
		t.Errorf("a preview after the interruption: %q", rest)
	}
}

// TestWarnings checks that warnings stay on the screen while progress is shown, and
// right before it ends.
func TestWarnings(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 32, 32))
	got := onTerminal(t, func(w *os.File, seen func(string)) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		d := newProgress(ctx, w, termpic.Open(ctx, w, termpic.Kitty), 1)
		o := &Output{Stderr: w, progress: d}
		d.Report(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: 3})
		d.Preview(img)
		seen("step 1/3")
		o.Warn("first")
		seen("first")
		d.next = time.Time{}
		d.Preview(img)
		seen("a=T")
		seen("step 1/3")
		o.Warn("second")
		d.Close()
		o.Warn("third")
	})
	var lines []string // as they are on the screen in the end
	row := 0
	moves := regexp.MustCompile(`\x1b\[(\d+)([AB])|(\x1b\[J)|(\n)|(\x1b7|\x1b8|\x1b_.*?\x1b\\|\x1b\[[^A-Za-z]*[A-Za-z]|\r)|([^\x1b\r\n]+)`)
	for _, m := range moves.FindAllStringSubmatch(got, -1) {
		n, _ := strconv.Atoi(m[1])
		switch {
		case m[2] == "A":
			row = max(0, row-n)
		case m[2] == "B":
			row += n
		case m[3] != "":
			lines = lines[:min(row, len(lines))]
		case m[4] != "":
			row++
		case m[6] != "":
			for len(lines) <= row {
				lines = append(lines, "")
			}
			lines[row] = m[6]
		}
	}
	want := []string{"gomflux: warning: first", "gomflux: warning: second", "gomflux: warning: third"}
	if lines = slices.DeleteFunc(lines, func(s string) bool { return s == "" }); !slices.Equal(lines, want) {
		t.Errorf("on the screen is %q, expected %q, of %q", lines, want, got)
	}
}

func TestProgressNoTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d := newProgress(context.Background(), w, termpic.Open(context.Background(), w, termpic.Kitty), 1)
	d.Report(gomflux.Progress{Phase: gomflux.PhaseStep, Steps: 3})
	d.Preview(image.NewRGBA(image.Rect(0, 0, 32, 32)))
	d.Close()
	w.Close()
	if got, err := io.ReadAll(r); len(got) != 0 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
