package launch

import (
	"context"
	"encoding/json"
	"errors"
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
	var hosts, done []int
	for i := range g.Hosts {
		hosts = append(hosts, i)
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
		hosts, done = f.rest, append(append([]int{}, done...), f.done...) // not nil
	}
}

// once runs the command until all ranks have ended. The error is a *failure if one of them has failed.
func (g *group) once(ctx context.Context, s *screen, hosts, done []int, args []string, input string) error {
	r := &members{ended: make(chan *process, len(hosts))}
	defer func() {
		s.show("")
		r.end()
	}()
	folder, err := os.Getwd()
	if err != nil {
		return err
	}
	written, _ := json.Marshal(done) // only numbers
	for i, host := range hosts {
		env, files := g.environment(hosts, i)
		o := order{Args: args, Env: append(env, rank.EnvDone+"="+string(written)), Files: files, Folder: folder}
		p, err := g.start(host, i, o, input, s, r.ended)
		if err != nil {
			return err
		}
		r.all = append(r.all, p)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for live := len(r.all); live > 0; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case p := <-r.ended:
			live--
			p.over, p.problem = true, ""
			if p.cmd.ProcessState.Success() {
				p.release()
			} else {
				r.failed = append(r.failed, p)
			}
		case <-tick.C:
			status, end := r.tick()
			if s.show(status); end {
				live = 0
			}
		}
	}
	if len(r.failed) > 0 {
		return newFailure(r.all, r.failed)
	}
	return nil
}

// members are the ranks of a start.
type members struct {
	all, failed    []*process // failed in the order in which they have
	ended          chan *process
	grace, joining time.Duration // since one has failed, and since all wait for each other to connect
	cut            time.Duration // since one has lost a connection to another that runs
}

// tick is called every second. It returns what the ranks do, for people, and whether to end them: then those that are late
// have failed too.
func (r *members) tick() (status string, end bool) {
	var parts []string
	var late []*process
	var longest float64
	lost, joining, gone := 0, true, false
	for _, p := range r.all {
		beat := p.reported()
		longest, lost = max(longest, beat.Longest), max(lost, beat.Lost)
		joining, gone = joining && beat.Joining, gone || p.over || p.missing
		if beat.Progress != "" && !p.over {
			parts = append(parts, p.name+": "+ui.Plain(beat.Progress))
		}
	}
	r.joining, r.cut = r.joining+time.Second, r.cut+time.Second
	if !joining || gone {
		r.joining = 0
	}
	if lost == 0 || gone { // then that is why
		r.cut, lost = 0, 0
	}
	if len(r.failed) > 0 { // the others wait for it
		r.grace, longest = r.grace+time.Second, 0
	}
	// When one has failed, others end because of it, or for the same reason; one that is silent may be why it has.
	end = r.grace > time.Second
	for _, p := range r.all {
		if p.over {
			continue
		}
		if p.tick(longest, r.joining, lost, r.cut); p.problem != "" {
			late = append(late, p)
		}
		end = end && !p.missing
	}
	if end = end || slices.ContainsFunc(late, func(p *process) bool { return p.tooLate }); end {
		r.failed = append(r.failed, late...)
	}
	return strings.Join(parts, ", "), end
}

// newFailure names the ranks to blame: of those that were lost the one that is behind, or else one that was
// interrupted, which others may only see as a lost connection, or else the one that has failed first, and all with
// the same reason. What all ranks report is no matter of one rank.
func newFailure(all, failed []*process) *failure {
	causes := map[*process]cause{}
	first := failed[0]
	for _, p := range failed {
		c := p.cause()
		causes[p] = c
		if f := causes[first]; c.lost && (!f.lost || p.reported().Step < first.reported().Step) ||
			!f.lost && c.code == cli.ExitInterrupted && f.code != c.code {
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
func (r *members) end() {
	live := 0
	kill := func(which func(*process) bool) {
		for _, p := range r.all {
			if !p.over && which(p) {
				killGroup(p.cmd)
			}
		}
	}
	for _, p := range r.all {
		if p.stdin.Close(); !p.over {
			live++
		}
	}
	kill(func(p *process) bool { return p.silent })
	for late := time.After(maxEnd); live > 0; {
		select {
		case p := <-r.ended:
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
	for _, i := range hosts {
		addresses = append(addresses, g.Hosts[i].addresses)
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
		devices := make([][]any, len(hosts))
		for i, host := range hosts {
			for _, other := range hosts {
				devices[i] = append(devices[i], g.Hosts[host].RDMA[other])
			}
		}
		text, _ := json.Marshal(devices) // what was read as JSON
		return append(env, "MLX_JACCL_COORDINATOR="+first), map[string]string{"MLX_IBV_DEVICES": string(text)}
	default:
		text, _ := json.Marshal(addresses)
		return env, map[string]string{"MLX_HOSTFILE": string(text)}
	}
}
