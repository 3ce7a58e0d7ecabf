// Package launch starts a command on several machines, or several times on one, as the ranks of a group
// of MLX. It passes MLX what mlx.launch passes, and reads its host files.
package launch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
)

// The backends of MLX that connect ranks.
const (
	ring  = "ring"
	nccl  = "nccl"
	jaccl = "jaccl"
)

// A host is a machine of a host file.
type host struct {
	Name string   `json:"ssh"`  // for ssh
	IPs  []string `json:"ips"`  // to which the others connect
	RDMA []any    `json:"rdma"` // for every rank, the device or the devices that connect to it, null for itself

	number    int           // of this host among those of the file, or of the rank on this machine
	addresses []string      // with ports, on which its rank listens
	took      time.Duration // until it had told its version
}

// A group is what the ranks of a run have in common. Its tags are those of mlx.launch's host files, which
// can also be only the list of hosts.
type group struct {
	Hosts   []host   `json:"hosts"` // by rank; without those that were lost
	Backend string   `json:"backend"`
	Env     []string `json:"envs"`

	local   bool   // all ranks are on this machine
	program string // path of gomflux elsewhere
	port    int    // the first one, 0 for free ones
	done    []int  // images that were written before ranks were lost, nil if none was
}

// readFile reads a host file. As in mlx.launch names that it does not know are ignored.
func (g *group) readFile(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return oserr.Bare(err)
	}
	to := any(g)
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		to = &g.Hosts
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf(`%w (expected JSON as mlx.launch reads it: [{"ssh": "mac1", "ips": ["10.0.0.1"]}, ...])`, err)
	}
	return nil
}

// check refuses hosts and backends that cannot be. Of a jaccl ring the backend becomes jaccl.
func (g *group) check() error {
	seen := map[string]bool{}
	for i, h := range g.Hosts {
		switch {
		case h.Name == "" || h.Name[0] == '-' || strings.ContainsAny(h.Name, " \t\n\x00"):
			return fmt.Errorf("host %d: %q is not a name for ssh", i+1, h.Name)
		case seen[h.Name]:
			return fmt.Errorf("host %s is there twice (--local N starts several ranks on one machine)", h.Name)
		}
		seen[h.Name] = true
		for _, ip := range h.IPs {
			if ip == "" || strings.ContainsAny(ip, ": \t\n,") {
				return fmt.Errorf("host %s: %q is not an IPv4 address, by which alone MLX connects", h.Name, ip)
			}
		}
	}
	if g.Backend == "jaccl-ring" {
		g.Backend, g.Env = jaccl, append(g.Env, "MLX_JACCL_RING=1")
	}
	if !slices.Contains([]string{"", ring, nccl, jaccl}, g.Backend) {
		return fmt.Errorf("backend %q: expected ring, jaccl or nccl", g.Backend)
	}
	return nil
}

// Flags are the flags that name machines.
type Flags struct {
	hosts, env    []string
	file, program string
	local, port   cli.Optional[int]
	backend       cli.Optional[string]
}

// NewFlags returns flags without values.
func NewFlags() Flags {
	return Flags{local: cli.Count("number"), port: cli.WholeFrom(0, "port"), backend: cli.OneOf("backend", ring, jaccl, nccl)}
}

// AddHosts adds the flags that name hosts.
func (o *Flags) AddHosts(f *pflag.FlagSet) {
	f.StringSliceVar(&o.hosts, "hosts", nil, "`names` of machines for ssh, with commas between them; localhost is this one")
	f.StringVar(&o.file, "hostfile", "", "`file` of mlx.launch with names and addresses of machines")
	f.StringVar(&o.program, "program", "gomflux", "`path` of gomflux on the hosts")
}

func (o *Flags) addRun(f *pflag.FlagSet) {
	f.Var(&o.local, "local", "start so many ranks on this machine, with NCCL one on each GPU")
	f.Var(&o.backend, "backend", "what connects the ranks: ring, jaccl or nccl (default: the host file's; else nccl if all have it and "+
		"a GPU, or ring)")
	f.Var(&o.port, "starting-port", "first port that ranks listen on (default: free ones)")
	f.StringArrayVar(&o.env, "env", nil, "set an environment variable of the ranks, as `NAME=VALUE`")
}

// Given reports whether the flags name hosts.
func (o *Flags) Given() bool { return o.hosts != nil || o.file != "" }

// group reads the flags and the host file.
func (o *Flags) group() (g group, err error) {
	from := ""
	switch {
	case o.local.Given() && o.Given() || o.hosts != nil && o.file != "":
		return g, errors.New("give one of --hosts, --hostfile and --local")
	case o.file != "":
		from, err = "host file "+o.file+": ", g.readFile(o.file)
	default:
		for _, name := range o.hosts {
			g.Hosts = append(g.Hosts, host{Name: name})
		}
	}
	if err = cmp.Or(err, g.check()); err != nil {
		return g, fmt.Errorf("%s%w", from, err)
	}
	for range o.local.OrZero() {
		g.Hosts = append(g.Hosts, host{Name: "localhost", IPs: []string{"127.0.0.1"}})
	}
	g.local, g.program, g.port, g.Env = o.local.Given(), o.program, o.port.OrZero(), append(g.Env, o.env...)
	g.Backend = o.backend.OrElse(g.Backend)
	for _, e := range g.Env {
		if i := strings.IndexByte(e, '='); i < 1 || strings.ContainsRune(e, 0) {
			return g, fmt.Errorf("environment variable %q: expected NAME=VALUE", e)
		}
	}
	switch len(g.Hosts) {
	case 0:
		return g, errors.New("no hosts (--hosts mac1,mac2 names them, --hostfile FILE has them, --local N is this machine)")
	case 1:
		return g, errors.New("one rank is not a group: run the command without gomflux launch, or give two hosts or --local 2")
	}
	for i := range g.Hosts {
		h := &g.Hosts[i]
		if h.number = i; g.Backend == jaccl && (len(h.RDMA) != len(g.Hosts) || h.RDMA[i] != nil) {
			return g, fmt.Errorf("host %s: jaccl needs a host file whose rdma has a device for each of the %d hosts, and null for the "+
				"host itself (mlx.distributed_config writes one)", h.Name, len(g.Hosts))
		}
	}
	return g, nil
}

// name is how messages call the rank of a host.
func (g *group) name(h *host) string {
	if g.local {
		return fmt.Sprintf("rank %d", h.number)
	}
	return h.Name
}

// here reports whether a host is this machine.
func (h *host) here() bool { return h.Name == "localhost" || h.Name == "127.0.0.1" }

// command returns gomflux with simple arguments on a host; what it starts is killed when ctx is done. ssh passes them to the
// user's shell there, whose PATH often lacks the folders of Homebrew and Go.
func (g *group) command(ctx context.Context, h *host, args ...string) *exec.Cmd {
	cmd := cli.Self(ctx, args...)
	if !h.here() {
		script := `PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:$HOME/.local/bin:$HOME/go/bin"; export PATH; exec ` +
			quote.Shell(append([]string{g.program}, args...)...)
		line := []string{"-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T", "--", h.Name, "exec sh -c " + quote.Shell(script)}
		if len(h.IPs) == 0 {
			line = slices.Insert(line, 0, "-4") // the ring connects to the address that ssh finds
		}
		cmd = exec.CommandContext(ctx, "ssh", line...)
	}
	cmd.WaitDelay = 2 * time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and what it has started
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                                // Ctrl-C is for the launcher, which ends all
	return cmd
}
