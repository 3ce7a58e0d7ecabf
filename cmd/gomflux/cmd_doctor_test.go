package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"
)

func TestFreeDisk(t *testing.T) {
	dir := t.TempDir()
	here, below := freeDisk(dir), freeDisk(filepath.Join(dir, "not/there"))
	if here == 0 || below < here/2 || below > here*2 { // others write to it too
		t.Errorf("%d bytes free, and %d below", here, below)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if n := freeDisk(filepath.Join(file, "x")); n != 0 {
		t.Errorf("%d bytes free below a file", n)
	}
}

// TestDoctorTerminal is about a terminal that is known by its name.
func TestDoctorTerminal(t *testing.T) {
	for name, want := range map[string]string{"xterm-kitty": `shows pictures \(kitty\)`, "dumb": "shows no pictures"} {
		master, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		if err := pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 80, X: 800, Y: 480}); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, master)
		var out strings.Builder
		cmd := exec.Command("gomflux", "doctor")
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "TERM") && !strings.HasPrefix(v, "TMUX") && !strings.HasPrefix(v, "STY=") && !strings.HasPrefix(v, "ZELLIJ") {
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, "TERM="+name, "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+t.TempDir())
		cmd.Stdout, cmd.Stderr = &out, tty
		err = cmd.Run()
		tty.Close()
		if err != nil || !regexp.MustCompile(`(?m)^terminal +`+want+`$`).MatchString(out.String()) {
			t.Errorf("%s: %v, %s, expected %s", name, err, out.String(), want)
		}
	}
}
