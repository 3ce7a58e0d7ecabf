package models

import (
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/tuning"
)

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
