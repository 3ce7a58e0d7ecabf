package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
)

func newDoctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what gomflux finds on this machine and what is missing",
		Long: `Doctor prints the libraries, devices, memory and models that gomflux finds, the
environment variables that matter, and what to do about what is missing. Models
are judged by their configs and headers, without loading them.

With --json it is one object:

  program, tokenizer      the version, and whether prompts can be read
  models                  as gomflux models --json lists them
  cache                   of Hugging Face: path, exists, free_bytes on its disk
  memory                  total_bytes, available_bytes; 0 where not known
  terminal_pictures       how the terminal shows pictures: kitty, iterm2, sixel
                          or none
  environment             the variables that are set
  mlx                     version, mlxc, mlx and blas (paths), devices (device,
                          standard, name, architecture, memory_bytes, dtype);
                          null if MLX cannot be used, and problem says why
  advice                  what to do about what is missing, an array of texts
` + exitStatus,
		Example: `  gomflux doctor
  gomflux doctor --json | jq -r .advice[]`,
		Args: noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := diagnose(cmd.Context(), cmd.ErrOrStderr())
			write := d.print
			if asJSON {
				write = func(w io.Writer) error { return writeJSON(w, d) }
			}
			if writeErr := write(cmd.OutOrStdout()); writeErr != nil {
				return writeErr
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// doctorVariables are the environment variables that change what gomflux does.
var doctorVariables = []string{mlx.EnvLibrary, "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
	"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "MLX_ENABLE_CACHE_THRASHING_CHECK", "MLX_CUDA_GRAPH_CACHE_SIZE", "MLX_ENABLE_TF32",
	"TERM", "TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID", "WEZTERM_PANE", "GHOSTTY_RESOURCES_DIR", "TMUX", "STY", "ZELLIJ"}

// A diagnosis is what doctor finds.
type diagnosis struct {
	Program     string            `json:"program"`
	Tokenizer   bool              `json:"tokenizer"`
	Models      []listedModel     `json:"models"`
	Cache       cacheInfo         `json:"cache"`
	Memory      memoryInfo        `json:"memory"`
	Pictures    termpic.Protocol  `json:"terminal_pictures"`
	Environment map[string]string `json:"environment"`
	MLX         *mlxInfo          `json:"mlx"`
	Problem     string            `json:"problem,omitempty"`
	Advice      []string          `json:"advice"`

	tty bool // whether there is a terminal
}

type cacheInfo struct {
	Path   string `json:"path"`
	Exists bool   `json:"exists"`
	Free   uint64 `json:"free_bytes"`
}

type memoryInfo struct {
	Total     uint64 `json:"total_bytes"`
	Available uint64 `json:"available_bytes"`
}

type mlxInfo struct {
	Version string       `json:"version"`
	MLXC    string       `json:"mlxc"`
	MLX     string       `json:"mlx,omitempty"` // not known where the system's loader found it
	BLAS    string       `json:"blas,omitempty"`
	Devices []deviceInfo `json:"devices"`

	free uint64 // main memory, 0 where that is not known
}

type deviceInfo struct {
	Device       string `json:"device"`
	Standard     bool   `json:"standard"`
	Name         string `json:"name,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	Memory       uint64 `json:"memory_bytes"`
	Dtype        string `json:"dtype"`
}

// diagnose looks at everything. The error is about an MLX that cannot be used.
func diagnose(ctx context.Context, terminal io.Writer) (*diagnosis, error) {
	d := &diagnosis{Program: version(), Tokenizer: builtWithCgo(), Environment: map[string]string{}, Advice: []string{}}
	advise := func(format string, args ...any) { d.Advice = append(d.Advice, fmt.Sprintf(format, args...)) }
	if !d.Tokenizer {
		advise("this program cannot read prompts: build it with CGO_ENABLED=1 after make setup (make build does both)")
	}
	d.diagnoseModels(advise)
	d.Memory.Total = systemMemory()
	if f, ok := terminal.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		d.tty = true
	}
	d.Pictures = termpic.Open(ctx, terminal, termpic.Auto).Protocol()
	for _, name := range doctorVariables {
		if value, set := os.LookupEnv(name); set {
			d.Environment[name] = value
		}
	}
	lib, err := mlx.Open()
	if err == nil {
		if d.MLX, err = describeMLX(ctx, lib); err == nil {
			d.Memory.Available = d.MLX.free
		}
	}
	if err != nil {
		d.Problem = err.Error()
		return d, coded(exitLibrary, err)
	}
	if slowBLAS(lib) {
		advise("%s", blasHint)
	}
	return d, nil
}

// diagnoseModels looks at models and where they are kept.
func (d *diagnosis) diagnoseModels(advise func(format string, args ...any)) {
	var err error
	if d.Models, err = listModels(); err != nil {
		advise("%v", err)
	}
	for _, m := range d.Models {
		switch {
		case !m.Here && m.Name == defaultModel:
			advise("the default model, %s, is not on this machine: %s gets it", m.Name, m.Get)
		case m.Here && m.Supported && !m.Complete:
			text := fmt.Sprintf("%s is incomplete: %s", m.Name, strings.Join(m.Problems, "; "))
			if m.Get != "" {
				text += " (to get what is missing: " + m.Get + ")"
			}
			advise("%s", text)
		}
	}
	if d.Cache.Path, err = hub.Cache(); err != nil {
		advise("%v", err)
		return
	}
	_, err = os.Stat(d.Cache.Path)
	d.Cache.Exists = err == nil
	free, _ := disk.Free(d.Cache.Path)
	d.Cache.Free = uint64(free)
}

// describeMLX is what there is to know about an MLX that has been opened.
func describeMLX(ctx context.Context, lib mlx.Library) (*mlxInfo, error) {
	m := &mlxInfo{MLXC: lib.MLXC, MLX: lib.MLX, BLAS: lib.BLAS}
	err := mlx.Do(ctx, func() error {
		m.Version, m.free = mlx.Version(), uint64(mlx.FreeMemory(mlx.CPU))
		for _, d := range mlx.Devices() {
			memory := uint64(d.Memory)
			if d.Device == mlx.CPU {
				memory = cmp.Or(memory, systemMemory())
			}
			m.Devices = append(m.Devices, deviceInfo{d.Device.String(), d.Device == mlx.CurrentDevice(), d.Name, d.Architecture, memory, d.Device.ComputeDtype().String()})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (d *diagnosis) print(w io.Writer) error {
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", what, quote.Printable(fmt.Sprintf(format, args...)))
	}
	line("program", "%s", d.Program)
	if d.Tokenizer {
		line("tokenizer", "built in")
	} else {
		line("tokenizer", "missing")
	}
	away := 0
	for _, m := range d.Models {
		switch {
		case m.Builtin:
			line("model", "%s, built in (%s): %s", m.Name, units.Bytes(m.Bytes), m.About)
		case !m.Here && m.Name == defaultModel:
			line("model", "%s, not here (to get it: %s)", m.Name, m.Get)
		case !m.Here:
			away++
		default:
			line("model", "%s, %s (%s): %s", m.Name, m.state(), units.Bytes(m.Bytes), m.where())
		}
	}
	if away > 0 {
		line("model", "%d more that are not here (gomflux models lists them)", away)
	}
	if d.Cache.Path != "" {
		text := catalog.TildePath(d.Cache.Path)
		if !d.Cache.Exists {
			text += ", not there yet"
		}
		if d.Cache.Free > 0 {
			text += fmt.Sprintf(", %s free on its disk", units.Bytes(int64(d.Cache.Free)))
		}
		line("cache", "%s", text)
	}
	if d.Memory.Total > 0 {
		text := units.Bytes(int64(d.Memory.Total))
		if d.Memory.Available > 0 {
			text += fmt.Sprintf(", %s available", units.Bytes(int64(d.Memory.Available)))
		}
		line("memory", "%s", text)
	}
	switch {
	case d.Pictures != termpic.None:
		line("terminal", "shows pictures (%s)", d.Pictures)
	case d.tty:
		line("terminal", "shows no pictures")
	default:
		line("terminal", "standard error is none")
	}
	for _, name := range doctorVariables {
		if value, set := d.Environment[name]; set {
			line("environment", "%s=%s", name, value)
		}
	}
	if m := d.MLX; m == nil {
		line("mlx", "cannot be used")
	} else {
		line("mlx-c", "ABI %s, %s", mlx.ABI, m.MLXC)
		line("mlx", "%s, %s", m.Version, cmp.Or(m.MLX, "found by the system's loader"))
		switch {
		case m.BLAS != "":
			line("blas", "%s", m.BLAS)
		case runtime.GOOS == "linux":
			line("blas", "the slow one that MLX was built with")
		}
		for _, device := range m.Devices {
			parts := []string{device.Device}
			if device.Standard {
				parts[0] += " (used unless --device says otherwise)"
			}
			for _, s := range []string{device.Name, device.Architecture} {
				if s != "" && s != device.Device {
					parts = append(parts, s)
				}
			}
			if device.Memory > 0 {
				parts = append(parts, units.Bytes(int64(device.Memory)))
			}
			line("device", "%s, computes in %s", strings.Join(parts, ", "), device.Dtype)
		}
	}
	fmt.Fprintln(&b)
	if len(d.Advice) == 0 && d.MLX != nil {
		fmt.Fprintln(&b, "nothing is missing")
	}
	for _, a := range d.Advice {
		fmt.Fprintln(&b, quote.Printable(a))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// libraryPaths lists the files of a library on one line.
func libraryPaths(lib mlx.Library) string {
	var paths []string
	for _, p := range []string{lib.MLXC, lib.MLX, lib.BLAS} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	return strings.Join(paths, ", ")
}
