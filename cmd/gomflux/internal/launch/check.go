package launch

import (
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
	infos, errs := make([]cli.VersionInfo, len(g.Hosts)), make([]error, len(g.Hosts))
	port, all := g.port, host{Name: "localhost"}
	for i := range g.Hosts {
		h, ips := &g.Hosts[i], g.Hosts[i].IPs
		if len(ips) == 0 {
			ips = []string{""} // the one that ssh finds
		}
		for _, ip := range ips {
			h.addresses = append(h.addresses, net.JoinHostPort(ip, strconv.Itoa(port)))
			port += min(1, port)
		}
		all.addresses = append(all.addresses, h.addresses...)
	}
	if g.local { // one process for all, so that free ports differ
		infos[0], errs[0] = g.version(ctx, &all)
		for i := range g.Hosts {
			infos[i], g.Hosts[i].addresses, g.Hosts[i].took = infos[0], all.addresses[i:i+1], all.took
		}
		return infos, errs
	}
	client := "" // the address of this machine, as the others see it
	for _, here := range []bool{false, true} {
		var wg sync.WaitGroup
		for i := range g.Hosts {
			if h := &g.Hosts[i]; h.here() == here {
				if here && len(h.IPs) == 0 {
					h.addresses[0] = client + h.addresses[0]
				}
				wg.Go(func() { infos[i], errs[i] = g.version(ctx, h) })
			}
		}
		wg.Wait()
		for _, info := range infos {
			client = cmp.Or(client, info.Client)
		}
	}
	return infos, errs
}

// version asks one host, and replaces the addresses that were wanted by those that it has found.
func (g *group) version(ctx context.Context, h *host) (info cli.VersionInfo, err error) {
	asked := time.Now()
	err = g.ask(ctx, maxCheck, h, &info, "version", "--json", "--listen="+strings.Join(h.addresses, ","))
	switch {
	case ctx.Err() != nil:
		return info, context.Cause(ctx)
	case err != nil:
		return info, cli.UsageErrorf("%s: %w (ssh must reach it without a password, and run gomflux %s there; --program sets its path)",
			h.Name, err, gomflux.Version())
	}
	h.took = time.Since(asked)
	for i, l := range info.Listen {
		if l.Problem != "" {
			return info, cli.UsageErrorf("%s: cannot listen on %s: %s (--starting-port sets other ports, a host file other addresses)",
				h.Name, l.Address, l.Problem)
		}
		h.addresses[i] = l.Address
	}
	return info, nil
}

// ask runs gomflux on a host, and reads the JSON that it prints. The last line of its standard error is an error.
func (g *group) ask(ctx context.Context, limit time.Duration, h *host, answer any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer for %v", limit))
	defer cancel()
	text, err := g.command(ctx, h, args...).Output()
	failed, _ := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case failed != nil:
		lines := strings.Split(strings.TrimSpace(string(failed.Stderr)), "\n")
		if said := strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "gomflux: "); said != "" {
			err = errors.New(said)
		}
		return err
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // a shared connection of ssh goes on, and keeps standard error open
		return err
	}
	return json.Unmarshal(text, answer)
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
	name := g.name(&g.Hosts[host])
	switch {
	case info.Version != gomflux.Version():
		return cli.UsageErrorf("%s: gomflux is %s there and %s here (install the same version)", name, info.Version, gomflux.Version())
	case info.Problem != "":
		return cli.Coded(cli.ExitLibrary, fmt.Errorf("%s: %s", name, info.Problem))
	case info.MLX != first.MLX:
		return cli.UsageErrorf("%s: MLX is %s there and %s on %s (install the same version)", name, info.MLX, first.MLX,
			g.name(&g.Hosts[0]))
	case !slices.Contains(info.Backends, g.Backend):
		return cli.Coded(cli.ExitLibrary, fmt.Errorf("%s: MLX there has no %s (jaccl needs macOS 26.2 and Thunderbolt 5, nccl CUDA)",
			name, g.Backend))
	}
	return nil
}
