package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/randtest"
)

// TestLaunchKill kills the launcher or one of two ranks that generate, at random moments: both end, and
// leave nothing but whole images. The nightly run stops them too, which takes the launcher 20 seconds to
// notice.
func TestLaunchKill(t *testing.T) {
	for i := range randtest.Times(4, 50) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			random := randtest.New(t)
			after, victim := time.Duration(random.Int64N(int64(time.Second))), i%3
			signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP}
			signal := signals[random.IntN(randtest.Times(2, 3))]
			if victim == 2 && signal == syscall.SIGSTOP {
				signal = syscall.SIGINT
			}
			cmd, dir := generateIn(t, "-H", "24", "-W", "40", "-s", "1000000", "-o", "x.png")
			cmd.Args = append([]string{"gomflux", "launch", "--local", "2", "--"}, cmd.Args[1:]...)
			temp := t.TempDir()
			cmd.Env = append(cmd.Env, "TMPDIR="+temp)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ranks := childrenOf(t, cmd.Process.Pid)
			time.Sleep(after)
			pid := append(ranks, cmd.Process.Pid)[victim]
			if err := syscall.Kill(pid, signal); err != nil {
				t.Error(err)
			}
			began := time.Now()
			cmd.Wait()
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("%v of process %d of 3: ended after %v", signal, victim, took)
			}
			for ; running(ranks) > 0; time.Sleep(10 * time.Millisecond) {
				if time.Since(began) > 40*time.Second {
					t.Fatalf("%v of process %d of 3: processes %v are there", signal, victim, ranks)
				}
			}
			want := fmt.Sprintf("gomflux: rank %d: was killed (signal 9, killed)\n", victim)
			switch {
			case victim == 2 && signal == syscall.SIGKILL:
				want = ""
			case victim == 2:
				want = "gomflux: interrupted\n"
			case signal == syscall.SIGTERM: // before its start it is killed by it
				want = fmt.Sprintf("gomflux: rank %d: ", victim)
			case signal == syscall.SIGSTOP:
				want = fmt.Sprintf("gomflux: rank %d: was silent for 20s (stopped, asleep or unplugged)\n", victim)
			}
			if code := cmd.ProcessState.ExitCode(); !strings.Contains(stderr.String(), want) || code == 0 || code == cli.ExitUsage {
				t.Errorf("%v of process %d of 3: exit code %d, and it printed %q", signal, victim, code, stderr.String())
			}
			checkWhole(t, dir)
			if left, err := filepath.Glob(filepath.Join(temp, "*")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// childrenOf waits until a launcher has started two ranks.
func childrenOf(t *testing.T, launcher int) (pids []int) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
		out, err := exec.Command("ps", "axww", "-o", "pid=,ppid=,args=").Output()
		if err != nil {
			t.Fatal(err)
		}
		pids = nil
		for line := range strings.Lines(string(out)) {
			var pid, parent int
			fmt.Sscan(line, &pid, &parent)
			isRank := strings.Contains(line, "launch rank") || strings.Contains(line, "x.png") || strings.Contains(line, " serve ")
			if parent == launcher && isRank {
				pids = append(pids, pid)
			}
		}
		if len(pids) == 2 {
			return pids
		}
	}
	t.Fatalf("the ranks did not start: %v", pids)
	return nil
}

// running counts the processes that have not ended.
func running(pids []int) (n int) {
	for _, pid := range pids {
		out, _ := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
		if len(out) > 0 && out[0] != 'Z' {
			n++
		}
	}
	return n
}
