package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
)

// TestMain makes the program of the tests stand in for gomflux, and for ssh if it has that name.
func TestMain(m *testing.M) {
	rank.Silence, patience = 10*time.Second, 5*time.Second
	switch {
	case filepath.Base(os.Args[0]) == "ssh":
		os.Exit(ssh(os.Args[1:]))
	case len(os.Args) > 2 && os.Args[1] == "launch":
		cmd := newRankCommand()
		cmd.SetArgs([]string{})
		fmt.Fprintln(os.Stderr, "gomflux:", cmd.ExecuteContext(context.Background()))
		os.Exit(1)
	case len(os.Args) > 1 && os.Args[1] == "version":
		os.Exit(version(strings.TrimPrefix(os.Args[3], "--listen=")))
	case len(os.Args) > 1 && os.Args[1] == "play":
		os.Exit(play(os.Args[2:]))
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	program, err := os.Executable()
	if err == nil {
		err = os.Symlink(program, filepath.Join(dir, "ssh"))
	}
	if err != nil {
		panic(err)
	}
	os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// ssh runs a command as ssh does on a host: with the user's shell, out of the reach of signals, and with
// its standard input closed when ssh ends. Only hosts that begin with mac are there.
func ssh(args []string) int {
	for args[0] != "--" {
		args = args[1:]
	}
	host := args[1]
	if !strings.HasPrefix(host, "mac") {
		fmt.Fprintf(os.Stderr, "ssh: Could not resolve hostname %s: Name or service not known\r\n", host)
		return 255
	}
	cmd := exec.Command("sh", "-c", strings.Join(args[2:], " "))
	cmd.Env = append(os.Environ(), "HOST_OF_TEST="+host, "SSH_CONNECTION=127.0.0.7 1 127.0.0.1 22")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		panic(err)
	}
	go func() {
		io.Copy(stdin, os.Stdin)
		stdin.Close()
	}()
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 255
	}
	return cmd.ProcessState.ExitCode()
}

// version prints what the name of the host asks for.
func version(addresses string) int {
	host := os.Getenv("HOST_OF_TEST")
	info := cli.VersionInfo{Version: gomflux.Version(), MLX: "1.2.3", Backends: []string{ring}, Time: time.Now()}
	if host != "" {
		info.Client = "127.0.0.7"
	}
	for i, a := range strings.Split(addresses, ",") {
		l := cli.Listener{Address: strings.Replace(a, ":0", fmt.Sprint(":", 50000+i), 1)}
		if strings.HasPrefix(a, ":") {
			l.Address = "127.0.0.1" + l.Address
		}
		if strings.HasSuffix(host, "-busy") {
			l.Problem = "address already in use"
		}
		info.Listen = append(info.Listen, l)
	}
	switch {
	case strings.HasSuffix(host, "-none"):
		return 127
	case strings.HasSuffix(host, "-old"):
		fmt.Fprintln(os.Stderr, "gomflux: unknown flag: --json (gomflux version --help lists the flags)")
		return 2
	case strings.HasSuffix(host, "-other"):
		info.Version = "v0.0.1"
	case strings.HasSuffix(host, "-mlx"):
		info.MLX = "1.2.4"
	case strings.HasSuffix(host, "-broken"):
		info.Problem = "mlx: library libmlxc not found"
	case strings.HasSuffix(host, "-noise"):
		fmt.Println("Welcome!")
	}
	json.NewEncoder(os.Stdout).Encode(info)
	return 0
}

// play does what the arguments for this rank ask for: RANK:ACTION or *:ACTION.
func play(args []string) int {
	stdin := rank.Start(os.Stdin, os.Stderr, func() { os.Exit(cli.ExitInterrupted) })
	for _, arg := range args {
		who, action, _ := strings.Cut(arg, ":")
		if who != "*" && who != os.Getenv("MLX_RANK") {
			continue
		}
		action, value, _ := strings.Cut(action, " ")
		n, _ := strconv.Atoi(value)
		switch action {
		case "out":
			fmt.Println(value)
		case "say":
			fmt.Fprintln(os.Stderr, value)
		case "part":
			fmt.Fprint(os.Stderr, value)
		case "wait":
			time.Sleep(time.Duration(n) * time.Millisecond)
		case "input":
			text, _ := io.ReadAll(stdin)
			fmt.Printf("%q\n", text)
		case "env":
			fmt.Printf("%s=%q\n", value, os.Getenv(value))
		case "file":
			text, err := os.ReadFile(os.Getenv(value))
			fmt.Printf("%s: %s %v\n", value, text, err)
		case "mark": // one file for each start
			os.WriteFile(value+os.Getenv(rank.EnvDone), nil, 0o666)
		case "await":
			for _, err := os.Stat(value); err != nil; _, err = os.Stat(value) {
				time.Sleep(20 * time.Millisecond)
			}
		case "resumable":
			rank.Resumable(true)
		case "done":
			if !slices.Contains(rank.Before(), n) {
				rank.Done(n)
			}
		case "progress":
			p := gomflux.Progress{Phase: gomflux.PhaseStep}
			if _, err := fmt.Sscanf(value, "%d/%d", &p.Step, &p.Steps); err != nil {
				p.Phase, p.Component = gomflux.PhaseLoad, value
			}
			rank.Report(p)
		case "signal":
			syscall.Kill(os.Getpid(), syscall.Signal(n))
		case "exit":
			return n
		default:
			panic(arg)
		}
	}
	return 0
}
