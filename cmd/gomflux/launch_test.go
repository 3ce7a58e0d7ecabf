package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/randtest"
)

// A fault is what happens to one of the processes that gomflux launch has started, or to the launcher.
type fault struct {
	name          string
	seldom, often int           // how many moments
	end           time.Duration // within which all ends
	// do begins the fault of a rank, and returns what the launcher prints if the run fails, "" if it must not.
	do func(t *testing.T, r *launched, victim int) (message string)
}

var faults = []fault{
	{"kill", 2, 50, 30 * time.Second, func(_ *testing.T, r *launched, victim int) string {
		syscall.Kill(r.ranks[victim], syscall.SIGKILL)
		return fmt.Sprintf(`gomflux: rank %d: was killed \(signal 9, killed\)`, victim)
	}},
	{"end", 1, 10, 30 * time.Second, func(_ *testing.T, r *launched, victim int) string {
		syscall.Kill(r.ranks[victim], syscall.SIGTERM)
		// or another rank says so, which it has told before the next step
		return fmt.Sprintf(`gomflux: (rank .*: )?rank %d( \(.*\))?: (context canceled: )?(interrupted|was killed \(signal 15)`, victim)
	}},
	{"launcher", 1, 20, 30 * time.Second, func(_ *testing.T, r *launched, victim int) string {
		if victim == 0 {
			r.cmd.Process.Kill()
			return "" // it cannot say anything
		}
		r.cmd.Process.Signal([]os.Signal{os.Interrupt, syscall.SIGTERM}[victim%2])
		return "gomflux: interrupted"
	}},
	{"stop", 0, 50, 30 * time.Second, func(_ *testing.T, r *launched, victim int) string {
		syscall.Kill(r.ranks[victim], syscall.SIGSTOP)
		return fmt.Sprintf(`gomflux: rank (%d: was silent for 20s \(stopped, asleep or unplugged\)|.: join the group of )`, victim)
	}},
	{"slow", 0, 50, 5 * time.Minute, slowDown},
	{"unplug", 0, 50, 30 * time.Second, unplug},
}

// TestLaunchFaults kills, stops, slows down and unplugs ranks that generate, at random moments: all end in time and
// leave nothing but whole images. Those that generate images of their own do what one of them leaves.
func TestLaunchFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if f.name == "unplug" && exec.Command("unshare", "-rn", "ip", "link").Run() != nil {
				t.Skip("needs unshare and ip, and the right to make a network")
			}
			var mu sync.Mutex
			var longest time.Duration
			failed, ran, times := 0, 0, f.seldom
			if os.Getenv("GOMFLUX_FAULTS") == "all" {
				times = f.often
			}
			t.Run("moment", func(t *testing.T) {
				for i := range times {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						took, ok := f.test(t, i)
						mu.Lock()
						defer mu.Unlock()
						if ran++; !ok {
							failed, longest = failed+1, max(longest, took)
						}
					})
				}
			})
			t.Logf("%d moments: %d runs failed, and all had ended after %v at most; %d finished", ran, failed,
				longest.Round(100*time.Millisecond), ran-failed)
		})
	}
}

