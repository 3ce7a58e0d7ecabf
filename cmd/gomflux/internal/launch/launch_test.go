package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/randtest"
)

// parse reads flags; {FILE} in them is a host file with the given text.
func parse(t *testing.T, text string, args ...string) (group, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts.json")
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	o := NewFlags()
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddHosts(f)
	o.addRun(f)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{FILE}", file)
	}
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o.group()
}

func TestGroupErrors(t *testing.T) {
	for _, test := range []struct{ flags, file, want string }{
		{"", "", "no hosts (--hosts mac1,mac2 names them"},
		{"--hosts mac1", "", "one rank is not a group"},
		{"--local 1", "", "one rank is not a group"},
		{"--hosts mac1,mac2,mac1", "", "host mac1 is there twice"},
		{"--hosts mac1,", "", `host 2: "" is not a name for ssh`},
		{"--hosts mac1,-oProxyCommand=x", "", `host 2: "-oProxyCommand=x" is not a name`},
		{"--hosts mac1,mac2 --local 2", "", "give one of --hosts, --hostfile and --local"},
		{"--hosts mac1,mac2 --hostfile {FILE}", "[]", "give one of"},
		{"--hostfile /nowhere", "", "host file /nowhere: no such file or directory"},
		{"--hostfile {FILE}", "mac1\nmac2\n", "expected JSON as mlx.launch reads it"},
		{"--hostfile {FILE}", "[]", "no hosts"},
		{"--hostfile {FILE}", `{"hosts": 3}`, "cannot unmarshal number"},
		{"--hostfile {FILE}", `[{"ssh": "mac1", "ips": ["fe80::1"]}]`, `host mac1: "fe80::1" is not an IPv4 address`},
		{"--hostfile {FILE}", `{"backend": "mpi", "hosts": [{"ssh": "mac1"}, {"ssh": "mac2"}]}`, `backend "mpi": expected ring`},
		{"--hosts mac1,mac2 --backend jaccl", "", "host mac1: jaccl needs a host file whose rdma"},
		{"--hostfile {FILE} --backend jaccl", `[{"ssh":"mac1","rdma":[null,"a"]},{"ssh":"mac2","rdma":["a"]}]`, "mac2: jaccl needs"},
		{"--hostfile {FILE} --backend jaccl", `[{"ssh":"mac1","rdma":["a","a"]},{"ssh":"mac2","rdma":["a",null]}]`, "mac1: jaccl needs"},
		{"--local 2 --env X", "", `environment variable "X": expected NAME=VALUE`},
	} {
		_, err := parse(t, test.file, strings.Fields(test.flags)...)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %s: %v, expected %q", test.flags, test.file, err, test.want)
		}
	}
}

