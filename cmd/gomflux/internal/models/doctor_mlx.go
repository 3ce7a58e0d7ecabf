package models

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/tuning"
)

// A kernelInfo describes a custom kernel.
type kernelInfo struct {
	Name    string `json:"name"`
	Used    bool   `json:"used"`
	Problem string `json:"problem,omitempty"`
}

// kernelsInfo describes the custom kernels on this machine.
type kernelsInfo struct {
	List    []kernelInfo `json:"list"`
	Problem string       `json:"problem,omitempty"` // why the list is empty
}

// describeKernels checks the custom kernels. It runs on the MLX thread.
func describeKernels() kernelsInfo {
	info := kernelsInfo{List: []kernelInfo{}}
	states, err := mlx.Kernels()
	if err != nil {
		info.Problem = err.Error()
		return info
	}
	for _, s := range states {
		k := kernelInfo{Name: s.Name, Used: s.Err == nil}
		if s.Err != nil {
			k.Problem = s.Err.Error()
		}
		info.List = append(info.List, k)
	}
	return info
}

func (info kernelsInfo) lines(line ui.Field) {
	if info.Problem != "" {
		line("kernels", "none: %s", info.Problem)
		return
	}
	var used []string
	for _, k := range info.List {
		if k.Used {
			used = append(used, k.Name)
		} else {
			line("kernels", "%s is not used: %s", k.Name, k.Problem)
		}
	}
	if len(used) > 0 {
		line("kernels", "used: %s", strings.Join(used, ", "))
	}
}

// A tuningInfo describes the tuned profile of a device.
type tuningInfo struct {
	Device   string           `json:"device"`
	File     string           `json:"file"`
	Used     bool             `json:"used"`
	Problem  string           `json:"problem,omitempty"` // why it is not used
	Created  *time.Time       `json:"created,omitempty"`
	Settings *tuning.Settings `json:"settings,omitempty"`
}

// describeTuning lists the profiles of the devices, and uses that of the current one. It runs on the
// MLX thread.
func describeTuning(lib mlx.Library) ([]tuningInfo, error) {
	list := []tuningInfo{}
	for _, d := range mlx.Devices() {
		m := cli.NewTuningMachine(lib, d.Device)
		p, err := tuning.Read(m)
		path, pathErr := tuning.File(m)
		if pathErr != nil || p == nil && err == nil {
			continue
		}
		info := tuningInfo{Device: d.Device.String(), File: catalog.TildePath(path), Used: err == nil}
		if err != nil {
			info.Problem = err.Error()
			list = append(list, info)
			continue
		}
		info.Created, info.Settings = &p.Created, &p.Settings
		if tuning.Off() {
			info.Used, info.Problem = false, tuning.Env+"=0"
		} else if d.Device == mlx.CurrentDevice() {
			if err := tuning.Use(d.Device, p.Settings); err != nil {
				return nil, err
			}
		}
		list = append(list, info)
	}
	return list, nil
}

func tuningLines(list []tuningInfo, line ui.Field) {
	for _, t := range list {
		switch {
		case t.Settings == nil:
			line("tuning", "%s: %s", t.Device, t.Problem)
		case t.Used:
			line("tuning", "%s: %s (measured %s, %s)", t.Device, cli.TunedText(*t.Settings), t.Created.Format(time.DateOnly), t.File)
		default:
			line("tuning", "%s: ignored, %s (%s)", t.Device, t.Problem, t.File)
		}
	}
	if len(list) == 0 {
		line("tuning", "not measured (gomflux bench --tune does)")
	}
}

// warm generates an image with the built-in model, for which MLX compiles the kernels that models
// need and stores them on disk. It returns how long that took.
func warm(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	source, err := gomflux.Find("shapes")
	if err != nil {
		return 0, err
	}
	m, err := source.Open(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	if _, err := m.Generate(ctx, gomflux.Options{Prompt: "a red circle", Steps: 1}); err != nil {
		return 0, fmt.Errorf("generating an image to warm up: %w", err)
	}
	return time.Since(start), nil
}