// test begins a run and the fault, and waits until all has ended. ok is true if all images are there.
func (f *fault) test(t *testing.T, i int) (took time.Duration, ok bool) {
	random := randtest.New(t)
	n := 2 + 2*(i%5/4)
	args, images := []string{"-H", "24", "-W", "40"}, 1
	switch endless := f.name != "slow"; random.IntN(3) {
	case 0:
		args, images = append(args, "-s", "40", "-S", "1", "2", "3", "4", "--split", "pictures"), 4
	case 1:
		args = append(args, "-s", steps(endless), "-n", "y", "-g", "2", "--split", "passes")
	case 2:
		args = append(args, "-s", steps(endless), "-g", "0", "--split", "sequence")
	}
	if n == 4 {
		t.Logf("%d ranks, %v", n, args)
	}
	r := startRanks(t, n, f.name == "unplug", args...)
	time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second))))
	victim := random.IntN(n)
	message := f.do(t, r, victim)
	began := time.Now()
	r.cmd.Wait()
	code, stderr := r.cmd.ProcessState.ExitCode(), r.stderr.String()
	// those that are started again for the rest may be unplugged from each other too, which takes its time once more
	limit := f.end * time.Duration(1+strings.Count(stderr, "; the rest is left for "))
	left := r.left(t)
	for ; len(left) > 0 && time.Since(began) < limit; left = r.left(t) {
		time.Sleep(100 * time.Millisecond)
	}
	took = time.Since(began)
	if ok = code == 0; took > limit && !ok || len(left) > 0 { // those that do the rest take their time
		t.Errorf("ended after %v, these are left: %q, and it printed %q", took, left, stderr)
	}
	switch whole := checkWhole(t, r.cmd.Dir); {
	case ok && whole == images:
	case ok || f.name == "slow" || !regexp.MustCompile("(?m)^"+message).MatchString(stderr):
		t.Errorf("%v to rank %d of %d with %v: exit code %d, %d of %d images, and it printed %q, expected %q", f.name, victim, n, args,
			code, whole, images, stderr, message)
	}
	if files, err := filepath.Glob(filepath.Join(r.temp, "*")); err != nil || len(files) > 0 {
		t.Errorf("left: %v, %v", files, err)
	}
	return took, ok
}

// steps returns a number of steps that take a second or two, or that take for ever.
func steps(endless bool) string {
	if endless {
		return "1000000"
	}
	return "20"
}

// launched is a run of gomflux launch.
type launched struct {
	cmd      *exec.Cmd
	stderr   *strings.Builder
	temp     string    // its folder for temporary files
	ranks    []int     // processes that it has started, by rank
	commands io.Writer // a shell in its network
}

// startRanks starts a run on n ranks, and waits until the launcher has started all. With a network of its own each is
// on a host of its own, to which ssh connects.
func startRanks(t *testing.T, n int, network bool, args ...string) *launched {
	t.Helper()
	r := &launched{temp: t.TempDir(), stderr: &strings.Builder{}}
	cmd, _ := generateIn(t, append(args, "-o", "x.png")...)
	r.cmd, cmd.Env, cmd.Stderr = cmd, append(cmd.Env, "TMPDIR="+r.temp), r.stderr
	if !network {
		cmd.Args = append([]string{"gomflux", "launch", "--local", fmt.Sprint(n), "--"}, cmd.Args[1:]...)
	} else {
		script, hosts := "ip link set lo up && ip rule add pref 10 lookup local && ip rule del pref 0", []string{}
		for i := range n {
			script += fmt.Sprintf(" && ip addr add 10.0.0.%d/32 dev lo", i+1)
			hosts = append(hosts, fmt.Sprintf(`{"ssh": "mac%d", "ips": ["10.0.0.%d"]}`, i, i+1))
		}
		file := filepath.Join(t.TempDir(), "hosts.json")
		if err := os.WriteFile(file, []byte("["+strings.Join(hosts, ", ")+"]"), 0o666); err != nil {
			t.Fatal(err)
		}
		script += ` && { env -i PATH="$PATH" sh <&3 >/dev/null 2>&1 & } && exec "$0" "$@" 3<&-`
		cmd.Path, cmd.Err = "/usr/bin/unshare", nil
		cmd.Args = append([]string{"unshare", "-rn", "sh", "-c", script, "gomflux", "launch", "--hostfile", file, "--"}, cmd.Args[1:]...)
		commands, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer commands.Close()
		t.Cleanup(func() { write.Close() })
		cmd.ExtraFiles, r.commands = []*os.File{commands}, write
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); len(r.ranks) < n; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			cmd.Process.Kill()
			t.Fatalf("the ranks did not start: %v, %s", r.ranks, r.stderr)
		}
		r.ranks = childrenOf(t, cmd.Process.Pid)
	}
	return r
}

