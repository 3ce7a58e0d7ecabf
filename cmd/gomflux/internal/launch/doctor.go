package launch

import (
	"bytes"
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

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

const (
	maxHash    = time.Hour   // for the files of a model
	maxMeasure = time.Minute // for a pair of hosts
	// A clock that is further off is reported. Only times of files depend on it.
	maxClock = 2 * time.Second
	// Connections below are reported: this bandwidth is more than Ethernet has without 10 Gb/s, and this
	// latency more than a cable's.
	lowBandwidth = 5e9
	highLatency  = 2e-3
)

// HostsHelp describes doctor --hosts.
const HostsHelp = `With --hosts or --hostfile doctor checks machines for gomflux launch instead: the
versions of gomflux, MLX and the system, their clocks, with --model the files of
a model by their hashes, and latency and bandwidth between every two of them, as
two ranks measure them through MLX.`

// HostsJSON describes the object that doctor --hosts prints as JSON.
const HostsJSON = `With --hosts it is:

  hosts                   array of name, version, mlx, system, gpu, backends,
                          clock_seconds (how far its clock is ahead) and problem
  model                   with --model: name, files, same: whether all hosts have
                          the same files
  connections             array of hosts (two names), backend, latency_seconds,
                          bits_per_second, or problem
  advice                  what to do, an array of texts`

type hostReport struct {
	Name     string   `json:"name"`
	Version  string   `json:"version,omitempty"`
	MLX      string   `json:"mlx,omitempty"`
	System   string   `json:"system,omitempty"`
	GPU      bool     `json:"gpu"`
	Backends []string `json:"backends"`
	Clock    float64  `json:"clock_seconds"`
	Problem  string   `json:"problem,omitempty"`
}

type modelReport struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Same  bool   `json:"same"`
}

type connectionReport struct {
	Hosts   [2]string `json:"hosts"`
	Backend string    `json:"backend"`
	speed
	Problem string `json:"problem,omitempty"`
}

// A hostsReport is what doctor --hosts finds.
type hostsReport struct {
	Hosts       []hostReport       `json:"hosts"`
	Model       *modelReport       `json:"model,omitempty"`
	Connections []connectionReport `json:"connections"`
	Advice      []string           `json:"advice"`
}

// Diagnose checks the hosts that the flags name, and the model if one is named. The report is nil if there
// is nothing to check; there can be an error about a host next to it.
func (o *Flags) Diagnose(ctx context.Context, out *ui.Output, model string) (ui.Result, error) {
	g, err := o.group()
	if err != nil {
		return nil, cli.Coded(cli.ExitUsage, err)
	}
	r := &hostsReport{Advice: []string{}, Connections: []connectionReport{}}
	asked := time.Now()
	infos, errs := g.versions(ctx)
	answered := time.Now()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var good []int
	for i, info := range infos {
		h := hostReport{Name: g.hosts[i].Name, Version: info.Version, MLX: info.MLX, System: info.System, GPU: info.GPU,
			Backends: append([]string{}, info.Backends...)}
		if errs[i] != nil {
			h.Problem = errs[i].Error()
		} else {
			h.Clock = clockOffset(info.Time, asked, answered)
			good = append(good, i)
		}
		r.Hosts = append(r.Hosts, h)
	}
	g.compare(r, infos, good)
	if model != "" && len(good) > 0 {
		errs = append(errs, g.compareModel(ctx, r, model, good))
	}
	for i, a := range good {
		for _, b := range good[i+1:] {
			out.Status("measuring %s and %s", g.hosts[a].Name, g.hosts[b].Name)
			r.Connections = append(r.Connections, g.connection(ctx, [2]int{a, b}))
			out.ClearStatus()
		}
	}
	r.adviseConnections()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r, cli.ComplainAll(out, errors.Join(errs...))
}

// clockOffset returns by how many seconds a clock is ahead that was read between two moments, 0 if it may
// be right.
func clockOffset(there, asked, answered time.Time) float64 {
	switch {
	case there.Before(asked):
		return there.Sub(asked).Seconds()
	case there.After(answered):
		return there.Sub(answered).Seconds()
	}
	return 0
}

func (r *hostsReport) advise(format string, args ...any) {
	r.Advice = append(r.Advice, fmt.Sprintf(format, args...))
}

// compare compares the versions and clocks of hosts, and chooses the backend.
func (g *group) compare(r *hostsReport, infos []cli.VersionInfo, good []int) {
	if g.backend == "" {
		g.backend = ring
	}
	for _, i := range good {
		if err := g.fits(i, infos[i], infos[good[0]]); err != nil {
			r.advise("%v", err)
		}
		if clock := r.Hosts[i].Clock; math.Abs(clock) > maxClock.Seconds() {
			r.advise("%s: its clock is %+.0f s off (turn on setting it automatically)", g.hosts[i].Name, clock)
		}
		if infos[i].System != infos[good[0]].System {
			r.advise("%s has %s, and %s %s: images can differ by rounding", g.hosts[i].Name, infos[i].System, g.hosts[good[0]].Name,
				infos[good[0]].System)
		}
	}
}

