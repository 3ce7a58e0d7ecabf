package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/picture"
)

// TestInterrupt ends runs at random moments, from the start of the process to
// its end: they stop with the right code, what is there is whole, and nothing
// else is.
func TestInterrupt(t *testing.T) {
	times := randtest.Times(15, 50)
	args := []string{"-H", "24", "-W", "40", "-s", "4", "-S", "1,2,3,4", "--metadata", "--stepwise-image-output-dir", "steps"}
	began := time.Now()
	cmd, dir := generateIn(t, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	took := time.Since(began)
	whole := checkWhole(t, dir)
	if want := 4 * (2 + 4 + 1); whole != want {
		t.Errorf("a whole run makes %d files, expected %d", whole, want)
	}
	for i := range times {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			signal := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}[i%3]
			after := time.Duration(randtest.New(t).Int64N(int64(took)))
			args := args
			if i%2 > 0 { // several at once
				args = append(slices.Clone(args), "--batch-size", "3")
			}
			cmd, dir := generateIn(t, args...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
			cmd.Wait()
			found := checkWhole(t, dir)
			switch status := cmd.ProcessState.Sys().(syscall.WaitStatus); {
			case status.Signaled() && found == 0 && stderr.Len() == 0: // before the program's own start
			case status.Signaled() && found == whole: // after its end
			case status.ExitStatus() == 0 && found == whole:
			case status.ExitStatus() == cli.ExitInterrupted && strings.HasSuffix(stderr.String(), "gomflux: interrupted\n"):
			default:
				t.Errorf("after %v: %v with %d of %d files, and said %q", after, cmd.ProcessState, found, whole, stderr.String())
			}
		})
	}
}

// generateIn is a run that has a folder of its own.
func generateIn(t *testing.T, args ...string) (cmd *exec.Cmd, dir string) {
	dir = t.TempDir()
	cmd = exec.Command("gomflux", append([]string{"generate", "-m", absolute(tinyModel), "-p", "x"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
	return cmd, dir
}

// checkWhole reads all files in a folder, and counts them.
func checkWhole(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		switch filepath.Ext(path) {
		case ".png":
			_, err = picture.ReadFile(path)
		case ".json":
			var data []byte
			data, err = os.ReadFile(path)
			if err == nil && !json.Valid(data) {
				err = fmt.Errorf("%s is not JSON: %q", path, data)
			}
		default:
			err = fmt.Errorf("%s was left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestInterruptTwice is in one long step: the second signal does not wait.
func TestInterruptTwice(t *testing.T) {
	cmd, dir := generateIn(t, "-H", "1024", "-W", "1024", "-s", "1000")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "seed ") {
		t.Errorf("first line: %q", lines.Text())
	}
	var signaled time.Time
	for range 2 {
		time.Sleep(500 * time.Millisecond) // two at once would be one
		signaled = time.Now()
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	cmd.Wait()
	if took := time.Since(signaled); took > 5*time.Second {
		t.Errorf("ended %v after the second signal", took)
	}
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted {
		t.Errorf("exit code %d, expected %d", code, cli.ExitInterrupted)
	}
	if last != "gomflux: interrupted" {
		t.Errorf("last line: %q", last)
	}
	if n := checkWhole(t, dir); n > 0 {
		t.Errorf("%d files are there", n)
	}
}

// TestInterruptJSON: the last line of --json says so.
func TestInterruptJSON(t *testing.T) {
	cmd, dir := generateIn(t, "-H", "24", "-W", "40", "-s", "1000000", "--json")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(stdout); lines.Scan(); last = lines.Text() {
		if strings.Contains(lines.Text(), `"step":3,`) {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted {
		t.Errorf("exit code %d, expected %d", code, cli.ExitInterrupted)
	}
	if want := `{"message_type":"error","message":"interrupted","exit_code":130}`; last != want {
		t.Errorf("last line %s, expected %s", last, want)
	}
	if n := checkWhole(t, dir); n > 0 {
		t.Errorf("%d files are there", n)
	}
}

// TestNoHangUp: a run that nohup started goes on without its terminal.
func TestNoHangUp(t *testing.T) {
	cmd, dir := generateIn(t, "-H", "24", "-W", "40", "-s", "4", "--json")
	args := cmd.Args
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}, args...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.Contains(lines.Text(), `"start"`) {
			if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if n := checkWhole(t, dir); n != 1 {
		t.Errorf("%d files are there, expected the picture", n)
	}
}

// TestInterruptReading is while the prompt is still being typed.
func TestInterruptReading(t *testing.T) {
	cmd, dir := generateIn(t, "-p", "-")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// more than fits a pipe, so that it returns when the command is reading
	if _, err := stdin.Write(make([]byte, 256<<10)); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted {
		t.Errorf("exit code %d, expected %d", code, cli.ExitInterrupted)
	}
	if n := checkWhole(t, dir); n > 0 {
		t.Errorf("%d files are there", n)
	}
}

// TestSkipOnInterrupt: Ctrl-C ends a prompt's rewriting once, and the command then.
func TestSkipOnInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := handleSignals(cancel, io.Discard)
	defer stop()
	skipped := make(chan bool, 1)
	end := cli.SkipOnInterrupt(func() { skipped <- true })
	defer end()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-skipped
	if ctx.Err() != nil {
		t.Error("the first Ctrl-C ended the command")
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
		t.Errorf("the second Ctrl-C: %v", context.Cause(ctx))
	}
}

// TestInterruptEnhance presses Ctrl-C at random words of a rewriting, of more than 400 with this seed: the image has
// the prompt as it was typed.
// A second one ends the command.
func TestInterruptEnhance(t *testing.T) {
	for i := range randtest.Times(6, 50) {
		twice := i%3 == 2
		cmd, dir := generateIn(t, "-H", "24", "-W", "40", "-s", "2", "--seed", "3", "--enhance", "-o", "x.png", "--json")
		if twice {
			cmd.Args = append(cmd.Args, "-s", "1000000")
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		// a page, where the system can: the command waits with the words until they are read
		syscall.Syscall(syscall.SYS_FCNTL, stdout.(*os.File).Fd(), 1031 /* F_SETPIPE_SZ of Linux */, 4096)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		press, words := 1+randtest.New(t).IntN(40), 0
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			word, step := strings.Contains(lines.Text(), `"enhance"`), twice && strings.Contains(lines.Text(), `"step":3,`)
			if word {
				words++
			}
			if word && words == press || step {
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Error(err)
				}
				time.Sleep(300 * time.Millisecond) // for its handler, while the pipe is full
			}
		}
		cmd.Wait()
		code := cmd.ProcessState.ExitCode()
		if twice {
			if code != cli.ExitInterrupted {
				t.Errorf("Ctrl-C twice: exit code %d", code)
			}
			continue
		}
		found, err := picture.ReadSettingsFile(filepath.Join(dir, "x.png"))
		if code != 0 || words < press || err != nil || found.Settings.Prompt != "x" || found.Settings.OriginalPrompt != "" {
			t.Errorf("Ctrl-C after word %d of %d: exit code %d, %+v, %v", press, words, code, found, err)
		}
	}
}