// slowDown gives a rank a tenth of the time.
func slowDown(t *testing.T, r *launched, victim int) string {
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for pid := r.ranks[victim]; syscall.Kill(pid, syscall.SIGSTOP) == nil; time.Sleep(10 * time.Millisecond) {
			time.Sleep(90 * time.Millisecond)
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	return ""
}

// unplug drops all packets of a rank's connections in the ring: each has the address of the rank that listens. Of
// two runs of three it drops those of the rank's ssh too.
func unplug(t *testing.T, r *launched, victim int) string {
	for _, rank := range []int{victim, (victim + 1) % len(r.ranks)} {
		fmt.Fprintf(r.commands, "ip rule add pref 5 to 10.0.0.%d blackhole\n", rank+1)
	}
	ring := `gomflux: (mac.*: |)(the connection to other|mlx: \[ring\] connection to a peer was lost|join the group of |.*have not found)`
	if r.ranks[victim]%3 == 0 {
		return ring
	}
	syscall.Kill(r.ranks[victim], syscall.SIGUSR1)
	return fmt.Sprintf(`gomflux: .*mac%d \(rank %d\).*: was silent for |`, victim, victim) + ring
}

// childrenOf returns what a launcher has started, by rank: the ranks, or ssh.
func childrenOf(t *testing.T, launcher int) (pids []int) {
	t.Helper()
	out, err := exec.Command("ps", "axww", "-o", "pid=,ppid=,args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var pid, parent int
		fmt.Sscan(line, &pid, &parent)
		is := func(text string) bool { return strings.Contains(line, text) }
		if parent == launcher && (is("launch rank") || is("x.png") || is(" serve ") || is("'rank'")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// left returns the processes of the run that are there.
func (r *launched) left(t *testing.T) (left []string) {
	t.Helper()
	out, err := exec.Command("ps", "axeww", "-o", "stat=,args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "TMPDIR="+r.temp) && line[0] != 'Z' {
			left = append(left, line[:min(len(line), 200)])
		}
	}
	return left
}

// standInSSH runs a command as ssh does on a host: out of the reach of signals, connected by pipes. After SIGUSR1
// what goes through the connection is lost, and neither side learns of it.
func standInSSH() {
	var lost atomic.Bool
	cmd := exec.Command("sh", "-c", strings.Join(os.Args[slices.Index(os.Args, "--")+2:], " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var ours [3]*os.File
	var err error
	var theirs [3]*os.File
	for i := range ours {
		if ours[i], theirs[i], err = os.Pipe(); err != nil {
			panic(err)
		}
	}
	ours[0], theirs[0] = theirs[0], ours[0] // which the command reads
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err = cmd.Start(); err != nil {
		panic(err)
	}
	for _, f := range theirs {
		f.Close()
	}
	copy := func(to io.Writer, from io.Reader) {
		buffer := make([]byte, 1<<16)
		for n, err := from.Read(buffer); n > 0 || err == nil; n, err = from.Read(buffer) {
			if !lost.Load() {
				to.Write(buffer[:n])
			}
		}
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		<-signals
		lost.Store(true)
		keeper := exec.Command("sleep", "60") // so that the ends of the pipes are open if this process is killed
		keeper.ExtraFiles, keeper.SysProcAttr, keeper.Env = ours[:], &syscall.SysProcAttr{Setsid: true}, []string{}
		if err := keeper.Start(); err != nil {
			panic(err)
		}
	}()
	go func() {
		copy(ours[0], os.Stdin)
		if !lost.Load() {
			ours[0].Close()
		}
	}()
	var output sync.WaitGroup
	output.Go(func() { copy(os.Stdout, ours[1]) })
	output.Go(func() { copy(os.Stderr, ours[2]) })
	output.Wait()
	if lost.Load() {
		select {} // until it is killed
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() < 0 {
		os.Exit(255)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}