// compareModel compares the files of a model on the hosts by their hashes.
func (g *group) compareModel(ctx context.Context, r *hostsReport, model string, good []int) error {
	type shown struct {
		Files []struct{ Path, SHA256 string }
	}
	all, errs := make([]shown, len(g.hosts)), make([]error, len(g.hosts))
	var wg sync.WaitGroup
	for _, i := range good {
		wg.Go(func() {
			cmd, err := g.command(&g.hosts[i], "show", "--json", "--hash", "--", model)
			if err == nil {
				var text []byte
				var said string
				if text, said, err = outputOf(ctx, cmd, maxHash); err == nil {
					err = json.Unmarshal(text, &all[i])
				} else if said != "" {
					err = errors.New(said)
				}
			}
			if err != nil {
				errs[i] = cli.Coded(cli.ExitModel, fmt.Errorf("%s: %w", g.hosts[i].Name, err))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	first := all[good[0]].Files
	r.Model = &modelReport{Name: model, Files: len(first), Same: true}
	for _, i := range good[1:] {
		hashes := map[string]string{}
		for _, f := range all[i].Files {
			hashes[f.Path] = f.SHA256
		}
		for _, f := range first {
			switch hash, ok := hashes[f.Path]; {
			case !ok:
				r.advise("%s: %s lacks %s, which %s has", g.hosts[i].Name, model, f.Path, g.hosts[good[0]].Name)
			case hash != f.SHA256:
				r.advise("%s: %s of %s is another file than on %s (gomflux pull --verify compares both with the hub)",
					g.hosts[i].Name, f.Path, model, g.hosts[good[0]].Name)
			}
			delete(hashes, f.Path)
		}
		for path := range hashes {
			r.advise("%s: %s lacks %s, which %s has", g.hosts[good[0]].Name, model, path, g.hosts[i].Name)
		}
	}
	slices.Sort(r.Advice)
	r.Model.Same = !slices.ContainsFunc(r.Advice, func(a string) bool { return strings.Contains(a, model) })
	return nil
}

// connection measures the connection of two hosts.
func (g *group) connection(ctx context.Context, pair [2]int) connectionReport {
	two := *g
	two.hosts = []host{g.hosts[pair[0]], g.hosts[pair[1]]}
	if g.isJACCL() {
		for i, row := range g.devices(pair[:]) {
			two.hosts[i].RDMA = row
		}
	}
	c := connectionReport{Hosts: [2]string{two.hosts[0].Name, two.hosts[1].Name}, Backend: g.backend}
	ctx, cancel := context.WithTimeoutCause(ctx, maxMeasure, fmt.Errorf("nothing came for %v (is there a firewall?)", maxMeasure))
	defer cancel()
	var text bytes.Buffer
	quiet := &ui.Output{Stdout: &text, Stderr: io.Discard}
	err := two.run(ctx, quiet, []string{"launch", "measure", g.backend}, "")
	if err == nil {
		err = json.Unmarshal(text.Bytes(), &c.speed)
	}
	if err != nil {
		c.Problem = err.Error()
	}
	return c
}

func (r *hostsReport) adviseConnections() {
	for _, c := range r.Connections {
		names := c.Hosts[0] + " and " + c.Hosts[1]
		switch {
		case c.Problem != "":
			r.advise("%s cannot connect: %s", names, c.Problem)
		case c.Latency > highLatency:
			r.advise("%s: %s for a message is that of a radio network: connect them by a cable", names, milliseconds(c.Latency))
		case c.Bandwidth < lowBandwidth:
			r.advise("%s: %s is enough for images or prompts on each, and slow for one image on both: a Thunderbolt cable is faster",
				names, gigabits(c.Bandwidth))
		}
	}
}

func milliseconds(s float64) string { return fmt.Sprintf("%.2g ms", 1000*s) }

func gigabits(bits float64) string { return fmt.Sprintf("%.2g Gb/s", bits/1e9) }

// Text implements ui.Result.
func (r *hostsReport) Text(p *ui.Page) {
	line := p.Fields(12)
	for _, h := range r.Hosts {
		if h.Problem != "" {
			line("host", "%s", h.Problem)
			continue
		}
		text := fmt.Sprintf("%s: gomflux %s, MLX %s, %s, backends: %s", h.Name, h.Version, h.MLX, h.System, strings.Join(h.Backends, ", "))
		if h.Clock != 0 {
			text += fmt.Sprintf(", clock %+.1f s", h.Clock)
		}
		line("host", "%s", text)
	}
	if m := r.Model; m != nil {
		same := "not the same on all"
		if m.Same {
			same = "the same on all"
		}
		line("model", "%s: %s, %s", m.Name, ui.Plural(m.Files, "file"), same)
	}
	for _, c := range r.Connections {
		if c.Problem == "" {
			line("connection", "%s and %s by %s: %s, %s", c.Hosts[0], c.Hosts[1], c.Backend, gigabits(c.Bandwidth), milliseconds(c.Latency))
		} else {
			line("connection", "%s and %s by %s: none", c.Hosts[0], c.Hosts[1], c.Backend)
		}
	}
	p.Printf("\n")
	if len(r.Advice) == 0 && !slices.ContainsFunc(r.Hosts, func(h hostReport) bool { return h.Problem != "" }) {
		p.Printf("nothing to mend\n")
	}
	for _, a := range r.Advice {
		p.Printf("%s\n", ui.Escape(a))
	}
}
