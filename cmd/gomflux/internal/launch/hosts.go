// Package launch starts a command on several machines, or several times on one, as the ranks of a group
// of MLX. It passes MLX what mlx.launch passes, and reads its host files.
package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/oserr"
)

// The backends of MLX that connect ranks. jaccl-ring is jaccl without a connection of every pair.
const (
	ring      = "ring"
	nccl      = "nccl"
	jaccl     = "jaccl"
	jacclRing = "jaccl-ring"
)

// A host is a machine of a host file.
type host struct {
	Name string          `json:"ssh"`  // for ssh
	IPs  []string        `json:"ips"`  // on which the ring connects
	RDMA json.RawMessage `json:"rdma"` // of every rank: null, or devices that connect to it

	addresses []string // with ports, on which a rank listens
}

// A hostFile is a file of mlx.launch: an object, or only the list of its hosts.
type hostFile struct {
	Backend string   `json:"backend"`
	Env     []string `json:"envs"`
	Hosts   []host   `json:"hosts"`
}

// readHostFile reads a host file. Names that it does not know are ignored, as mlx.launch does.
func readHostFile(name string) (f hostFile, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return f, fmt.Errorf("host file %s: %w", name, oserr.Bare(err))
	}
	to := any(&f)
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		to = &f.Hosts
	}
	if err := json.Unmarshal(text, to); err != nil {
		const expected = `[{"ssh": "mac1", "ips": ["10.0.0.1"]}, ...]`
		return f, fmt.Errorf("host file %s: %w (expected JSON as mlx.launch reads it: %s)", name, err, expected)
	}
	if err := checkHosts(f.Hosts); err != nil {
		return f, fmt.Errorf("host file %s: %w", name, err)
	}
	return f, nil
}

func checkHosts(hosts []host) error {
	seen := map[string]bool{}
	for i, h := range hosts {
		switch {
		case h.Name == "":
			return fmt.Errorf("host %d has no name for ssh", i+1)
		case strings.HasPrefix(h.Name, "-") || strings.ContainsAny(h.Name, " \t\n\x00"):
			return fmt.Errorf("%q is not the name of a host", h.Name)
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
	return Flags{local: cli.Count("number"), port: cli.WholeFrom(0, "port"), backend: cli.OneOf("backend", ring, nccl, jaccl, jacclRing)}
}

// AddHosts adds the flags that name hosts.
func (o *Flags) AddHosts(f *pflag.FlagSet) {
	f.StringSliceVar(&o.hosts, "hosts", nil, "`names` of machines for ssh, with commas between them; localhost is this one")
	f.StringVar(&o.file, "hostfile", "", "`file` of mlx.launch with names and addresses of machines")
	f.StringVar(&o.program, "program", "gomflux", "`path` of gomflux on the hosts")
}

func (o *Flags) addRun(f *pflag.FlagSet) {
	f.Var(&o.local, "local", "start so many ranks on this machine, with NCCL one on each GPU")
	f.Var(&o.backend, "backend", "what connects the ranks: ring, jaccl, jaccl-ring or nccl (default: the host file's; else nccl if all "+
		"have it and a GPU, or ring)")
	f.Var(&o.port, "starting-port", "first port that ranks listen on (default: free ones)")
	f.StringArrayVar(&o.env, "env", nil, "set an environment variable of the ranks, as `NAME=VALUE`")
}

// Given reports whether the flags name hosts.
func (o *Flags) Given() bool { return o.hosts != nil || o.file != "" }

// A group is what the ranks of a run have in common.
type group struct {
	hosts            []host // by rank
	local            bool   // all ranks are on this machine
	program, backend string
	env              []string
	port             int // the first one, 0 for free ones
}

// group reads the flags and the host file.
func (o *Flags) group() (g group, err error) {
	g = group{local: o.local.Given(), program: o.program, backend: o.backend.OrZero(), env: o.env, port: o.port.OrZero()}
	switch {
	case o.local.Given() && o.Given() || o.hosts != nil && o.file != "":
		return g, errors.New("give one of --hosts, --hostfile and --local")
	case o.local.Given():
		for range o.local.OrZero() {
			g.hosts = append(g.hosts, host{Name: "localhost", IPs: []string{"127.0.0.1"}})
		}
	case o.file != "":
		f, err := readHostFile(o.file)
		if err != nil {
			return g, err
		}
		if g.backend == "" && f.Backend != "any" {
			g.backend = f.Backend
		}
		g.hosts, g.env = f.Hosts, append(f.Env, g.env...)
	default:
		for _, name := range o.hosts {
			g.hosts = append(g.hosts, host{Name: name})
		}
		if err := checkHosts(g.hosts); err != nil {
			return g, err
		}
	}
	for _, e := range g.env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return g, fmt.Errorf("environment variable %q: expected NAME=VALUE", e)
		}
	}
	switch {
	case len(g.hosts) == 0:
		return g, errors.New("no hosts (--hosts mac1,mac2 names them, --hostfile FILE has them, --local N is this machine)")
	case len(g.hosts) == 1:
		return g, errors.New("one rank is not a group: run the command without gomflux launch, or give two hosts or --local 2")
	case g.backend != "" && !slices.Contains([]string{ring, nccl, jaccl, jacclRing}, g.backend):
		return g, fmt.Errorf("host file %s: backend %q: expected ring, nccl, jaccl or jaccl-ring", o.file, g.backend)
	}
	if g.isJACCL() {
		return g, g.checkRDMA()
	}
	return g, nil
}

func (g *group) isJACCL() bool { return g.backend == jaccl || g.backend == jacclRing }

// checkRDMA checks that every host has the devices that connect it to each rank.
func (g *group) checkRDMA() error {
	for i, h := range g.hosts {
		var devices []any
		if err := json.Unmarshal(h.RDMA, &devices); err != nil || len(devices) != len(g.hosts) || devices[i] != nil {
			return fmt.Errorf("host %s: jaccl needs a host file whose rdma lists a device for each of the %d hosts, and null for the host "+
				"itself (mlx.distributed_config writes one)", h.Name, len(g.hosts))
		}
	}
	return nil
}

// name is how messages call a rank.
func (g *group) name(rank int) string {
	if g.local {
		return fmt.Sprintf("rank %d", rank)
	}
	return g.hosts[rank].Name
}

// here reports whether a host is this machine.
func (h *host) here() bool { return h.Name == "localhost" || h.Name == "127.0.0.1" }

// command returns gomflux with simple arguments on a host. ssh passes them to the user's shell there,
// whose PATH often lacks the folders of Homebrew and Go.
func (g *group) command(h *host, args ...string) (*exec.Cmd, error) {
	if h.here() {
		program, err := os.Executable()
		cmd := exec.Command(program, args...)
		cmd.Args[0] = os.Args[0]
		return cmd, err
	}
	script := `PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:$HOME/.local/bin:$HOME/go/bin"; export PATH; exec ` + ui.ShellQuote(g.program)
	for _, arg := range args {
		script += " " + ui.ShellQuote(arg)
	}
	options := []string{"-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T"}
	if len(h.IPs) == 0 {
		options = append(options, "-4") // the ring connects to the address that ssh finds
	}
	return exec.Command("ssh", append(options, "--", h.Name, "exec sh -c "+ui.ShellQuote(script))...), nil
}