// TestEnvironment compares what ranks get with what mlx.launch passes, for its own host files.
func TestEnvironment(t *testing.T) {
	const file = `{"backend": "jaccl-ring", "envs": ["MLX_METAL_FAST_SYNCH=1"], "hosts": [
		{"ssh": "mac1", "ips": ["10.0.0.1", "10.1.0.1"], "rdma": [null, "en2", ["en3", "en4"]], "more": true},
		{"ssh": "mac2", "ips": ["10.0.0.2"], "rdma": ["en2", null, "en5"]},
		{"ssh": "mac3", "ips": ["10.0.0.3"], "rdma": ["en3", "en5", null]}]}`
	t.Setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
	tests := []struct {
		flags string
		hosts []int
		want  []string // of the last rank; files have a colon
	}{
		{"--hostfile {FILE} --backend ring", []int{0, 1, 2}, []string{"MLX_METAL_FAST_SYNCH=1", "MLX_JACCL_RING=1", "GOMFLUX_LAUNCHED=1",
			"MLX_RANK=2", `MLX_HOSTFILE:[["10.0.0.1:40","10.1.0.1:41"],["10.0.0.2:42"],["10.0.0.3:43"]]`}},
		{"--hostfile {FILE} --backend ring", []int{1, 2}, []string{"MLX_METAL_FAST_SYNCH=1", "MLX_JACCL_RING=1", "GOMFLUX_LAUNCHED=1",
			"MLX_RANK=1", `MLX_HOSTFILE:[["10.0.0.2:42"],["10.0.0.3:43"]]`}},
		{"--hostfile {FILE} --env A=b=c", []int{0, 1, 2}, []string{"MLX_METAL_FAST_SYNCH=1", "MLX_JACCL_RING=1",
			"A=b=c", "GOMFLUX_LAUNCHED=1",
			"MLX_RANK=2", "MLX_JACCL_COORDINATOR=10.0.0.1:40",
			`MLX_IBV_DEVICES:[[null,"en2",["en3","en4"]],["en2",null,"en5"],["en3","en5",null]]`}},
		{"--hostfile {FILE} --backend jaccl", []int{0, 2}, []string{"MLX_METAL_FAST_SYNCH=1", "MLX_JACCL_RING=1", "GOMFLUX_LAUNCHED=1",
			"MLX_RANK=1", "MLX_JACCL_COORDINATOR=10.0.0.1:40", `MLX_IBV_DEVICES:[[null,["en3","en4"]],["en3",null]]`}},
		{"--hostfile {FILE} --backend nccl", []int{0, 1, 2}, []string{"MLX_METAL_FAST_SYNCH=1", "MLX_JACCL_RING=1", "GOMFLUX_LAUNCHED=1",
			"MLX_RANK=2", "MLX_WORLD_SIZE=3", "NCCL_HOST_IP=10.0.0.1", "NCCL_PORT=40"}},
		{"--local 3 --backend nccl", []int{0, 2}, []string{"GOMFLUX_LAUNCHED=1", "MLX_RANK=1", "MLX_WORLD_SIZE=2", "NCCL_HOST_IP=127.0.0.1",
			"NCCL_PORT=40", "CUDA_VISIBLE_DEVICES=6"}},
		{"--local 2", []int{1}, []string{"GOMFLUX_LAUNCHED=1"}}, // one survivor has no group
	}
	for _, test := range tests {
		g, err := parse(t, file, strings.Fields(test.flags)...)
		if err != nil {
			t.Fatal(err)
		}
		port := 40
		for i := range g.Hosts {
			for _, ip := range g.Hosts[i].IPs {
				g.Hosts[i].addresses = append(g.Hosts[i].addresses, fmt.Sprint(ip, ":", port))
				port++
			}
		}
		all := g.Hosts
		g.Hosts = nil
		for _, i := range test.hosts {
			g.Hosts = append(g.Hosts, all[i])
		}
		env, files := g.environment(len(g.Hosts) - 1)
		for name, text := range files {
			env = append(env, name+":"+text)
		}
		if !slices.Equal(env, test.want) {
			t.Errorf("%s, hosts %v:\n%q\n%q expected", test.flags, test.hosts, env, test.want)
		}
	}
}

func TestRead(t *testing.T) {
	for _, test := range []struct {
		prefix, text, want, held string
		done                     int
	}{
		{"", "a wo\x1e{\"done\":[1,2]}\nrd\n\x1e{}\n", "a word\n", "", 2},
		{"", "gomflux: warning: x\ngomflux: no prompt\n", "gomflux: warning: x\n", "gomflux: no prompt\n", 0},
		{"", "gomflux: first\nsecond\n", "gomflux: first\nsecond\n", "", 0},
		{"", "10%\r20%", "10%\r20%", "", 0},
		{"m: ", "a word\x1e{\"done\":[7]}\nand\n", "m: a wordand\n", "", 1},
		{"m: ", "\x1b[31mred\r\n", "m: \\x1b[31mred\n", "", 0},
		{"m: ", "gomflux: warning: x\ngomflux: bad\n", "m: gomflux: warning: x\n", "gomflux: bad\n", 0},
		{"m: ", "[ring] Socket 7 was closed by the peer\n[ring] Rank 0 accepting\n", "m: [ring] Rank 0 accepting\n", "", 0},
		{"m: ", "no line end", "m: no line end\n", "", 0},
		{"m: ", "\x1enot JSON\n\x1e{\"done\":[3]}\n\x1e{\"done\":[4]}\nx\n", "m: x\n", "", 2},
	} {
		var out strings.Builder
		p := process{prefix: test.prefix, screen: &screen{stderr: &out}}
		for _, b := range []byte(test.text) {
			p.Write([]byte{b})
		}
		if p.say(p.unread); !p.held {
			p.last = ""
		}
		if out.String() != test.want || p.last != test.held || len(p.beat.Done) != test.done {
			t.Errorf("%q: printed %q, kept %q, %d done", test.text, out.String(), p.last, len(p.beat.Done))
		}
	}
}

