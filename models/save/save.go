package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/lora"
)

// PhaseSave is that of [Save]: Bytes of TotalBytes are written.
const PhaseSave Phase = "save"

// The layouts that Save writes.
const (
	// LayoutDiffusers is what from_pretrained of diffusers reads. It has no
	// quantized weights.
	LayoutDiffusers = "diffusers"
	// LayoutMFlux is what mflux reads, as its mflux-save writes it, with the
	// configs of diffusers beside it.
	LayoutMFlux = "mflux"
)

// mfluxVersion is the version of mflux whose layout is written.
const mfluxVersion = "0.24.0"

// maxShard is how large a file of weights gets, unless one tensor is larger.
var maxShard int64 = 2 << 30

// SaveOptions say how a model is saved.
type SaveOptions struct {
	// Layout is LayoutDiffusers or LayoutMFlux; "" for the latter if weights are
	// quantized and for the former if none are.
	Layout string
	// Quantize is how weights are packed; nil for not at all. The policy is that of
	// [LoadOptions.Quantize]. Those that are quantized already stay as they are, but
	// in diffusers' layout. Of all modes mflux reads affine alone.
	Quantize *mlx.Quantization
	// Dtype is that of all other floating-point tensors, bfloat16 if it is nil;
	// KeepDtypes leaves each in its own.
	Dtype      *mlx.Dtype
	KeepDtypes bool
	// LoRAs are added to the weights before these are quantized.
	LoRAs    []lora.Spec
	Progress func(Progress)
}

// A SaveReport says what was saved.
type SaveReport struct {
	Folder       string
	Layout       string
	Quantization string // as ParseQuantization takes it; "" if nothing is quantized
	Bytes        int64  // of all tensors
	Files        int    // with weights
	// Layers are the quantized ones, in the order of components and names.
	Layers []SavedLayer
	// Left lists tensors, with their components, that the layout has no place for,
	// and that no picture needs.
	Left  []string
	LoRAs []lora.Report
}

// A SavedLayer is a quantized layer of a saved model.
type SavedLayer struct {
	Component, Name string
	mlx.Quantization
	Bytes int64
	// Error is ‖W-Ŵ‖/‖W‖ of the weights W and what they are unpacked to. It is 0 if
	// Kept is set, of a layer that was quantized before.
	Error float64
	Kept  bool
}

// Save writes a model to a folder, which must not be there yet, or be empty. It
// reads and writes one tensor after the other. The folder appears when all of it
// is written: whoever stops it before finds nothing there. It must run on the MLX
// thread, in a job whose context stops it.
func Save(src *Source, dir string, o SaveOptions) (*SaveReport, error) {
	if o.Quantize != nil {
		if o.Layout == LayoutDiffusers {
			return nil, requestErrorf("diffusers' layout has no quantized weights of this kind: leave the layout or the quantization out")
		}
		if err := checkQuantization(*o.Quantize); err != nil {
			return nil, err
		}
	}
	if !slices.Contains([]string{"", LayoutDiffusers, LayoutMFlux}, o.Layout) {
		return nil, requestErrorf("layout %q: expected %s or %s", o.Layout, LayoutDiffusers, LayoutMFlux)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := checkTarget(dir); err != nil {
		return nil, err
	}
	s := &saver{src: src, o: o, report: &SaveReport{Folder: dir, Layout: o.Layout}}
	defer s.close()
	if err := s.plan(); err != nil {
		return nil, err
	}
	if err := checkRoom(dir, s.total); err != nil {
		return nil, err
	}
	// a folder beside it, so that giving it its name is one step
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	removeAbandoned(filepath.Dir(dir))
	s.dir, err = os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+incomplete)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(s.dir) // after a panic too, which is how a job is interrupted
	if release, err := filelock.TryFolder(s.dir); err == nil {
		defer release()
	}
	if err := s.write(); err != nil {
		return nil, err
	}
	os.Remove(dir) // if it is there, and empty
	err = os.Chmod(s.dir, 0o755)
	if err == nil {
		err = os.Rename(s.dir, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, oserr.Bare(err))
	}
	return s.report, nil
}

// incomplete is what folders that are being written end in.
const incomplete = ".gomflux-*.incomplete"

// removeAbandoned removes what others who were killed have left beside what they
// wanted to save.
func removeAbandoned(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if ok, _ := filepath.Match(".*"+incomplete, entry.Name()); !ok || !entry.IsDir() {
			continue
		}
		abandoned := filepath.Join(dir, entry.Name())
		if release, err := filelock.TryFolder(abandoned); err == nil {
			os.RemoveAll(abandoned)
			release()
		}
	}
}

// checkTarget makes sure that a folder can be made.
func checkTarget(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return requestErrorf("%s: expected a folder to be made, found something: %w", dir, oserr.Bare(err))
	case len(entries) > 0:
		return requestErrorf("%s: the folder is there already, and not empty: give another one, or remove it", dir)
	}
	return nil
}

// freeBytes is what a disk has room for; 0 if it does not tell.
var freeBytes = func(dir string) int64 {
	free, _ := disk.Free(dir)
	return free
}

func checkRoom(dir string, need int64) error {
	if free := freeBytes(dir); free > 0 && need > free {
		return fmt.Errorf("%s: the model takes %.2f GB, and the disk has %.2f GB free", dir, float64(need)/1e9, float64(free)/1e9)
	}
	return nil
}
