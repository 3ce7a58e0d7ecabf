package launch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// Limits of doctor --hosts.
const (
	maxHash    = time.Hour   // for the files of a model
	maxMeasure = time.Minute // for a pair of hosts
	// What is worse is reported: a clock's error in seconds, bits per second, which Ethernet below 10 Gb/s
	// does not reach, and the seconds of a message, which a cable does not take.
	maxClock, minBandwidth, maxLatency = 2, 5e9, 2e-3
)

// HostsHelp describes doctor --hosts.
const HostsHelp = `With --hosts or --hostfile doctor checks machines for gomflux launch instead:
versions of gomflux, MLX and the system, clocks, with --model the files of a
model by their hashes, and latency and bandwidth between every two machines, as
two ranks measure them over MLX's ring. With --json it prints:

  hosts                   array of name, problem, clock_seconds (how far its
                          clock is ahead) and the fields of gomflux version
  connections             array of hosts (two names), latency_seconds,
                          bits_per_second, or problem
  advice                  what to do, an array of texts`

type hostReport struct {
	Name string `json:"name"`
	cli.VersionInfo
	Clock float64 `json:"clock_seconds"`
}

// A speed is that of the connection of two ranks.
type speed struct {
	Latency   float64 `json:"latency_seconds"` // of gathering one number
	Bandwidth float64 `json:"bits_per_second"` // in each direction, while both send
}

type connectionReport struct {
	Hosts [2]string `json:"hosts"`
	speed
	Problem string `json:"problem,omitempty"`
}

// A hostsReport is what doctor --hosts finds.
type hostsReport struct {
	Hosts       []hostReport       `json:"hosts"`
	Connections []connectionReport `json:"connections"`
	Advice      []string           `json:"advice"`
}

// Diagnose checks the hosts that the flags name, and the model if one is named, and prints a report.
func (o *Flags) Diagnose(ctx context.Context, out *ui.Output, model string) error {
	g, err := o.group()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	g.Backend = ring
	r := &hostsReport{Advice: []string{}, Connections: []connectionReport{}}
	asked := time.Now()
	infos, errs := g.versions(ctx)
	answered := time.Now()
	var good []*host
	for i, info := range infos {
		h := hostReport{Name: g.Hosts[i].Name, VersionInfo: info}
		if h.Listen = nil; errs[i] != nil {
			h.Problem = errs[i].Error()
			r.Hosts = append(r.Hosts, h)
			continue
		}
		good = append(good, &g.Hosts[i])
		// the clock was read between the two moments
		h.Clock = min(0, info.Time.Sub(asked).Seconds()) + max(0, info.Time.Sub(answered).Seconds())
		r.Hosts = append(r.Hosts, h)
		first := r.Hosts[good[0].number]
		if err := g.fits(i, info, first.VersionInfo); err != nil {
			r.advise("%v", err)
		}
		if math.Abs(h.Clock) > maxClock {
			r.advise("%s: its clock is %+.0f s off (have the system set it)", h.Name, h.Clock)
		}
		if info.System != first.System {
			r.advise("%s has %s, and %s %s: images can differ by rounding", h.Name, info.System, first.Name, first.System)
		}
	}
	if model != "" {
		errs = append(errs, g.compareModel(ctx, r, model, good))
	}
	for i, a := range good {
		for _, b := range good[i+1:] {
			out.Status("measuring %s and %s", a.Name, b.Name)
			g.Hosts = []host{*a, *b}
			r.connect(ctx, &g)
			out.ClearStatus()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return cmp.Or(out.Result(r), cli.ComplainAll(out, errors.Join(errs...)))
}

func (r *hostsReport) advise(format string, args ...any) {
	r.Advice = append(r.Advice, fmt.Sprintf(format, args...))
}

// compareModel compares the files of a model on hosts by their hashes.
func (g *group) compareModel(ctx context.Context, r *hostsReport, model string, hosts []*host) error {
	type file struct{ Path, SHA256 string }
	shown, errs := make([]struct{ Files []file }, len(hosts)), make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			if err := g.ask(ctx, maxHash, h, &shown[i], "show", "--json", "--hash", "--", model); err != nil {
				errs[i] = cli.Coded(cli.ExitModel, fmt.Errorf("%s: %w", h.Name, err))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, h := range hosts {
		for _, f := range shown[0].Files {
			if !slices.Contains(shown[i].Files, f) {
				r.advise("%s: %s of %s is missing or another file than on %s (gomflux pull --verify compares it with the hub)",
					h.Name, f.Path, model, hosts[0].Name)
			}
		}
	}
	return nil
}

// newMeasureCommand is the command that doctor --hosts launches on every pair.
func newMeasureCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "measure",
		Short:  "Measure the connection of two ranks (doctor --hosts does this)",
		Hidden: true,
		Args:   cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return mlx.Do(cmd.Context(), func() error {
				g, err := models.JoinGroup()
				if err != nil {
					return err
				}
				const elements = 4 << 20 // 16 MB, of the size of a layer's keys and values
				return ui.WriteJSON(cmd.OutOrStdout(), speed{models.GatherTime(g, 1, 100),
					32 * elements / models.GatherTime(g, elements, 4)})
			})
		},
	}
}

// connect measures the connection of the two hosts of a group.
func (r *hostsReport) connect(ctx context.Context, g *group) {
	c := connectionReport{Hosts: [2]string{g.Hosts[0].Name, g.Hosts[1].Name}}
	ctx, cancel := context.WithTimeoutCause(ctx, maxMeasure, fmt.Errorf("no connection for %v (is there a firewall?)", maxMeasure))
	defer cancel()
	var text bytes.Buffer
	err := g.run(ctx, &ui.Output{Stdout: &text, Stderr: io.Discard}, []string{"launch", "measure"}, "")
	if err == nil {
		err = json.Unmarshal(text.Bytes(), &c.speed)
	}
	names := strings.Join(c.Hosts[:], " and ")
	switch {
	case err != nil:
		c.Problem = err.Error()
		r.advise("%s cannot connect: %v", names, err)
	case c.Latency > maxLatency:
		r.advise("%s: %s for a message is that of a radio network (connect them by a cable)", names, milliseconds(c.Latency))
	case c.Bandwidth < minBandwidth:
		r.advise("%s: %s is enough for images or prompts of each, but slow for one image of both (a Thunderbolt cable is faster)", names,
			gigabits(c.Bandwidth))
	}
	r.Connections = append(r.Connections, c)
}

func milliseconds(s float64) string { return fmt.Sprintf("%.2g ms", 1000*s) }

func gigabits(bits float64) string { return fmt.Sprintf("%.2g Gb/s", bits/1e9) }

// Text implements ui.Result.
func (r *hostsReport) Text(p *ui.Page) {
	line := p.Fields(12)
	problem := false
	for _, h := range r.Hosts {
		if problem = problem || h.Problem != ""; h.Problem != "" {
			line("host", "%s", h.Problem)
		} else {
			line("host", "%s: gomflux %s, MLX %s with %s, %s, clock %+.1f s", h.Name, h.Version, h.MLX, strings.Join(h.Backends, " and "),
				h.System, h.Clock)
		}
	}
	for _, c := range r.Connections {
		if c.Problem == "" {
			line("connection", "%s and %s: %s, %s", c.Hosts[0], c.Hosts[1], gigabits(c.Bandwidth), milliseconds(c.Latency))
		}
	}
	p.Printf("\n")
	if len(r.Advice) == 0 && !problem {
		p.Printf("nothing to mend\n")
	}
	for _, a := range r.Advice {
		p.Printf("%s\n", ui.Escape(a))
	}
}
