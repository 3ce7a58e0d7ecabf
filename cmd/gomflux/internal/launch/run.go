package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

const (
	// minStart is how long a rank may be silent at first, in addition to rank.Silence, or twice as long as its machine took
	// to answer before.
	minStart = 5 * time.Second
	// maxEnd is how long a rank may take to end by itself.
	maxEnd = 5 * time.Second
	// compiling is how much longer the first step of a rank may take, in addition to patience.
	compiling = 5 * time.Minute
)

// patience is how long a step of a rank may take, if that is not less than four times the longest step of all ranks, and
// how long ranks may take to connect when all have begun to. Tests shorten it.
var patience = 20 * time.Second

// A cause is why a rank could not go on.
type cause struct {
	text string
	code int  // exit code for the launcher
	lost bool // it cannot be started again
}

// A failure is why the ranks of a start could not go on.
type failure struct {
	cause
	rest []int // indices of the hosts that can do the rest of the work; nil if nobody can
	done []int // images that were written
}

func (f *failure) Error() string { return f.text }

// run runs a command with arguments on all hosts. If a rank is lost, and the others can do the rest, they
// are started again.
func (g *group) run(ctx context.Context, out *ui.Output, args []string, input string) error {
	s := &screen{stdout: out.Stdout, stderr: out.Stderr, tty: ui.IsTerminal(out.Stderr)}
	hosts, done := make([]int, len(g.Hosts)), ""
	for i := range hosts {
		hosts[i] = i
	}
	for {
		err := g.once(ctx, s, hosts, done, args, input)
		var f *failure
		if !errors.As(err, &f) {
			return err
		}
		if f.rest == nil {
			return cli.Coded(f.code, f)
		}
		var names []string
		for _, host := range f.rest {
			names = append(names, g.name(host))
		}
		out.Warn("%v; the rest is left for %s", f, strings.Join(names, ", "))
		for _, i := range f.done {
			done += fmt.Sprint(i, ",")
		}
		done = cmp.Or(done, "none")
		hosts = f.rest
	}
}

// once runs the command until all ranks have ended. The error is a *failure if one of them has failed.
func (g *group) once(ctx context.Context, s *screen, hosts []int, done string, args []string, input string) error {
	var all, failed []*process // failed in the order in which they have
	ended := make(chan *process, len(hosts))
	defer func() {
		s.show("")
		end(all, ended)
	}()
	folder, err := os.Getwd()
	if err != nil {
		return err
	}
	for i, host := range hosts {
		env, files := g.environment(hosts, i)
		o := order{Args: args, Env: append(env, rank.EnvDone+"="+done), Files: files, Folder: folder}
		p, err := g.start(host, i, o, input, s, ended)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var grace, joining time.Duration // since a rank has failed, and since all wait for each other to connect
	for live := len(all); live > 0; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case p := <-ended:
			live--
			p.over, p.problem = true, ""
			if p.cmd.ProcessState.Success() {
				p.release()
			} else {
				failed = append(failed, p)
			}
		case <-tick.C:
			var parts []string
			var late []*process
			var longest float64
			joining += time.Second
			for _, p := range all {
				beat := p.reported()
				if longest = max(longest, beat.Longest); !beat.Joining {
					joining = 0
				}
				if text := beat.Progress; text != "" && !p.over {
					parts = append(parts, p.name+": "+ui.Plain(text))
				}
			}
			if len(failed) > 0 { // the others wait for it
				grace, longest = grace+time.Second, 0
			}
			anyMissing, anyOver := false, false
			for _, p := range all {
				if p.over {
					continue
				}
				missing, over := p.tick(longest)
				anyMissing, anyOver = anyMissing || missing, anyOver || over
				if joining > patience && !p.silent {
					p.problem = fmt.Sprintf("have not found each other for %v (is there a firewall, or a cable unplugged?)", patience)
					anyOver = true
				}
				if p.problem != "" {
					late = append(late, p)
				}
			}
			// A rank that has failed may have lost one that is silent. Others end because of it, or for the same reason.
			if anyOver || grace > time.Second && !anyMissing {
				live, failed = 0, append(failed, late...)
			}
			s.show(strings.Join(parts, ", "))
		}
	}
	if len(failed) > 0 {
		return newFailure(all, failed)
	}
	return nil
}

// newFailure names the ranks to blame: of those that were lost the one that is behind, or else the one that has
// failed first, and all with the same reason. What all ranks report is no matter of one rank.
func newFailure(all, failed []*process) *failure {
	causes := map[*process]cause{}
	first := failed[0]
	for _, p := range failed {
		causes[p] = p.cause()
		if causes[p].lost && (!causes[first].lost || p.reported().Step < first.reported().Step) {
			first = p
		}
	}
	f := &failure{cause: causes[first], done: all[0].reported().Done}
	var names []string
	for _, p := range all {
		if c := causes[p]; c == f.cause {
			names = append(names, p.name)
		} else if all[0].reported().Resumable && f.code == cli.ExitFailure && !c.lost { // invalid input would fail again
			f.rest = append(f.rest, p.host)
		}
	}
	if len(names) < len(all) || f.lost {
		f.text = strings.Join(names, " and ") + ": " + f.text
	}
	return f
}

// end ends the ranks that run: all find their standard input closed, and those that do not end then, or are silent, are
// killed. A rank elsewhere that hangs ends when it wakes.
func end(all []*process, ended <-chan *process) {
	live := 0
	kill := func(which func(*process) bool) {
		for _, p := range all {
			if !p.over && which(p) {
				killGroup(p.cmd)
			}
		}
	}
	for _, p := range all {
		if p.stdin.Close(); !p.over {
			live++
		}
	}
	kill(func(p *process) bool { return p.silent })
	for late := time.After(maxEnd); live > 0; {
		select {
		case p := <-ended:
			p.over, live = true, live-1
		case <-late:
			kill(func(*process) bool { return true })
		}
	}
}

// environment returns the variables of a rank, those of MLX as mlx.launch sets them, and the contents of
// files that variables name. hosts are those of all ranks; a single one has no group.
func (g *group) environment(hosts []int, at int) (env []string, files map[string]string) {
	env = append(slices.Clone(g.Env), rank.Env+"=1")
	if len(hosts) == 1 {
		return env, nil
	}
	env = append(env, "MLX_RANK="+strconv.Itoa(at))
	var addresses [][]string
	var devices [][]any
	for _, i := range hosts {
		addresses = append(addresses, g.Hosts[i].addresses)
		var row []any
		for _, k := range hosts {
			if g.Backend == jaccl {
				row = append(row, g.Hosts[i].RDMA[k])
			}
		}
		devices = append(devices, row)
	}
	first := addresses[0][0] // where rank 0 waits for the others
	switch g.Backend {
	case nccl:
		ip, port, _ := strings.Cut(first, ":")
		env = append(env, "MLX_WORLD_SIZE="+strconv.Itoa(len(hosts)), "NCCL_HOST_IP="+ip, "NCCL_PORT="+port)
		if g.local {
			gpu := strconv.Itoa(hosts[at])
			if list := strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ","); list[0] != "" && hosts[at] < len(list) {
				gpu = list[hosts[at]]
			}
			env = append(env, "CUDA_VISIBLE_DEVICES="+gpu)
		}
		return env, nil
	case jaccl:
		text, _ := json.Marshal(devices) // what was read as JSON
		return append(env, "MLX_JACCL_COORDINATOR="+first), map[string]string{"MLX_IBV_DEVICES": string(text)}
	default:
		text, _ := json.Marshal(addresses)
		return env, map[string]string{"MLX_HOSTFILE": string(text)}
	}
}
