package models

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/launch"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

const doctorHelp = `Doctor checks the installation: libraries, devices, memory, models and the
environment variables that matter. It prints what it finds, and how to get what
is missing. Only configs and headers of models are checked; no model is loaded.

On a GPU, custom kernels do the work of several of MLX's operations. Doctor
compares each with these operations, and lists those that are used. On a Mac
with an M5 or newer doctor also checks that MLX uses the GPU's neural
accelerators.

With --warm doctor also generates a small image with the built-in model. MLX
compiles some of its kernels for a GPU when they are first used, and stores them
on disk, so the first image of another model does not wait for them.

JSON
With --json doctor prints one object:

  program, tokenizer      the version, and whether prompts can be read
  models                  as gomflux models --json lists them
  cache                   Hugging Face cache: path, exists, free_bytes on its
                          disk
  memory                  total_bytes, available_bytes; 0 if unknown
  terminal_pictures       how the terminal shows images: kitty, iterm2, sixel or
                          none
  environment             the variables that are set
  mlx                     version, mlxc, mlx and blas (paths), devices (device,
                          standard, name, architecture, memory_bytes, on a Mac
                          working_set_bytes and largest_array_bytes, dtype,
                          dtype_reason: why it is the default, absent for
                          bfloat16);
                          kernels (list of name, used, problem; problem without
                          a GPU); tuning, the profiles of gomflux bench --tune
                          (device, file, used, problem, created, settings); on a
                          Mac macos (version, library_minimum: the oldest macOS
                          for this MLX, neural_accelerators: used, unused,
                          unknown, or none in this GPU); null if MLX is
                          unusable, for the reason in problem
  warm_seconds            how long --warm took
  advice                  what to do, an array of texts

HOSTS
` + launch.HostsHelp + `
` + cli.ExitStatus

func NewDoctorCommand() *cobra.Command {
	var o cli.OutputFlags
	var warmUp bool
	var model string
	hosts := launch.NewFlags()
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation and report what is missing",
		Long:  doctorHelp,
		Example: `  gomflux doctor
  gomflux doctor --json | jq -r .advice[]
  gomflux doctor --hosts mac1,mac2 --model z-image-turbo`,
		Args: cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := o.Out(cmd)
			switch {
			case !hosts.Given() && model != "":
				return cli.UsageErrorf("--model has no effect without --hosts (gomflux show describes a model)")
			case hosts.Given() && warmUp:
				return cli.UsageErrorf("give either --hosts or --warm")
			case hosts.Given():
				return hosts.Diagnose(cmd.Context(), out, model)
			}
			mlx.OnKernelFailure = nil // the diagnosis has it
			d, err := diagnose(cmd.Context(), cmd.ErrOrStderr())
			if err == nil && warmUp {
				var took time.Duration
				took, err = warm(cmd.Context())
				d.Warm = took.Seconds()
			}
			return cmp.Or(out.Result(d), err)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	cmd.Flags().BoolVar(&warmUp, "warm", false, "have MLX compile its kernels now")
	hosts.AddHosts(cmd.Flags())
	cmd.Flags().StringVarP(&model, "model", "m", "", "with --hosts: compare the files of the model of this `name`")
	return cmd
}

// DoctorVariables are the environment variables that change what gomflux does.
var DoctorVariables = []string{
	mlx.EnvLibrary, mlx.EnvKernels, tuning.Env, cli.EnvPromptCache, cli.EnvPromptCacheSize,
	"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE",
	"HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_DISABLE_SYMLINKS", "TMPDIR", "XDG_RUNTIME_DIR",
	"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
	"MLX_ENABLE_CACHE_THRASHING_CHECK", "MLX_CUDA_GRAPH_CACHE_SIZE", "MLX_PTX_CACHE_DIR", "MLX_ENABLE_TF32", "TERM", "TERM_PROGRAM",
	"LC_TERMINAL", "KITTY_WINDOW_ID", "WEZTERM_PANE", "GHOSTTY_RESOURCES_DIR", "TMUX", "STY", "ZELLIJ",
}

