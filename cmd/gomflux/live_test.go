package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

// cmdStream writes a run that gomflux has saved as the reference sends it: stream RUN FILE.
func cmdStream(ts *testscript.TestScript, _ bool, args []string) {
	data, err := streamOf(ts.MkAbs(args[0]), ts.MkAbs("."))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), data, 0o666))
}

// streamOf returns the stream of a run, in the order of its trace. It works in a folder.
func streamOf(run, folder string) ([]byte, error) {
	made, err := runs.ReadTrace(os.DirFS(run))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil {
		return nil, err
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		return nil, err
	}
	tensors, modules := map[string]*checkpoint.Array{}, map[string]bool{}
	files, err := filepath.Glob(filepath.Join(run, "tensors", "*"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		f, err := checkpoint.OpenArrays(name)
		if err != nil {
			return nil, err
		}
		for _, info := range f.Tensors() {
			x, err := f.Read(info.Name)
			if err != nil {
				return nil, err
			}
			tensors[info.Name] = x
			module, _, _ := strings.Cut(strings.Split(info.Name, ":")[0], "@")
			modules[module] = true
		}
		f.Close()
	}
	settings["modules"], settings["pasted"] = slices.Sorted(maps.Keys(modules)), tensors["image.pasted"] != nil
	for _, key := range []string{"picture", "mask"} {
		if name, ok := settings[key].(string); ok {
			settings[key] = filepath.Join(run, filepath.FromSlash(name))
		}
	}
	if text, err = json.Marshal(settings); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	part := func(metadata map[string]string, tensors ...*checkpoint.Array) error {
		file := filepath.Join(folder, "part.safetensors")
		if err := checkpoint.WriteFile(file, tensors, metadata); err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		b.Write(data)
		return errors.Join(err, os.Remove(file))
	}
	err = part(map[string]string{"settings": string(text)})
	for _, name := range slices.SortedFunc(maps.Keys(tensors), func(a, b string) int { return made[a] - made[b] }) {
		err = errors.Join(err, part(nil, tensors[name]))
	}
	err = errors.Join(err, part(map[string]string{"end": ""}))
	return b.Bytes(), err
}

// TestLiveEnds ends parity live while the reference runs: the reference ends too, with and without
// its help.
func TestLiveEnds(t *testing.T) {
	dir := t.TempDir()
	save := exec.Command("gomflux", "generate", "-m", absolute(tinyModel), "-p", "x", "-H", "24", "-W", "40", "-s", "1", "-g", "0",
		"-S", "1", "--debug-save", "*", "--log-dir", "saved")
	save.Dir, save.Env = dir, append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
	if out, err := save.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := streamOf(filepath.Join(dir, "saved/runs/latest/gomflux"), dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		script string // of the reference, after it has written its process id
		part   float64
		signal syscall.Signal
	}{
		"loading, interrupt":  {"cat >/dev/null", 0, syscall.SIGINT},
		"loading, kill":       {"cat >/dev/null", 0, syscall.SIGKILL},
		"running, interrupt":  {"cat part; cat >/dev/null", 0.5, syscall.SIGINT},
		"running, terminate":  {"cat part; cat >/dev/null", 0.5, syscall.SIGTERM},
		"running, kill":       {"cat part; cat >/dev/null", 0.5, syscall.SIGKILL},
		"ignores, interrupt":  {"trap '' INT; cat part; cat >/dev/null", 0.5, syscall.SIGINT},
		"sends on, kill":      {"cat part; while cat part; do :; done", 0.5, syscall.SIGKILL},
		"a child, interrupt":  {"(cat part; cat >/dev/null); true", 0.5, syscall.SIGINT},
		"at the end, hang up": {"cat part; cat >/dev/null", 1, syscall.SIGHUP},
	} {
		t.Run(name, func(t *testing.T) {
			if c.signal == syscall.SIGHUP && signal.Ignored(syscall.SIGHUP) {
				t.Skip("nohup started this test, so that nothing hangs up")
			}
			t.Parallel()
			here := t.TempDir()
			script := "echo $$ >pid.new; mv pid.new pid\n" + c.script + "\n"
			end := int(c.part * float64(len(data)-60)) // without the end
			if err := errors.Join(os.WriteFile(filepath.Join(here, "part"), data[:end], 0o666),
				os.WriteFile(filepath.Join(here, "reference.sh"), []byte(script), 0o666)); err != nil {
				t.Fatal(err)
			}
			var stderr strings.Builder
			cmd := exec.Command("gomflux", "parity", "live", "-m", absolute(tinyModel), "-p", "x", "-H", "24", "-W", "40", "-s", "1",
				"-S", "1", "--reference", "sh reference.sh")
			cmd.Dir, cmd.Env, cmd.Stderr = here, save.Env, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			reference := await(t, filepath.Join(here, "pid"))
			time.Sleep(time.Second)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if c.signal != syscall.SIGKILL && (status.ExitStatus() != cli.ExitInterrupted || stderr.String() != "gomflux: interrupted\n") {
				t.Errorf("%v, and said %q", cmd.ProcessState, stderr.String())
			}
			for until := time.Now().Add(15 * time.Second); alive(reference); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal("the reference goes on")
				}
			}
		})
	}
}

// await returns the number in a file, once that is there.
func await(t *testing.T, file string) int {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatal(fmt.Sprint(file, " was not written"))
	return 0
}

// alive reports whether a process runs. One that has ended may wait for its parent, which is not
// this process.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}