// ranks runs the stand-in on two or more ranks, and returns what was printed.
func ranks(t *testing.T, flags string, input string, script ...string) (stdout, stderr string, err error) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g, err := parse(t, "", strings.Fields(flags)...)
	if err != nil {
		t.Fatal(err)
	}
	g.program = program
	if err := g.prepare(t.Context()); err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	err = g.run(ctx, &ui.Output{Stdout: &out, Stderr: &errs}, append([]string{"play"}, script...), input)
	return out.String(), errs.String(), err
}

// wheres are the two ways to start three ranks.
var wheres = []string{"--local 3", "--hosts mac1,mac2,mac3"}

func TestRun(t *testing.T) {
	t.Parallel()
	odd := `a 'b' "c" $HOME \n ü *; exit 3` + "\nline"
	type result struct {
		stdout, stderr string
		code           int
		problem        string
	}
	for _, test := range []struct {
		script        []string
		local, remote result
	}{
		{[]string{"*:out from all", "*:say hello"},
			result{stdout: "from all\n", stderr: "hello\nrank 1: hello\nrank 2: hello\n"},
			result{stdout: "from all\n", stderr: "hello\nmac2: hello\nmac3: hello\n"}},
		{[]string{"0:out " + odd, "0:input", "0:env ODD"},
			result{stdout: odd + "\n\"input\\n\"\nODD=\"'$HOME;\\\"\"\n"}, result{stdout: odd + "\n\"input\\n\"\nODD=\"'$HOME;\\\"\"\n"}},
		{[]string{"*:say gomflux: no prompt", "*:exit 2"}, // one line for all
			result{code: 2, problem: "no prompt"}, result{code: 2, problem: "no prompt"}},
		{[]string{"1:say gomflux: out of memory", "1:exit 1", "*:wait 300000"},
			result{code: 1, problem: "rank 1: out of memory"}, result{code: 1, problem: "mac2 (rank 1): out of memory"}},
		{[]string{"0:say gomflux: a connection was lost", "1:say gomflux: interrupted", "1:wait 300", "0:exit 1", "1:exit 130",
			"*:wait 300000"},
			result{code: 130, problem: "rank 1: interrupted"}, result{code: 130, problem: "mac2 (rank 1): interrupted"}},
		{[]string{"0:say gomflux: mlx: [ring] connection to a peer was lost", "1:say gomflux: no model", "1:wait 300", "0:exit 1",
			"1:exit 3", "*:wait 300000"},
			result{code: 3, problem: "rank 1: no model"}, result{code: 3, problem: "mac2 (rank 1): no model"}},
		{[]string{"2:wait 300", "2:exit 7", "*:wait 300000"},
			result{code: 7, problem: "rank 2: has ended with exit code 7"},
			result{code: 7, problem: "mac3 (rank 2): has ended with exit code 7"}},
		{[]string{"0:wait 300", "0:signal 9", "*:wait 300000"},
			result{code: 1, problem: "rank 0: was killed (signal 9, killed)"},
			result{code: 1, problem: "mac1 (rank 0): the connection was lost: "}},
	} {
		for i, want := range []result{test.local, test.remote} {
			t.Run(wheres[i]+" "+strings.Join(test.script[:2], " "), func(t *testing.T) {
				t.Parallel()
				stdout, stderr, err := ranks(t, wheres[i]+" --env ODD='$HOME;\"", "input\n", test.script...)
				lines := strings.SplitAfter(stderr, "\n")
				slices.Sort(lines) // ranks write in any order
				got := result{stdout, strings.Join(lines, ""), cli.ExitCode(err), ""}
				if err != nil {
					got.problem = err.Error()
				}
				if got != want {
					t.Errorf("%+v\n%+v expected", got, want)
				}
			})
		}
	}
}

