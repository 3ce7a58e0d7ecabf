package main

import (
	"bufio"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg"
	_ "image/png"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/picture"
	"github.com/rogpeppe/go-internal/testscript"
)

const (
	libraries = "../../.setup/lib"
	tinyModel = "../../models/testdata/zimage-ordinary/model" // pictures of multiples of 8 pixels
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gomflux": main})
}

// TestScripts runs the command as its users do. See testdata/script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GOMFLUX_MLX", absolute(libraries))
			env.Setenv("MODEL", absolute(tinyModel))
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Getuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   cmdExits,
			"model":   cmdModel,
			"cut":     cmdCut,
			"flip":    cmdFlip,
			"picture": cmdPicture,
			"pixels":  cmdPixels,
			"only":    cmdOnly,
		},
	})
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return abs
}

// cmdExits runs a command that must end with a code: exits CODE COMMAND ARGS...
func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	want := number(ts, args[0])
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, expected %d", got, want)
	}
}

// cmdModel copies the tiny model: model FOLDER
func cmdModel(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.CopyFS(ts.MkAbs(args[0]), os.DirFS(ts.Getenv("MODEL"))))
}

// cmdCut takes bytes off a file's end: cut FILE BYTES
func cmdCut(ts *testscript.TestScript, _ bool, args []string) {
	file := ts.MkAbs(args[0])
	info, err := os.Stat(file)
	ts.Check(err)
	ts.Check(os.Truncate(file, info.Size()-int64(number(ts, args[1]))))
}

// cmdFlip changes the byte at an offset: flip FILE OFFSET
func cmdFlip(ts *testscript.TestScript, _ bool, args []string) {
	file := ts.MkAbs(args[0])
	data, err := os.ReadFile(file)
	ts.Check(err)
	data[number(ts, args[1])] ^= 0xff
	ts.Check(os.WriteFile(file, data, 0o666))
}

// cmdPicture checks a picture's format and size: picture FILE FORMAT WIDTH HEIGHT
func cmdPicture(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	img, format, err := image.Decode(f)
	ts.Check(err)
	size := img.Bounds().Size()
	if format != args[1] || size.X != number(ts, args[2]) || size.Y != number(ts, args[3]) {
		ts.Fatalf("%s is a %s of %dx%d", args[0], format, size.X, size.Y)
	}
}

// cmdPixels compares two pictures, whatever is stored beside the pixels:
// pixels FILE FILE
func cmdPixels(ts *testscript.TestScript, neg bool, args []string) {
	var images []*image.RGBA
	for _, name := range args {
		p, err := picture.ReadFile(ts.MkAbs(name))
		ts.Check(err)
		images = append(images, p.Image)
	}
	equal := images[0].Rect == images[1].Rect && slices.Equal(images[0].Pix, images[1].Pix)
	if equal == neg {
		ts.Fatalf("%s and %s: equal pixels %v", args[0], args[1], equal)
	}
}

// cmdOnly checks what is in a folder, hidden files too: only FOLDER NAME...
func cmdOnly(ts *testscript.TestScript, _ bool, args []string) {
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), strings.Join(args[1:], " "); got != want {
		ts.Fatalf("found %q, expected %q", got, want)
	}
}

func number(ts *testscript.TestScript, s string) int {
	n, err := strconv.Atoi(s)
	ts.Check(err)
	return n
}

// TestInterrupt ends a run at random moments: it stops with the right code and
// leaves nothing behind.
func TestInterrupt(t *testing.T) {
	for i := range 10 {
		signal := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[i%2]
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			interrupt(t, []syscall.Signal{signal}, time.Duration(rand.IntN(100))*time.Millisecond, "-H", "24", "-W", "40", "--steps", "1000000")
		})
	}
}

// TestInterruptTwice is in one long step: the second signal does not wait.
func TestInterruptTwice(t *testing.T) {
	interrupt(t, []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 200*time.Millisecond, "-H", "1024", "-W", "1024", "--steps", "1000")
}

// interrupt sends signals to a run, after a time from where it says its seed.
func interrupt(t *testing.T, signals []syscall.Signal, after time.Duration, args ...string) {
	dir := t.TempDir()
	cmd := exec.Command("gomflux", append([]string{"generate", "-m", absolute(tinyModel), "-p", "x", "-o", "x.png"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
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
	time.Sleep(after)
	for _, s := range signals {
		if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond) // two at once would be one
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("ended with %v, expected exit code %d", err, exitInterrupted)
	}
	if last != "gomflux: interrupted" {
		t.Errorf("last line: %q", last)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

// TestInterruptReading is while the prompt is still being typed.
func TestInterruptReading(t *testing.T) {
	cmd := exec.Command("gomflux", "generate", "-m", absolute(tinyModel), "-p", "-")
	cmd.Dir = t.TempDir()
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
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("ended with %v, expected exit code %d", err, exitInterrupted)
	}
}

// TestRemoveTemporaries is what the second signal relies on.
func TestRemoveTemporaries(t *testing.T) {
	dir := t.TempDir()
	f, err := newTemporary(filepath.Join(dir, "x.png"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Name()); err != nil {
		t.Fatal(err)
	}
	removeTemporaries()
	temporaries.Unlock()
	if _, err := os.Stat(f.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", f.Name(), err)
	}
}

func TestInternalError(t *testing.T) {
	got := internalError("index out of range [3]\n\non the MLX thread:\ngoroutine 7 [running]:")
	if want := "gomflux: internal error: index out of range [3] (this is a bug: please report it"; !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}

func TestUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		310 * time.Millisecond: "0.31 s", 12400 * time.Millisecond: "12.4 s", 200*time.Second + 400*time.Millisecond: "3 min 20 s",
	} {
		if got := seconds(d); got != want {
			t.Errorf("seconds(%v) = %q, expected %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{999: "1 kB", 15_500_000: "15.5 MB", 12_310_000_000: "12.31 GB"} {
		if got := bytes(n); got != want {
			t.Errorf("bytes(%d) = %q, expected %q", n, got, want)
		}
	}
}

func TestNumbered(t *testing.T) {
	for i, want := range []string{"a.b/c.png", "a.b/c_1.png", "a.b/c_2.png"} {
		if got := numbered("a.b/c.png", i); got != want {
			t.Errorf("number %d is %s, expected %s", i, got, want)
		}
	}
}
