package launch

import (
	"cmp"
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
	// same is how much earlier than the first the others can be too late for the same reason.
	same = 2 * rank.Interval
)

// patience is how long a step of a rank may take, if that is not less than four times the longest step of all ranks, and
// how long ranks may take to connect when all have begun to. Tests shorten it.
var patience = 20 * time.Second

// A failure is why the ranks of a start could not go on.
type failure struct {
	cause
	rest []host // that can do the rest of the work; nil if nobody can
	done []int  // images that were written
}

func (f *failure) Error() string { return f.text }

// run runs a command with arguments on all hosts. If a rank is lost, and the others can do the rest, they
// are started again.
func (g *group) run(ctx context.Context, out *ui.Output, args []string, input string) error {
	s := &screen{stdout: out.Stdout, stderr: out.Stderr, tty: ui.IsTerminal(out.Stderr)}
	for {
		err := g.once(ctx, s, args, input)
		f, ok := errors.AsType[*failure](err)
		switch {
		case !ok:
			return err
		case f.rest == nil:
			return cli.Coded(f.code, f)
		}
		g.Hosts, g.done = f.rest, append(append([]int{}, g.done...), f.done...) // not nil
		var names []string
		for _, h := range f.rest {
			names = append(names, g.name(&h))
		}
		out.Warn("%v; the rest is left for %s", f, strings.Join(names, ", "))
	}
}

// once runs the command until all ranks have ended. The error is a *failure if one of them has failed.
func (g *group) once(ctx context.Context, s *screen, args []string, input string) error {
	r := &members{screen: s, ended: make(chan *process, len(g.Hosts))}
	defer r.end()
	folder, err := os.Getwd()
	if err != nil {
		return err
	}
	for i := range g.Hosts {
		env, files := g.environment(i)
		o := order{Args: args, Env: append(env, rank.EnvDone+"="+text(g.done)), Files: files, Folder: folder}
		p, err := g.start(i, o, input, s, r.ended)
		if err != nil {
			return err
		}
		r.all, r.live = append(r.all, p), i+1
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for end := false; r.live > 0 && !end; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case p := <-r.ended:
			if r.live--; p.end() {
				r.failed = append(r.failed, p)
			}
		case <-tick.C:
			end = r.tick()
		}
	}
	if len(r.failed) > 0 {
		return r.failure()
	}
	return nil
}

// members are the ranks of a start.
type members struct {
	*screen
	all, failed []*process // failed in the order in which they have
	live        int
	ended       chan *process

	longest float64       // seconds of the longest step of all ranks, 0 if steps may last
	lost    int           // the most connections to others that run that one has lost
	cut     time.Duration // since one has
	joining time.Duration // since all wait for each other to connect
	grace   time.Duration // since one has failed
}

// tick is called every second. It shows what the ranks do, and returns whether to end them: then those that are late have
// failed too.
func (r *members) tick() (end bool) {
	r.Lock()
	defer r.Unlock()
	var doing []string
	var late []*process
	joining, gone, missing := true, false, false
	r.longest, r.lost = 0, 0
	for _, p := range r.all {
		p.silence, p.still = p.silence+time.Second, p.still+time.Second
		r.longest, r.lost = max(r.longest, p.beat.Longest), max(r.lost, p.beat.Lost)
		joining, gone = joining && p.beat.Joining, gone || p.over || p.missing()
		if missing = missing || p.missing() && !p.over; p.beat.Progress != "" && !p.over {
			doing = append(doing, p.name+": "+ui.Plain(p.beat.Progress))
		}
	}
	if gone { // then that is why
		r.lost = 0
	}
	if len(r.failed) > 0 { // the others wait for it
		r.longest = 0
	}
	since(&r.joining, joining && !gone)
	since(&r.cut, r.lost > 0)
	since(&r.grace, len(r.failed) > 0)
	// When one has failed, others end because of it, or for the same reason; one that is silent may be why it has.
	end = r.grace > time.Second && !missing
	for _, p := range r.all {
		if p.over {
			continue
		}
		p.why = cause{}
		if problem, by := p.late(r); by > -same {
			p.why, late = cause{problem, cli.ExitFailure, true}, append(late, p)
			end = end || by > 0
		}
	}
	if end {
		r.failed = append(r.failed, late...)
	}
	r.show(strings.Join(doing, ", "))
	return end
}

// since counts the seconds since something is so.
func since(t *time.Duration, is bool) {
	if *t += time.Second; !is {
		*t = 0
	}
}

// failure names the ranks to blame: of those that were lost the one that is behind, or else one that was interrupted,
// or else the one that has failed first, of those that have not only lost the connection to another; and all with
// the same reason. What all ranks report is no matter of one rank.
func (r *members) failure() *failure {
	r.Lock()
	defer r.Unlock()
	all, first := r.all, r.failed[0]
	for _, p := range r.failed[1:] {
		if by := cmp.Compare(p.why.weight(), first.why.weight()); by > 0 || by == 0 && p.why.lost && p.beat.Step < first.beat.Step {
			first = p
		}
	}
	f := &failure{cause: first.why, done: all[0].beat.Done}
	var names []string
	for _, p := range all {
		if p.why == f.cause {
			names = append(names, p.name)
		} else if all[0].beat.Resumable && f.code == cli.ExitFailure && !p.why.lost { // invalid input would fail again
			f.rest = append(f.rest, *p.host)
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
	r.Lock()
	r.show("")
	for _, p := range r.all {
		wait := maxEnd
		if p.silent() {
			wait = 0
		}
		p.stdin.Close()
		time.AfterFunc(wait, p.kill)
	}
	r.Unlock()
	for ; r.live > 0; r.live-- {
		<-r.ended
	}
}

// environment returns the variables of a rank, those of MLX as mlx.launch sets them, and the contents of
// files that variables name. A single rank has no group.
func (g *group) environment(number int) (env []string, files map[string]string) {
	env = append(slices.Clone(g.Env), rank.Env+"=1")
	if len(g.Hosts) == 1 {
		return env, nil
	}
	env = append(env, "MLX_RANK="+strconv.Itoa(number))
	first := g.Hosts[0].addresses[0] // where rank 0 waits for the others
	switch g.Backend {
	case nccl:
		ip, port, _ := strings.Cut(first, ":")
		env = append(env, "MLX_WORLD_SIZE="+strconv.Itoa(len(g.Hosts)), "NCCL_HOST_IP="+ip, "NCCL_PORT="+port)
		if at := g.Hosts[number].number; g.local {
			gpu, list := strconv.Itoa(at), strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")
			if list[0] != "" && at < len(list) {
				gpu = list[at]
			}
			env = append(env, "CUDA_VISIBLE_DEVICES="+gpu)
		}
		return env, nil
	case jaccl:
		devices := make([][]any, len(g.Hosts))
		for i, h := range g.Hosts {
			for _, other := range g.Hosts {
				devices[i] = append(devices[i], h.RDMA[other.number])
			}
		}
		return append(env, "MLX_JACCL_COORDINATOR="+first), map[string]string{"MLX_IBV_DEVICES": text(devices)}
	default:
		var addresses [][]string
		for _, h := range g.Hosts {
			addresses = append(addresses, h.addresses)
		}
		return env, map[string]string{"MLX_HOSTFILE": text(addresses)}
	}
}

// text is JSON of numbers, texts, and what was read as JSON.
func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
