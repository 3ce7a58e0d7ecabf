package mlx

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// A hostOperation is a kind of operation that package host computes. Its text is the name for
// [TurnOff].
type hostOperation string

const (
	hostActivations hostOperation = "host_activations"
	hostNorms       hostOperation = "host_norms"
	hostGroupNorms  hostOperation = "host_group_norms"
	hostRope        hostOperation = "host_rope"
	// Convolutions and attention cannot be turned off: those of MLX need many times the memory.
	hostAlways hostOperation = ""
)

// hostOff has the operations that are turned off. It belongs to the MLX thread.
var hostOff = map[hostOperation]bool{}

// Replacements lists the operations of gomflux that are used in place of MLX's on the running job's
// device, by the names that [TurnOff] takes: custom kernels on a GPU, and parts of package host on
// a Linux CPU.
func Replacements() (names []string) {
	CheckKernels()
	for _, k := range kernels {
		if kernelRunners[device.Backend()] != nil && k.checked && k.failed == nil {
			names = append(names, k.name)
		}
	}
	for _, o := range hostReplacements {
		if device == CPU && useHost {
			names = append(names, string(o))
		}
	}
	return names
}

var hostReplacements = []hostOperation{hostActivations, hostNorms, hostGroupNorms, hostRope}

// AllReplacements lists the names that [TurnOff] takes, those of other devices too.
func AllReplacements() (names []string) {
	for _, k := range kernels {
		names = append(names, k.name)
	}
	for _, o := range hostReplacements {
		names = append(names, string(o))
	}
	return names
}

// TurnOff computes the named operations with those of MLX until the next call, and all others as
// before the first call. Unknown names are an error. It must be called on the MLX thread.
func TurnOff(names ...string) error {
	for _, name := range names {
		if !slices.Contains(AllReplacements(), name) {
			return fmt.Errorf("no operation %q can be turned off", name)
		}
	}
	maps.DeleteFunc(hostOff, func(hostOperation, bool) bool { return true })
	for _, k := range kernels {
		k.off = slices.Contains(names, k.name)
	}
	for _, o := range hostReplacements {
		if slices.Contains(names, string(o)) {
			hostOff[o] = true
		}
	}
	return nil
}

// ReplacementsVersion identifies the code of the operations that [AllReplacements] lists.
func ReplacementsVersion() string {
	const hostVersion = 1 // to be raised when package host becomes faster or slower
	sum := sha256.New()
	fmt.Fprintln(sum, hostVersion)
	err := fs.WalkDir(kernelFiles, "kernels", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := kernelFiles.ReadFile(name)
		fmt.Fprintln(sum, name, len(text))
		sum.Write(text)
		return err
	})
	if err != nil {
		panic(err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
