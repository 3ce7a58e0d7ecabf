package launch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

// maxCheck limits how long a host may take to describe itself.
const maxCheck = time.Minute

// versions asks all hosts for their versions, and sets the addresses on which their ranks can listen.
func (g *group) versions(ctx context.Context) ([]cli.VersionInfo, []error) {
	wanted := make([][]string, len(g.Hosts))
	port := g.port
	for i, h := range g.Hosts {
		for k := range max(1, len(h.IPs)) {
			ip := ""
			if k < len(h.IPs) {
				ip = h.IPs[k]
			}
			wanted[i] = append(wanted[i], net.JoinHostPort(ip, strconv.Itoa(port)))
			port += min(1, port)
		}
	}
	infos, errs := make([]cli.VersionInfo, len(g.Hosts)), make([]error, len(g.Hosts))
	if g.local { // one process for all, so that free ports differ
		infos[0], errs[0] = g.version(ctx, 0, slices.Concat(wanted...))
		for i := range g.Hosts {
			if infos[i] = infos[0]; errs[0] == nil {
				g.Hosts[i].addresses, g.Hosts[i].took = g.Hosts[0].addresses[i:i+1], g.Hosts[0].took
			}
		}
		return infos, errs
	}
	client := "" // the address of this machine, as the others see it
	for _, here := range []bool{false, true} {
		var wg sync.WaitGroup
		for i, h := range g.Hosts {
			if h.here() == here {
				if here && strings.HasPrefix(wanted[i][0], ":") {
					wanted[i][0] = client + wanted[i][0]
				}
				wg.Go(func() { infos[i], errs[i] = g.version(ctx, i, wanted[i]) })
			}
		}
		wg.Wait()
		for _, info := range infos {
			client = cmp.Or(client, info.Client)
		}
	}
	return infos, errs
}

// version asks one host, and sets its addresses.
func (g *group) version(ctx context.Context, host int, addresses []string) (info cli.VersionInfo, err error) {
	name, asked := g.Hosts[host].Name, time.Now()
	text, err := g.output(ctx, maxCheck, host, "version", "--json", "--listen="+strings.Join(addresses, ","))
	if ctx.Err() != nil {
		return info, context.Cause(ctx)
	}
	if err == nil {
		err = json.Unmarshal(text, &info)
	}
	if err == nil && len(info.Listen) != len(addresses) {
		err = errors.New("it lists no addresses")
	}
	if err != nil {
		return info, cli.UsageErrorf("%s: %w (ssh must reach it without a password, and run gomflux %s there; --program sets its path)",
			name, err, gomflux.Version())
	}
	g.Hosts[host].addresses, g.Hosts[host].took = nil, time.Since(asked)
	for _, l := range info.Listen {
		if l.Problem != "" {
			return info, cli.UsageErrorf("%s: cannot listen on %s: %s (--starting-port sets other ports, a host file other addresses)",
				name, l.Address, l.Problem)
		}
		g.Hosts[host].addresses = append(g.Hosts[host].addresses, l.Address)
	}
	return info, nil
}

// output runs gomflux on a host, and returns its standard output, or the last line of its standard error
// as an error.
func (g *group) output(ctx context.Context, limit time.Duration, host int, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer for %v", limit))
	defer cancel()
	cmd := g.command(ctx, host, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // a shared connection of ssh goes on, and keeps standard error open
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if said := strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "gomflux: "); err != nil && said != "" {
		err = errors.New(said)
	}
	return stdout.Bytes(), err
}

// prepare refuses hosts that cannot be ranks of one run, and chooses the backend.
func (g *group) prepare(ctx context.Context) error {
	infos, errs := g.versions(ctx)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	lacksNCCL := func(v cli.VersionInfo) bool { return !v.GPU || !slices.Contains(v.Backends, nccl) }
	if g.Backend == "" {
		if g.Backend = nccl; slices.ContainsFunc(infos, lacksNCCL) {
			g.Backend = ring
		}
	}
	for i, info := range infos {
		if err := g.fits(i, info, infos[0]); err != nil {
			return err
		}
	}
	return nil
}

// fits refuses one host.
func (g *group) fits(host int, info, first cli.VersionInfo) error {
	name := g.name(host)
	switch {
	case info.Version != gomflux.Version():
		return cli.UsageErrorf("%s: gomflux is %s there and %s here (install the same version)", name, info.Version, gomflux.Version())
	case info.Problem != "":
		return cli.Coded(cli.ExitLibrary, fmt.Errorf("%s: %s", name, info.Problem))
	case info.MLX != first.MLX:
		return cli.UsageErrorf("%s: MLX is %s there and %s on %s (install the same version)", name, info.MLX, first.MLX, g.name(0))
	case !slices.Contains(info.Backends, g.Backend):
		return cli.Coded(cli.ExitLibrary, fmt.Errorf("%s: MLX there has no %s (jaccl needs macOS 26.2 and Thunderbolt 5, nccl CUDA)",
			name, g.Backend))
	}
	return nil
}
