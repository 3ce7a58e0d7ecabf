package main

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/gomflux/gomflux/mlx"
)

// TestDoctorDtype is about the devices of other machines.
func TestDoctorDtype(t *testing.T) {
	for _, c := range []struct{ name, architecture, want string }{
		{"Apple M1 Max", "applegpu_g13s", "gpu, Apple M1 Max, applegpu_g13s, computes in float16: the M1 has no bfloat16 hardware"},
		{"Apple M4", "applegpu_g16g", "gpu, Apple M4, applegpu_g16g, computes in bfloat16"},
		{"NVIDIA H200", "sm_90", "gpu, NVIDIA H200, sm_90, computes in bfloat16"},
	} {
		d := describeDevice(mlx.DeviceInfo{Device: mlx.GPU, Name: c.name, Architecture: c.architecture})
		d.Device, d.Standard = "gpu", false
		if got := d.text(); got != c.want {
			t.Errorf("%s: %s, expected %s", c.name, got, c.want)
		}
	}
}

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