// TestResume: what a lost rank has left is done by the others, as often as one is lost.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, where := range wheres {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			mark := filepath.Join(t.TempDir(), "done") // by rank 0: rank 2 is lost in the first start, rank 1 in the second
			stdout, stderr, err := ranks(t, where, "", "0:resumable", "0:done 1", "*:env GOMFLUX_DONE", "0:done 3", "0:mark "+mark,
				"2:await "+mark+"null", "2:signal 9", "1:await "+mark+"[1,3]", "1:signal 9", "0:wait 300000")
			// three ranks, then two, then one without a group, of which the script has nothing but for all
			if want := "GOMFLUX_DONE=\"null\"\nGOMFLUX_DONE=\"[1,3]\"\nGOMFLUX_DONE=\"[1,3]\"\n"; err != nil || stdout != want {
				t.Errorf("%q, %v, expected %q", stdout, err, want)
			}
			if strings.Count(stderr, "\n") != 2 || !strings.Contains(stderr, "; the rest is left for ") {
				t.Errorf("%q, expected two warnings", stderr)
			}
		})
	}
}

// TestStuck: ranks that live but get no further than a step are named, unless others are behind them too. What was
// not measured before, loading and the first step of a rank, may last.
func TestStuck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, want string
		script     []string
	}{
		{"one", "rank 2: got no further than step 1/9 for 5s (no step before took more than ", []string{"*:progress 0/9", "*:progress 1/9",
			"2:wait 300000", "*:progress 2/9", "*:wait 300000"}},
		{"all", "rank 0 and rank 1 and rank 2: got no further than step 1/9 for 5s", []string{"*:progress 0/9", "*:wait 50",
			"*:progress 1/9",
			"*:wait 300000"}},
		{"images of their own", "", []string{"*:resumable", "*:env GOMFLUX_DONE", "*:progress 0/2", "*:progress 1/2", "1:wait 300000",
			"*:progress 2/2", "0:done 0", "0:wait 12000"}},
		{"slow", "", []string{"*:progress 0/2", "1:wait 12000", "*:progress 1/2", "*:progress 2/2", "2:progress vae", "2:wait 12000"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, err := ranks(t, "--local 3", "", test.script...)
			if test.want == "" && err != nil || test.want != "" && !strings.HasPrefix(fmt.Sprint(err), test.want) {
				t.Errorf("%v, expected %q", err, test.want)
			}
			const warning = "gomflux: warning: rank 1: got no further than step 1/2 for 5s (no step before took more than "
			if test.name == "images of their own" &&
				(stdout != "GOMFLUX_DONE=\"null\"\n"+strings.Repeat("GOMFLUX_DONE=\"[0]\"\n", 2) || !strings.HasPrefix(stderr, warning)) {
				t.Errorf("%q, %q", stdout, stderr)
			}
		})
	}
}

// TestTick: of ranks that report the same again and again, or nothing, those are named that the others wait for.
func TestTick(t *testing.T) {
	const silent, failed = "", "failed"
	for _, test := range []struct {
		beats   []string
		want    string
		seconds int
	}{
		{[]string{`{"joining":true}`, `{"joining":true}`}, "r0 and r1: have not found each other for 5s (is there a firewall, ", 6},
		{[]string{`{"joining":true}`, `{}`}, "", 0}, // it reads MLX from a slow disk
		{[]string{`{"joining":true}`, silent}, "r1: was silent for 10s ", 5},
		{[]string{`{"lost":1}`, `{"lost":2}`, `{"lost":1}`, `{}`}, "r1: the connection to other ranks was lost ", 5},
		{[]string{`{"lost":1}`, `{"lost":1}`, silent}, "r2: was silent for 10s ", 5},
		{[]string{failed, `{"lost":1}`, `{}`}, "r0: has failed", 2},
		{[]string{failed, `{}`, silent}, "r2: was silent for 10s ", 5},
		{[]string{silent, silent, `{}`}, "r0 and r1: was silent for 10s ", 5},
		{[]string{`{"step":3,"progress":"step 2/9","longest":2}`, `{"step":4,"longest":1}`},
			"r0: got no further than step 2/9 for 8s (no step before took more than 2 s)", 9},
		{[]string{`{"step":1}`, `{"step":1}`}, "", 0}, // compiles
	} {
		r := &members{screen: &screen{}}
		for i, beat := range test.beats {
			p := &process{name: fmt.Sprint("r", i), over: beat == failed}
			r.all = append(r.all, p)
			if beat == silent {
				p.silence = 6 * time.Second
			}
			if p.over {
				p.why = cause{"has failed", 3, false}
				r.failed = append(r.failed, p)
			}
		}
		got, seconds := "", 0
		for second := 1; second <= 60 && got == ""; second++ {
			for i, p := range r.all {
				if test.beats[i] != silent {
					p.silence = 0
					p.heard(test.beats[i])
				}
			}
			if r.tick() {
				got, seconds = r.failure().Error(), second
			}
		}
		if !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") || seconds != test.seconds {
			t.Errorf("%q: after %d s %q, expected after %d s %q", test.beats, seconds, got, test.seconds, test.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		hosts, want string
		code        int
	}{
		{"mac1,mac2", "", 0},
		{"mac1,mac2-noise", "", 2},
		{"mac1,nowhere", "nowhere: ssh: Could not resolve hostname nowhere: Name or service not known (ssh must reach it ", 2},
		{"mac1,mac2-none", "mac2-none: exit status 127 (ssh must reach it without a password, and run gomflux ", 2},
		{"mac1,mac2-old", "mac2-old: unknown flag: --json ", 2},
		{"mac1,mac2-other", "mac2-other: gomflux is v0.0.1 there and ", 2},
		{"mac1,mac2-mlx", "mac2-mlx: MLX is 1.2.4 there and 1.2.3 on mac1 (install the same version)", 2},
		{"mac1,mac2-broken", "mac2-broken: mlx: library libmlxc not found", 4},
		{"mac1,mac2-busy", "mac2-busy: cannot listen on 127.0.0.1:50000: address already in use (--starting-port ", 2},
		{"mac1,mac2 --backend nccl", "mac1: MLX there has no nccl (", 4},
	} {
		_, _, err := ranks(t, "--hosts "+test.hosts, "", "*:exit 0")
		if cli.ExitCode(err) != test.code || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v (%d), expected %q (%d)", test.hosts, err, cli.ExitCode(err), test.want, test.code)
		}
	}
}

