package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/picture"
)

// SkippedText returns the number of predictions that used the step cache.
func SkippedText(skipped, negative []int) string {
	text := fmt.Sprintf("%d skipped", len(skipped))
	if len(negative) > 0 {
		text += fmt.Sprintf(", and %d for the negative prompt", len(negative))
	}
	return text
}

// LoRAText describes what a LoRA changes.
func LoRAText(l gomflux.LoRAReport) string {
	var parts []string
	for _, component := range SortedKeys(l.Modules) {
		parts = append(parts, fmt.Sprintf("%s of the %s", ui.Plural(l.Modules[component], "module"), component))
	}
	return fmt.Sprintf("LoRA %s, scale %v: %s", catalog.TildePath(l.Path), l.Scale, strings.Join(parts, ", "))
}

// Inpainted reports whether settings are of an image of which a part was generated.
func Inpainted(s *picture.Settings) bool { return s.Mask != nil || s.Expand != nil }

// Shortened returns at most n characters of a text.
func Shortened(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// TunedText describes settings.
func TunedText(s tuning.Settings) string {
	if s.IsDefault() {
		return "the defaults, nothing is clearly faster"
	}
	return s.String()
}

// TrimTensorSuffix removes the extension of a file of tensors from a name.
func TrimTensorSuffix(name string) string {
	for _, suffix := range []string{".safetensors", ".npy", ".npz"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// LibraryPaths lists the files of a library on one line.
func LibraryPaths(lib mlx.Library) string {
	known := slices.DeleteFunc([]string{lib.MLXC, lib.MLX, lib.BLAS}, func(path string) bool { return path == "" })
	return strings.Join(known, ", ")
}
