package launch

import (
	"bytes"
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
	"syscall"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

// maxCheck limits how long a host may take to describe itself.
const maxCheck = time.Minute

// versions asks all hosts for their versions, and sets the addresses on which their ranks can listen. The
// errors name the hosts, and there is one for each host or none.
func (g *group) versions(ctx context.Context) ([]cli.VersionInfo, []error) {
	wanted := make([][]string, len(g.hosts))
	port := g.port
	for i, h := range g.hosts {
		ips := h.IPs
		if len(ips) == 0 {
			ips = []string{""} // its own
		}
		for _, ip := range ips {
			wanted[i] = append(wanted[i], net.JoinHostPort(ip, strconv.Itoa(port)))
			if port > 0 {
				port++
			}
		}
	}
	infos, errs := make([]cli.VersionInfo, len(g.hosts)), make([]error, len(g.hosts))
	if g.local { // they must not choose the same ports
		info, err := g.version(ctx, 0, slices.Concat(wanted...))
		for i := range g.hosts {
			infos[i] = info
			if err == nil {
				infos[i].Listen = info.Listen[i : i+1]
			}
		}
		errs[0] = err
		return g.useAddresses(infos, errs), errs
	}
	client := "" // of ssh connections
	for _, here := range []bool{false, true} {
		var wg sync.WaitGroup
		for i := range g.hosts {
			if g.hosts[i].here() != here {
				continue
			}
			if here && client != "" && len(g.hosts[i].IPs) == 0 { // as the other hosts see this one
				_, port, _ := net.SplitHostPort(wanted[i][0])
				wanted[i][0] = net.JoinHostPort(client, port)
			}
			wg.Go(func() { infos[i], errs[i] = g.version(ctx, i, wanted[i]) })
		}
		wg.Wait()
		for _, info := range infos {
			client = max(client, info.Client)
		}
	}
	return g.useAddresses(infos, errs), errs
}

// version asks one host.
func (g *group) version(ctx context.Context, rank int, addresses []string) (info cli.VersionInfo, err error) {
	fail := func(format string, args ...any) (cli.VersionInfo, error) {
		return info, cli.UsageErrorf(g.hosts[rank].Name+": "+format, args...)
	}
	cmd, err := g.command(&g.hosts[rank], "version", "--json", "--listen="+strings.Join(addresses, ","))
	if err != nil {
		return info, err
	}
	out, said, err := outputOf(ctx, cmd, maxCheck)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return info, context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() == 127:
		return fail("there is no %s in the PATH of ssh sessions (--program is its path there)", g.program)
	case errors.As(err, &exit) && exit.ExitCode() == 255 && !g.hosts[rank].here():
		return fail("ssh: %s", strings.TrimPrefix(said, "ssh: "))
	case errors.As(err, &exit) && exit.ExitCode() == cli.ExitUsage && strings.Contains(said, "--json"):
		return fail("gomflux there is older than %s here (install the same version)", gomflux.Version())
	case err != nil && said != "":
		return fail("%w: %s", err, said)
	case err != nil:
		return fail("%w", err)
	}
	if err := json.Unmarshal(out, &info); err != nil || len(info.Listen) != len(addresses) {
		return fail("%s printed no version of gomflux (%.80q)", g.program, out)
	}
	return info, nil
}

// outputOf runs a command in a process group of its own, and returns its standard output, and the last
// line of its standard error.
func outputOf(ctx context.Context, cmd *exec.Cmd, limit time.Duration) (out []byte, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	stop := context.AfterFunc(ctx, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	if !stop() && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer for %v", limit)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	return stdout.Bytes(), strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "gomflux: "), err
}

// useAddresses sets the addresses of ranks, or an error if a host cannot listen.
func (g *group) useAddresses(infos []cli.VersionInfo, errs []error) []cli.VersionInfo {
	for i, info := range infos {
		g.hosts[i].addresses = nil
		for _, l := range info.Listen {
			if l.Problem != "" && errs[i] == nil {
				errs[i] = cli.UsageErrorf("%s: cannot listen on %s: %s (--starting-port sets other ports, a host file other addresses)",
					g.name(i), l.Address, l.Problem)
			}
			g.hosts[i].addresses = append(g.hosts[i].addresses, l.Address)
		}
	}
	return infos
}

// check refuses hosts that cannot be ranks of one run, and chooses the backend.
func (g *group) check(ctx context.Context) error {
	infos, errs := g.versions(ctx)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if g.backend == "" {
		g.backend = nccl
		for _, info := range infos {
			if !info.GPU || !slices.Contains(info.Backends, nccl) {
				g.backend = ring
			}
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
func (g *group) fits(rank int, info, first cli.VersionInfo) error {
	switch name := g.name(rank); {
	case info.Version != gomflux.Version():
		return cli.UsageErrorf("%s: gomflux is %s there and %s here (install the same version)", name, info.Version, gomflux.Version())
	case info.Problem != "":
		return cli.Coded(cli.ExitLibrary, fmt.Errorf("%s: %s", name, info.Problem))
	case info.MLX != first.MLX:
		return cli.UsageErrorf("%s: MLX is %s there and %s on %s (install the same version)", name, info.MLX, first.MLX, g.name(0))
	case !slices.Contains(info.Backends, strings.TrimSuffix(g.backend, "-ring")):
		hint := map[string]string{jaccl: " (it needs macOS 26.2, and Macs with Thunderbolt 5)", nccl: " (it is in MLX's build for CUDA)"}
		return cli.Coded(cli.ExitLibrary, fmt.Errorf("%s: MLX there has no backend %s%s", name, g.backend,
			hint[strings.TrimSuffix(g.backend, "-ring")]))
	}
	return nil
}