// TestAddresses: a ring connects to the addresses of ssh, or those of the host file.
func TestAddresses(t *testing.T) {
	program, _ := os.Executable()
	for flags, want := range map[string]string{
		"--hosts mac1,localhost":                         "[[127.0.0.1:50000] [127.0.0.7:50000]]",
		"--local 2 --starting-port 900":                  "[[127.0.0.1:900] [127.0.0.1:901]]",
		"--hostfile {FILE} --starting-port 900":          "[[10.0.0.1:900 10.1.0.1:901] [10.0.0.2:902]]",
		"--hostfile {FILE} --backend ring":               "[[10.0.0.1:50000 10.1.0.1:50001] [10.0.0.2:50000]]",
		"--hosts mac1,mac2,mac3 --starting-port 1":       "[[127.0.0.1:1] [127.0.0.1:2] [127.0.0.1:3]]",
		"--hosts 127.0.0.1,mac1 --program /nowhere/else": "",
	} {
		const file = `[{"ssh": "mac1", "ips": ["10.0.0.1", "10.1.0.1"]}, {"ssh": "mac2", "ips": ["10.0.0.2"]}]`
		g, err := parse(t, file, strings.Fields(flags)...)
		if err != nil {
			t.Fatal(err)
		}
		if want != "" {
			g.program = program
		}
		err = g.prepare(t.Context())
		got := ""
		if err == nil {
			var all [][]string
			for _, h := range g.Hosts {
				all = append(all, h.addresses)
			}
			got = fmt.Sprint(all)
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v, expected %s", flags, got, err, want)
		}
	}
}

// TestFaults kills, stops and ends ranks, and the launcher's connections, at random moments: all end in
// time, and nothing is left.
func TestFaults(t *testing.T) {
	t.Parallel()
	for i := range randtest.Times(8, 50) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			random := randtest.New(t)
			where, victim := wheres[i%2], random.IntN(3)
			after := time.Duration(random.Int64N(int64(700 * time.Millisecond)))
			signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGSEGV}[i/2%4]
			mark := fmt.Sprintf("mark of %s %d", t.Name(), os.Getpid())
			signalled := make(chan time.Time, 1)
			go func() {
				var found []int
				for begin := time.Now(); len(found) < 3 && time.Since(begin) < time.Minute; time.Sleep(100 * time.Millisecond) {
					found = processes(t, mark)
				}
				time.Sleep(after)
				signalled <- time.Now()
				if victim < len(found) {
					syscall.Kill(found[victim], signal)
				}
			}()
			_, _, err := ranks(t, where, "", "*:wait 300000", "*:out "+mark)
			if took := time.Since(<-signalled); err == nil || took > 30*time.Second {
				t.Errorf("%v to a rank of %s: %v after %v", signal, where, err, took)
			}
			if signal == syscall.SIGSTOP && !strings.Contains(fmt.Sprint(err), "was silent for 10s (stopped, asleep or unplugged)") {
				t.Errorf("stopped: %v", err)
			}
			// a rank on another machine that is stopped ends when it goes on
			if left := processes(t, mark); signal == syscall.SIGSTOP && i%2 == 1 {
				for _, pid := range left {
					syscall.Kill(pid, syscall.SIGCONT)
				}
			}
			for begin := time.Now(); len(processes(t, mark)) > 0; time.Sleep(100 * time.Millisecond) {
				if time.Since(begin) > 20*time.Second {
					t.Fatalf("left: %v", processes(t, mark))
				}
			}
		})
	}
}

