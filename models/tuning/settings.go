package tuning

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// Settings are what differs from the defaults of a device. The zero value is the defaults.
type Settings struct {
	// PackedRows has, by the name of a quantization with its default group, the largest number of
	// rows that are multiplied with a quantized matrix as it is. AllRows stands for any number.
	PackedRows map[string]int `json:"packed_rows,omitempty"`
	// Dtype is the default dtype of computations: bfloat16 or float16.
	Dtype string `json:"dtype,omitempty"`
	// Compile is how the transformer is compiled on a GPU: off, unfused or fused.
	Compile string `json:"compile,omitempty"`
	// Without lists operations of gomflux in place of which MLX's are used, as
	// [mlx.AllReplacements] names them, sorted.
	Without []string `json:"without,omitempty"`
}

// AllRows in Settings.PackedRows is no limit.
const AllRows = math.MaxInt32

// How a transformer is compiled.
const (
	CompileOff     = "off"
	CompileUnfused = "unfused"
	CompileFused   = "fused"
)

var (
	tunedDtypes  = map[string]mlx.Dtype{mlx.BFloat16.String(): mlx.BFloat16, mlx.Float16.String(): mlx.Float16}
	compileNames = []string{CompileOff, CompileUnfused, CompileFused}
	compileModes = map[string]mlx.CompileMode{CompileOff: mlx.Uncompiled, CompileUnfused: mlx.Unfused, CompileFused: mlx.Fused}
)

// IsDefault reports whether nothing differs from the defaults.
func (s Settings) IsDefault() bool { return s.String() == "" }

// String returns the settings as words that [Parse] reads, in a fixed order, and "" for the
// defaults: packed-4=512 dtype=float16 compile=off without=bias_sum,upsample.
func (s Settings) String() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(s.PackedRows)) {
		rows := strconv.Itoa(s.PackedRows[name])
		if s.PackedRows[name] == AllRows {
			rows = "all"
		}
		words = append(words, "packed-"+name+"="+rows)
	}
	if s.Dtype != "" {
		words = append(words, "dtype="+s.Dtype)
	}
	if s.Compile != "" {
		words = append(words, "compile="+s.Compile)
	}
	if len(s.Without) > 0 {
		words = append(words, "without="+strings.Join(s.Without, ","))
	}
	return strings.Join(words, " ")
}

// maxText is the length of the longest text that [Parse] reads, in bytes.
const maxText = 1000

// Parse reads the text of [Settings.String].
func Parse(text string) (s Settings, err error) {
	if len(text) > maxText {
		return s, fmt.Errorf("tuned settings of %d bytes: expected at most %d", len(text), maxText)
	}
	for word := range strings.FieldsSeq(text) {
		key, value, ok := strings.Cut(word, "=")
		name, packed := strings.CutPrefix(key, "packed-")
		switch {
		case !ok || value == "":
			return Settings{}, fmt.Errorf("tuned setting %q: expected name=value", word)
		case packed:
			rows := AllRows
			if value != "all" {
				if rows, err = strconv.Atoi(value); err != nil {
					return Settings{}, fmt.Errorf("tuned setting %q: expected a number of rows, or all", word)
				}
			}
			if s.PackedRows == nil {
				s.PackedRows = map[string]int{}
			}
			s.PackedRows[name] = rows
		case key == "dtype":
			s.Dtype = value
		case key == "compile":
			s.Compile = value
		case key == "without":
			s.Without = strings.Split(value, ",")
		default:
			return Settings{}, fmt.Errorf("tuned setting %q is not known", key)
		}
	}
	if err := s.validate(); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// validate returns an error if a value is not known.
func (s Settings) validate() error {
	for name, rows := range s.PackedRows {
		if !slices.Contains(component.Quantizations, name) {
			return fmt.Errorf("packed_rows of %q: expected %s", name, strings.Join(component.Quantizations, ", "))
		}
		if rows < 0 || rows > AllRows {
			return fmt.Errorf("packed_rows of %s is %d: expected 0 to %d", name, rows, AllRows)
		}
	}
	if _, ok := tunedDtypes[s.Dtype]; s.Dtype != "" && !ok {
		return fmt.Errorf("dtype %q: expected bfloat16 or float16", s.Dtype)
	}
	if s.Compile != "" && !slices.Contains(compileNames, s.Compile) {
		return fmt.Errorf("compile %q: expected %s", s.Compile, strings.Join(compileNames, ", "))
	}
	known := mlx.AllReplacements()
	for i, name := range s.Without {
		switch {
		case !slices.Contains(known, name):
			return fmt.Errorf("without %q: expected %s", name, strings.Join(known, ", "))
		case i > 0 && s.Without[i-1] >= name:
			return fmt.Errorf("without %s after %s: expected sorted names, each once", name, s.Without[i-1])
		}
	}
	return nil
}

// inUse are the settings of [Use]. They belong to the MLX thread.
var inUse struct {
	device   mlx.Device
	settings Settings
}

// Use computes with the settings on a device, in all models that are loaded afterwards. The zero
// settings are the defaults. It must be called on the MLX thread.
func Use(device mlx.Device, s Settings) error {
	if err := s.validate(); err != nil {
		return err
	}
	rows := map[mlx.Quantization]int{}
	for name, n := range s.PackedRows {
		q, err := component.ParseQuantization(name, 0)
		if err != nil {
			return err
		}
		rows[*q] = n
	}
	if err := mlx.TurnOff(s.Without...); err != nil {
		return err
	}
	nn.SetPackedRows(device, rows)
	inUse.device, inUse.settings = device, s
	return nil
}

// InUse returns the settings that [Use] set for a device. It must be called on the MLX thread.
func InUse(device mlx.Device) Settings {
	if device != inUse.device {
		return Settings{}
	}
	return inUse.settings
}

// Dtype returns the dtype in which models compute on a device unless they are loaded for another.
func Dtype(device mlx.Device) mlx.Dtype {
	if d, ok := tunedDtypes[InUse(device).Dtype]; ok {
		return d
	}
	return device.ComputeDtype()
}

// Compile returns how a transformer is compiled on a device. On the CPU it is not, since MLX would
// call a C++ compiler and gain no speed. On CUDA custom kernels do what fusing would gain, if all of
// them work.
func Compile(device mlx.Device) mlx.CompileMode {
	return compileModes[cmp.Or(InUse(device).Compile, defaultCompile(device))]
}

func defaultCompile(device mlx.Device) string {
	kernels := mlx.CheckKernels() // before they are traced
	switch {
	case device == mlx.CPU:
		return CompileOff
	case kernels && device.Backend() == mlx.BackendCUDA:
		return CompileUnfused
	}
	return CompileFused
}
