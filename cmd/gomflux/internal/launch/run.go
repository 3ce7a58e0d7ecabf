package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/rank"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// consequences is how long the launcher waits, after a rank has failed, for others that end because of
// it, or for the same reason.
const consequences = time.Second

// A failure is why the ranks of a start could not go on.
type failure struct {
	who    *process
	reason string
	code   int
	lost   bool  // it cannot be started again
	common bool  // all ranks have failed for this reason
	rest   []int // indices of the hosts of the other ranks
	beat   rank.Beat
}

func (f *failure) Error() string {
	if f.common {
		return f.reason
	}
	return f.who.name + ": " + f.reason
}

// resumable reports whether the other ranks can do the rest. Invalid input and the like fails again.
func (f *failure) resumable() bool {
	return f.beat.Resumable && len(f.rest) > 0 && !f.common && f.code == cli.ExitFailure
}

// run runs a command with arguments on all hosts. If a rank is lost, and the others can do the rest, they
// are started again.
func (g *group) run(ctx context.Context, out *ui.Output, args []string, input string) error {
	s := &screen{stdout: out.Stdout, stderr: out.Stderr, tty: ui.IsTerminal(out.Stderr)}
	hosts, done := make([]int, len(g.hosts)), map[int]bool{}
	for i := range hosts {
		hosts[i] = i
	}
	for {
		err := g.once(ctx, s, hosts, done, args, input)
		f, ok := err.(*failure)
		switch {
		case !ok:
			return err
		case !f.resumable():
			return cli.Coded(f.code, errors.New(f.Error()))
		}
		var names []string
		for _, host := range f.rest {
			names = append(names, g.name(host))
		}
		out.Warn("%s; %s left for %s", f.Error(), "the rest is", strings.Join(names, ", "))
		for _, i := range f.beat.Done {
			done[i] = true
		}
		hosts = f.rest
	}
}

// once runs the command until all ranks have ended. The error is a *failure if one of them has failed.
func (g *group) once(ctx context.Context, s *screen, hosts []int, done map[int]bool, args []string, input string) error {
	var all []*process
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
		o := order{rank: i, Args: args, Folder: folder}
		if o.Env, o.Files, err = g.environment(hosts, i); err != nil {
			return err
		}
		o.Env = append(o.Env, rank.EnvDone+"="+indices(done))
		p, err := g.start(host, o, input, s)
		if err != nil {
			return err
		}
		all = append(all, p)
		go p.wait(ended)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var failed []*process // in the order in which they have ended
	var grace <-chan time.Time
	for live := len(all); live > 0; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-grace:
			live = 0
		case p := <-ended:
			live--
			if !p.cmd.ProcessState.Success() {
				failed = append(failed, p)
			}
		case <-tick.C:
			s.show(status(all))
			for _, p := range all {
				if p.running() && p.silent.Tick() && len(failed) == 0 {
					failed, live = append(failed, p), 0
				}
			}
		}
		if len(failed) > 0 && grace == nil {
			grace = time.After(consequences)
		}
	}
	if len(failed) > 0 {
		return newFailure(all, failed)
	}
	for _, p := range all {
		p.failure() // writes what it has said last
	}
	return nil
}

// newFailure finds the reason: the first rank that was killed, or else the first that has failed.
func newFailure(all, failed []*process) *failure {
	var first *failure
	same := len(failed) == len(all)
	lost := map[int]bool{}
	for _, p := range failed {
		f := &failure{who: p, reason: fmt.Sprintf("was silent for %v (stopped, asleep or unplugged)", rank.Silence),
			code: cli.ExitFailure, lost: true}
		if !p.running() {
			f.reason, f.code, f.lost = p.failure()
		}
		if first == nil || f.lost && !first.lost {
			first = f
		}
		same = same && !f.lost && f.reason == first.reason
		lost[p.host] = f.lost
	}
	first.common, first.beat = same, all[0].reported()
	for _, p := range all {
		if p != first.who && !lost[p.host] {
			first.rest = append(first.rest, p.host)
		}
	}
	return first
}

// end ends the ranks that run: all find their standard input closed, and those that do not end then are
// killed.
func end(all []*process, ended <-chan *process) {
	for _, p := range all {
		p.stdin.Close()
	}
	late := time.After(maxEnd)
	for slices.ContainsFunc(all, (*process).running) {
		select {
		case <-ended:
		case <-late:
			for _, p := range all {
				if p.running() {
					p.kill()
				}
			}
		}
	}
}

// status is a line about all ranks for a terminal.
func status(all []*process) string {
	var parts []string
	for _, p := range all {
		if text := p.reported().Progress; text != "" && p.running() {
			parts = append(parts, p.name+": "+ui.Plain(text))
		}
	}
	return strings.Join(parts, ", ")
}

// indices returns numbers with commas between them.
func indices(set map[int]bool) string {
	var words []string
	for _, i := range slices.Sorted(maps.Keys(set)) {
		words = append(words, strconv.Itoa(i))
	}
	return strings.Join(words, ",")
}

// environment returns the variables of a rank, those of MLX as mlx.launch sets them, and the contents of
// files that variables name. hosts are those of all ranks; a single one has no group.
func (g *group) environment(hosts []int, at int) (env []string, files map[string]string, err error) {
	env = append(slices.Clone(g.env), rank.Env+"=1")
	if len(hosts) == 1 {
		return env, nil, nil
	}
	env = append(env, "MLX_RANK="+strconv.Itoa(at))
	var addresses [][]string
	var devices []json.RawMessage
	for _, i := range hosts {
		addresses = append(addresses, g.hosts[i].addresses)
		devices = append(devices, g.hosts[i].RDMA)
	}
	first := addresses[0][0] // where rank 0 waits for the others
	var text []byte
	switch g.backend {
	case nccl:
		ip, port, _ := strings.Cut(first, ":")
		env = append(env, "MLX_WORLD_SIZE="+strconv.Itoa(len(hosts)), "NCCL_HOST_IP="+ip, "NCCL_PORT="+port)
		if g.local {
			env = append(env, "CUDA_VISIBLE_DEVICES="+gpu(hosts[at]))
		}
	case ring:
		text, err = json.Marshal(addresses)
		files = map[string]string{"MLX_HOSTFILE": string(text)}
	default:
		if len(hosts) < len(g.hosts) {
			devices = g.devices(hosts)
		}
		text, err = json.Marshal(devices)
		files = map[string]string{"MLX_IBV_DEVICES": string(text)}
		env = append(env, "MLX_JACCL_COORDINATOR="+first)
		if g.backend == jacclRing {
			env = append(env, "MLX_JACCL_RING=1")
		}
	}
	return env, files, err
}

// devices returns the RDMA devices of some hosts, each for those hosts only.
func (g *group) devices(hosts []int) (rows []json.RawMessage) {
	for _, i := range hosts {
		var all, some []json.RawMessage
		json.Unmarshal(g.hosts[i].RDMA, &all) // checkRDMA has checked it
		for _, k := range hosts {
			some = append(some, all[k])
		}
		row, _ := json.Marshal(some)
		rows = append(rows, row)
	}
	return rows
}

// gpu is the number of the GPU of a local rank, of those that CUDA may see.
func gpu(i int) string {
	if all := os.Getenv("CUDA_VISIBLE_DEVICES"); all != "" {
		if list := strings.Split(all, ","); i < len(list) {
			return list[i]
		}
	}
	return strconv.Itoa(i)
}