// A diagnosis is what doctor finds.
type diagnosis struct {
	Program     string            `json:"program"`
	Tokenizer   bool              `json:"tokenizer"`
	Models      []cli.ListedModel `json:"models"`
	Cache       cacheInfo         `json:"cache"`
	Memory      memoryInfo        `json:"memory"`
	Pictures    termpic.Protocol  `json:"terminal_pictures"`
	Environment map[string]string `json:"environment"`
	MLX         *mlxInfo          `json:"mlx"`
	Problem     string            `json:"problem,omitempty"`
	Advice      []string          `json:"advice"`
	Warm        float64           `json:"warm_seconds,omitempty"`

	tty bool // whether standard error is a terminal
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
	Version string         `json:"version"`
	MLXC    string         `json:"mlxc"`
	MLX     string         `json:"mlx,omitempty"` // unknown if the system's loader found it
	BLAS    string         `json:"blas,omitempty"`
	Devices []deviceInfo   `json:"devices"`
	Kernels kernelsInfo    `json:"kernels"`
	Tuning  []tuningInfo   `json:"tuning"`
	MacOS   *cli.MacOSInfo `json:"macos,omitempty"`

	free   uint64 // main memory, 0 if unknown
	advice string // about the system's version, or ""
}

type deviceInfo struct {
	Device       string `json:"device"`
	Standard     bool   `json:"standard"`
	Name         string `json:"name,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	Memory       uint64 `json:"memory_bytes"`
	WorkingSet   uint64 `json:"working_set_bytes,omitempty"` // as in mlx.DeviceInfo
	LargestArray uint64 `json:"largest_array_bytes,omitempty"`
	Dtype        string `json:"dtype"` // the default one of computations
	DtypeReason  string `json:"dtype_reason,omitempty"`
}

// diagnose checks everything. It returns an error if MLX is unusable.
func diagnose(ctx context.Context, terminal io.Writer) (*diagnosis, error) {
	d := &diagnosis{Program: cli.Version(), Tokenizer: tokenizer.Available, Environment: map[string]string{}, Advice: []string{}}
	advise := func(format string, args ...any) { d.Advice = append(d.Advice, fmt.Sprintf(format, args...)) }
	if !d.Tokenizer {
		advise("this program was built without the tokenizer and cannot read prompts: " +
			"build it with CGO_ENABLED=1 after make setup (make build does both)")
	}
	d.diagnoseModels(advise)
	d.Memory.Total = cli.SystemMemory()
	d.tty = ui.IsTerminal(terminal)
	d.Pictures = termpic.Open(ctx, terminal, termpic.Auto).Protocol()
	for _, name := range DoctorVariables {
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
		return d, cli.Coded(cli.ExitLibrary, err)
	}
	if cli.SlowBLAS(lib) {
		advise("%s", cli.BlasHint)
	}
	if d.MLX.advice != "" {
		advise("%s", d.MLX.advice)
	}
	return d, nil
}

// diagnoseModels checks the models and the cache.
func (d *diagnosis) diagnoseModels(advise func(format string, args ...any)) {
	var err error
	if d.Models, err = cli.ListModels(); err != nil {
		advise("%v", err)
	}
	for _, m := range d.Models {
		switch {
		case !m.Here && m.Name == cli.DefaultModel:
			advise("the default model, %s, is not downloaded (to download it: %s)", m.Name, m.Get)
		case m.Here && m.Supported && !m.Complete:
			text := fmt.Sprintf("%s is incomplete: %s", m.Name, strings.Join(m.Problems, "; "))
			if m.Get != "" {
				text += " (to download what is missing: " + m.Get + ")"
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

// describeMLX describes an open MLX and its devices.
func describeMLX(ctx context.Context, lib mlx.Library) (*mlxInfo, error) {
	m := &mlxInfo{MLXC: lib.MLXC, MLX: lib.MLX, BLAS: lib.BLAS}
	err := mlx.Do(ctx, func() (err error) {
		m.Version, m.free = mlx.Version(), uint64(mlx.FreeMemory(mlx.CPU))
		for _, d := range mlx.Devices() {
			m.Devices = append(m.Devices, describeDevice(d))
		}
		m.Tuning, err = describeTuning(lib)
		m.Kernels = describeKernels()
		m.MacOS, m.advice = cli.MacOSFactsOf(lib).Describe()
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// describeDevice describes one of the devices of MLX, or of another machine.
func describeDevice(d mlx.DeviceInfo) deviceInfo {
	memory := uint64(d.Memory)
	if d.Device == mlx.CPU {
		memory = cmp.Or(memory, cli.SystemMemory())
	}
	dtype, reason := d.ComputeDtype()
	return deviceInfo{
		Device: d.Device.String(), Standard: d.Device == mlx.CurrentDevice(), Name: d.Name,
		Architecture: d.Architecture, Memory: memory, WorkingSet: d.WorkingSet, LargestArray: d.LargestArray,
		Dtype: dtype.String(), DtypeReason: reason,
	}
}

// text describes the device in one line.
func (d deviceInfo) text() string {
	parts := []string{d.Device}
	if d.Standard {
		parts[0] += " (default)"
	}
	for _, s := range []string{d.Name, d.Architecture} {
		if s != "" && s != d.Device {
			parts = append(parts, s)
		}
	}
	if d.Memory > 0 {
		parts = append(parts, units.Bytes(int64(d.Memory)))
	}
	if d.WorkingSet > 0 {
		parts = append(parts, fmt.Sprintf("%s for all arrays and %s for one", units.Bytes(int64(d.WorkingSet)),
			units.Bytes(int64(d.LargestArray))))
	}
	parts = append(parts, "computes in "+d.Dtype)
	text := strings.Join(parts, ", ")
	if d.DtypeReason != "" {
		text += ": " + d.DtypeReason
	}
	return text
}

func (d *diagnosis) Text(p *ui.Page) {
	line := p.Fields(12)
	line("program", "%s", d.Program)
	if d.Tokenizer {
		line("tokenizer", "built in")
	} else {
		line("tokenizer", "missing")
	}
	d.modelLines(line)
	d.memoryLines(line)
	switch {
	case d.Pictures != termpic.None:
		line("terminal", "shows images (%s)", d.Pictures)
	case d.tty:
		line("terminal", "shows no images")
	default:
		line("terminal", "standard error is not a terminal")
	}
	for _, name := range DoctorVariables {
		if value, set := d.Environment[name]; set {
			line("environment", "%s=%s", name, value)
		}
	}
	if d.MLX == nil {
		line("mlx", "unusable")
	} else {
		d.MLX.lines(line)
	}
	if d.Warm > 0 {
		line("warm", "%.1f s", d.Warm)
	}
	p.Printf("\n")
	if len(d.Advice) == 0 && d.MLX != nil {
		p.Printf("nothing is missing\n")
	}
	for _, a := range d.Advice {
		p.Printf("%s\n", quote.Printable(a))
	}
}

func (d *diagnosis) modelLines(line ui.Field) {
	missing := 0
	for _, m := range d.Models {
		switch {
		case m.Builtin:
			line("model", "%s, built in (%s): %s", m.Name, units.Bytes(m.Bytes), m.About)
		case !m.Here && m.Name == cli.DefaultModel:
			line("model", "%s, not downloaded (to download it: %s)", m.Name, m.Get)
		case !m.Here:
			missing++
		default:
			line("model", "%s, %s (%s): %s", m.Name, m.State(), units.Bytes(m.Bytes), m.Where())
		}
	}
	if missing > 0 {
		line("model", "%d more that are not downloaded (gomflux models lists them)", missing)
	}
}

func (d *diagnosis) memoryLines(line ui.Field) {
	if d.Cache.Path != "" {
		text := catalog.TildePath(d.Cache.Path)
		if !d.Cache.Exists {
			text += ", does not exist yet"
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
}

// lines writes libraries and devices.
func (m *mlxInfo) lines(line ui.Field) {
	line("mlx-c", "ABI %s, %s", mlx.ABI, m.MLXC)
	line("mlx", "%s, %s", m.Version, cmp.Or(m.MLX, "found by the system's loader"))
	switch {
	case m.BLAS != "":
		line("blas", "%s", m.BLAS)
	case runtime.GOOS == "linux":
		line("blas", "the slow one that MLX was built with")
	}
	for _, device := range m.Devices {
		line("device", "%s", device.text())
	}
	m.MacOS.Lines(line)
	m.Kernels.lines(line)
	tuningLines(m.Tuning, line)
}
