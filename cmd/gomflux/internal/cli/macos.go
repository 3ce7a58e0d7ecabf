package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/macos"
	"github.com/gomflux/gomflux/mlx"
)

// MacOSInfo describes what MLX can use of a Mac.
type MacOSInfo struct {
	Version      string `json:"version"`
	Library      string `json:"library_minimum,omitempty"` // the oldest macOS on which libmlx runs
	Accelerators string `json:"neural_accelerators"`       // used, unused, unknown or none
}

// macOSFacts are what macOSInfo is made from.
type macOSFacts struct {
	system, library macos.Version // zero if unknown
	path            string        // of libmlx
	gpu             mlx.DeviceInfo
}

// MacOSFactsOf collects the facts of this machine. It runs on the MLX thread.
func MacOSFactsOf(lib mlx.Library) macOSFacts {
	f := macOSFacts{system: macos.System(), path: lib.MLX}
	if f.system == (macos.Version{}) {
		return f
	}
	if lib.MLX != "" {
		f.library, _ = macos.Minimum(lib.MLX) // zero if it does not say
	}
	f.gpu, _ = deviceInfo(mlx.GPU)
	return f
}

// Describe returns the description, nil if the system is not macOS, and advice if the GPU has
// neural accelerators that are not used.
func (f macOSFacts) Describe() (info *MacOSInfo, advice string) {
	if f.system == (macos.Version{}) {
		return nil, ""
	}
	info = &MacOSInfo{Version: f.system.String(), Accelerators: "none"}
	if f.library != (macos.Version{}) {
		info.Library = f.library.String()
	}
	if !f.gpu.HasNeuralAccelerators() {
		return info, ""
	}
	info.Accelerators = "unused"
	needed := mlx.AcceleratorMacOS
	chip := strings.TrimPrefix(f.gpu.Name, "Apple ")
	if chip == "" {
		chip = "GPU " + f.gpu.Architecture
	}
	switch {
	case f.system.Compare(needed) < 0:
		advice = fmt.Sprintf("%s without its neural accelerators: macOS is %v, and they need %v (to use them: update macOS, then run "+
			"make setup again in a checkout)", chip, f.system, needed)
	case f.library == (macos.Version{}):
		info.Accelerators = "unknown"
	case f.library.Compare(needed) < 0:
		advice = fmt.Sprintf("%s without its neural accelerators: MLX in %s is built for macOS %v and has no kernels for them "+
			"(to use them: run make setup again in a checkout, or use the archive of a release; unset %s if it is set)",
			chip, filepath.Dir(f.path), f.library, mlx.EnvLibrary)
	default:
		info.Accelerators = "used"
	}
	return info, advice
}

func (info *MacOSInfo) Lines(line ui.Field) {
	if info == nil {
		return
	}
	text := info.Version
	if info.Library != "" {
		text += ", MLX built for " + info.Library + " and newer"
	}
	line("macos", "%s; neural accelerators: %s", text, info.Accelerators)
}
