package gomflux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// SaveReport says what was saved.
type SaveReport = models.SaveReport

// SavedLayer is a quantized layer of a saved model.
type SavedLayer = models.SavedLayer

// PhaseSave is that of [Save]: Bytes of TotalBytes are written.
const PhaseSave = models.PhaseSave

// SaveOptions say how a model is saved.
type SaveOptions struct {
	// Layout is "diffusers", which has no quantized weights, or "mflux", which
	// mflux reads; "" is the latter if weights are quantized, otherwise the former.
	Layout string
	// Quantize and GroupSize are those of OpenOptions.
	Quantize  string
	GroupSize int
	// Dtype is that of what is not quantized: "bfloat16", which "" stands for,
	// "float16" or "float32"; "keep" leaves every tensor its own.
	Dtype string
	// LoRAs are added to the weights before these are quantized.
	LoRAs []LoRA
	// BaseModel is that of OpenOptions.
	BaseModel string
	// Device is what quantizes, as that of OpenOptions.
	Device string
	// Overwrite lets the model take the place of another one in a folder.
	Overwrite bool
	// Progress is called on the caller's goroutine.
	Progress func(Progress)
}

// Save writes a model, which is named as for [Open], to a folder. The folder
// appears when all of it is written. One that is there, and not empty, is an
// [ErrRequest], unless it holds a model and Overwrite is set; then it is replaced
// at the end. What the disk has no room for is an error before the first byte.
func Save(ctx context.Context, model, folder string, o *SaveOptions) (*SaveReport, error) {
	if o == nil {
		o = &SaveOptions{}
	}
	open := &OpenOptions{Device: o.Device, Quantize: o.Quantize, GroupSize: o.GroupSize, Progress: o.Progress}
	if o.Dtype != "keep" {
		open.Dtype = o.Dtype
	}
	load, err := open.load()
	if err != nil {
		return nil, err
	}
	source, err := models.FindWith(model, o.BaseModel)
	if err != nil {
		return nil, err
	}
	specs, _, err := findLoRAs(o.LoRAs)
	if err != nil {
		return nil, err
	}
	target := folder
	replaces, err := o.replaces(folder)
	if err != nil {
		return nil, err
	}
	if replaces {
		target, err = os.MkdirTemp(filepath.Dir(filepath.Clean(folder)), "."+filepath.Base(folder)+".gomflux-*.new")
		if err != nil {
			return nil, err
		}
		os.Remove(target) // only its name is needed, and a kill leaves nothing then
		defer os.RemoveAll(target)
	}
	var report *SaveReport
	err = mlx.Do(ctx, func() (err error) {
		if load.Device != nil {
			if err := mlx.Use(*load.Device); err != nil {
				return err
			}
		}
		report, err = models.Save(source, target, models.SaveOptions{
			Layout: o.Layout, Quantize: load.Quantize, Dtype: load.Dtype, KeepDtypes: o.Dtype == "keep", LoRAs: specs, Progress: load.Progress,
		})
		return err
	})
	if err == nil && replaces {
		err = replaceFolder(folder, target)
	}
	if err != nil {
		return nil, err
	}
	report.Folder = folder
	return report, nil
}

// replaces says whether a folder is to be replaced: it must hold a model.
func (o *SaveOptions) replaces(folder string) (bool, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return false, nil
	}
	if err != nil {
		return false, nil // which models.Save refuses
	}
	if !o.Overwrite {
		return false, models.BadRequest(fmt.Errorf("%s: is there, and not empty (give another folder, or --overwrite to replace the model in it)", folder))
	}
	for _, name := range []string{"model_index.json", "mflux_model.json"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return true, nil
		}
	}
	return false, models.BadRequest(fmt.Errorf("%s: is there, and no model's folder, so it is left alone", folder))
}

// replaceFolder puts a folder in the place of another one.
func replaceFolder(folder, by string) error {
	old := by + ".old"
	if err := os.Rename(folder, old); err != nil {
		return err
	}
	if err := os.Rename(by, folder); err != nil {
		return errors.Join(err, os.Rename(old, folder))
	}
	return os.RemoveAll(old)
}