// processes lists the ranks whose arguments contain a mark. They are ordered by number.
func processes(t *testing.T, mark string) (pids []int) {
	out, err := exec.Command("ps", "axww", "-o", "pid=,stat=,args=").Output()
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(out)) {
		var pid int
		var state string
		if fmt.Sscan(line, &pid, &state); strings.Contains(line, mark) && state[0] != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestInterrupt: the context's end ends all ranks.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, where := range wheres {
		program, _ := os.Executable()
		g, err := parse(t, "", strings.Fields(where)...)
		if err != nil {
			t.Fatal(err)
		}
		g.program = program
		if err := g.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(300*time.Millisecond, func() { cancel(cli.ErrInterrupted) })
		mark := fmt.Sprintf("mark of %s %d", t.Name(), os.Getpid())
		err = g.run(ctx, &ui.Output{Stdout: io.Discard, Stderr: io.Discard}, []string{"play", "*:wait 300000", "*:out " + mark}, "")
		if cli.ExitCode(err) != cli.ExitInterrupted {
			t.Errorf("%s: %v", where, err)
		}
		for begin := time.Now(); len(processes(t, mark)) > 0; time.Sleep(100 * time.Millisecond) {
			if time.Since(begin) > 20*time.Second {
				t.Fatalf("%s: left: %v", where, processes(t, mark))
			}
		}
	}
}

// TestProgress: the last line of a terminal has what all ranks do.
func TestProgress(t *testing.T) {
	t.Parallel()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	g, err := parse(t, "", "--local", "2")
	if err == nil {
		err = g.prepare(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	var stdout strings.Builder
	err = g.run(t.Context(), &ui.Output{Stdout: &stdout, Stderr: tty},
		[]string{"play", "0:progress 3/9", "1:progress \x1b[31mvae", "*:wait 4000", "*:out x.png", "0:wait 100"}, "")
	tty.Close()
	seen, _ := io.ReadAll(master) // an error is the end
	want := "\r\x1b[Krank 0: step 3/9, rank 1: load [31mvae"
	if err != nil || !strings.Contains(string(seen), want) || !strings.HasSuffix(string(seen), "\r\x1b[K") || stdout.String() != "x.png\n" {
		t.Errorf("%v, %q, %q, expected %q", err, stdout.String(), seen, want)
	}
}

func TestScreen(t *testing.T) {
	var out strings.Builder
	s := &screen{stdout: &out, stderr: &out, tty: true}
	s.show("step 1")
	s.Write([]byte("x.png\n"))
	s.show("step 2")
	s.print(s.stderr, "a line\n", s.status)
	s.show("")
	const clear = "\r\x1b[K"
	if want := clear + "step 1" + clear + "x.png\nstep 1" + clear + "step 2" + clear + "a line\nstep 2" + clear; out.String() != want {
		t.Errorf("%q, expected %q", out.String(), want)
	}
}

func TestOrder(t *testing.T) {
	text, _ := json.Marshal(order{Args: []string{"a\nb"}, Folder: "/"})
	r := strings.NewReader(string(text) + "\nrest")
	o, err := readOrder(r)
	if err != nil || o.Args[0] != "a\nb" || r.Len() != len("rest") {
		t.Errorf("%+v, %v, %d bytes left", o, err, r.Len())
	}
	if _, err := readOrder(strings.NewReader("{}")); err == nil {
		t.Error("half an order was read")
	}
}
