package main

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// TestDoctorTerminal is about a terminal that is known by its name.
func TestDoctorTerminal(t *testing.T) {
	for name, want := range map[string]string{"xterm-kitty": `shows images \(kitty\)`, "dumb": "shows no images"} {
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
			if !strings.HasPrefix(v, "TERM") && !strings.HasPrefix(v, "TMUX") && !strings.HasPrefix(v, "STY=") &&
				!strings.HasPrefix(v, "ZELLIJ") {
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
