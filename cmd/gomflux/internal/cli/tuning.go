package cli

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/picture"
)

// NewTuningMachine describes this machine with one of its devices, for tuned profiles. It runs on
// the MLX thread.
func NewTuningMachine(lib mlx.Library, device mlx.Device) tuning.Machine {
	b := NewMachine(device)
	m := tuning.Machine{
		Device: device.String(), Name: cmp.Or(b.DeviceName, b.Name), Memory: b.DeviceMemory >> 30, System: b.OS, MLX: mlx.Version(),
		Kernels: mlx.ReplacementsVersion(),
	}
	if info, _ := MacOSFactsOf(lib).Describe(); info != nil {
		m.MacOS = info.Library
	}
	if device == mlx.CPU {
		m.CPUs = b.CPUs
		if lib.BLAS != "" {
			m.BLAS = filepath.Base(lib.BLAS)
		}
		return m
	}
	d, _ := deviceInfo(device)
	m.Driver, m.Architecture = driverVersion(), d.Architecture
	return m
}

// OpenTuned is checkLibrary and [modelFlags.useTuning].
func (m *ModelFlags) OpenTuned(ctx context.Context, out *ui.Output, recorded *picture.Found) (mlx.Library, error) {
	lib, err := m.CheckLibrary(ctx, out)
	if err != nil {
		return lib, err
	}
	return lib, m.useTuning(ctx, out, lib, recorded)
}

// useTuning sets the runtime to the tuned profile of the machine, or to the settings that recorded
// ones, which may be nil, were generated with on the same kind of device. A profile that cannot be
// used is a warning.
func (m *ModelFlags) useTuning(ctx context.Context, out *ui.Output, lib mlx.Library, recorded *picture.Found) error {
	var warning error
	err := mlx.Do(ctx, func() error {
		device := mlx.CurrentDevice()
		given, _, err := m.Place()
		if err != nil {
			return err
		}
		if given != nil {
			device = *given
		}
		settings := tuning.Settings{}
		switch {
		case recorded != nil && recorded.Source == picture.SourceGomflux && recorded.Settings.Device == device.String():
			settings, warning = recordedTuning(recorded.Settings.Tuning)
		default:
			settings, warning = profileSettings(NewTuningMachine(lib, device))
		}
		return tuning.Use(device, settings)
	})
	if warning != nil {
		out.Warn("%s", quote.Printable(warning.Error()))
	}
	return err
}

// profileSettings returns the settings of a machine's profile, or the defaults and the reason why
// there are no others, if there is something to say.
func profileSettings(m tuning.Machine) (tuning.Settings, error) {
	if tuning.Off() {
		return tuning.Settings{}, nil
	}
	p, err := tuning.Read(m)
	if err != nil || p == nil {
		return tuning.Settings{}, err
	}
	return p.Settings, nil
}

// recordedTuning returns recorded settings.
func recordedTuning(text string) (tuning.Settings, error) {
	s, err := tuning.Parse(text)
	if err != nil || tuning.Off() && !s.IsDefault() {
		return tuning.Settings{}, fmt.Errorf("the recorded tuned settings (%.200s) are not used: pixels may differ by rounding", text)
	}
	return s, nil
}
