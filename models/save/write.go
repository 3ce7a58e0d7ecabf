package save

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// A writer carries out a plan.
type writer struct {
	*plan
	dir    string
	done   int64 // bytes of tensors that were written
	report *Report
}

// write writes the folder.
func (w *writer) write() error {
	folders := map[string][]*savedComponent{}
	for _, part := range w.parts {
		dir := w.folderOf(part.Dir)
		folders[dir] = append(folders[dir], part)
	}
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		if err := w.writeWeights(filepath.Join(w.dir, dir), folders[dir]); err != nil {
			return err
		}
	}
	if err := w.copyOthers(); err != nil {
		return err
	}
	if w.layout == LayoutMFlux {
		return writeMFluxModel(w.plan, w.dir)
	}
	return nil
}

// writeWeights writes the files of a folder, which several components share only in mflux's layout.
func (w *writer) writeWeights(dir string, parts []*savedComponent) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	names, metadata := w.fileNaming(parts[0])
	where := map[string]string{}
	written, size := 0, int64(0)
	for _, part := range parts {
		found := make([]nn.Found, len(part.entries))
		for i, e := range part.entries {
			found[i] = e.found
		}
		reader, err := nn.NewReader(part.ck, found)
		if err != nil {
			return err
		}
		files := shards(part.entries, maxShard)
		for i, entries := range files {
			name := names.of(written+i, len(files))
			for _, e := range entries {
				for _, slot := range e.slots {
					where[slot.Name] = name
				}
				size += e.bytes()
			}
			if err := w.writeShard(filepath.Join(dir, name), part, reader, entries, metadata); err != nil {
				return err
			}
		}
		written += len(files)
	}
	w.report.Files += written
	if !names.numbered && written == 1 {
		return nil
	}
	about := map[string]any{"total_size": size}
	if names.numbered {
		for key, value := range metadata {
			about[key] = value
		}
	}
	return writeNewJSON(filepath.Join(dir, names.index()), map[string]any{"metadata": about, "weight_map": where})
}

// fileNaming returns the naming of a component's files, and their metadata.
func (w *writer) fileNaming(part *savedComponent) (naming, map[string]string) {
	switch {
	case w.layout == LayoutMFlux:
		return naming{stem: "model", numbered: true}, map[string]string{
			"quantization_level": cmp.Or(w.level, "None"), "mflux_version": mfluxVersion,
		}
	case part.Class.Library == "diffusers":
		return naming{stem: "diffusion_pytorch_model"}, map[string]string{"format": "pt"}
	}
	return naming{stem: "model"}, map[string]string{"format": "pt"}
}

// writeShard writes one of a component's files.
func (w *writer) writeShard(name string, part *savedComponent, reader *nn.Reader, entries []*entry, metadata map[string]string) error {
	var slots []checkpoint.Tensor
	for _, e := range entries {
		slots = append(slots, e.slots...)
	}
	file, err := checkpoint.Create(name, slots, metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	defer file.Discard()
	put := func(data []byte) error {
		w.done += int64(len(data))
		if w.o.Progress != nil {
			w.o.Progress(part.Name, w.done, w.total)
		}
		_, err := file.Write(data)
		return err
	}
	for _, e := range entries {
		mlx.WithScope(func() {
			err = w.writeEntry(part, reader, e, put)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, oserr.Bare(err))
		}
		mlx.ClearCache() // the cache would keep memory for every size of tensor
		mlx.StopPoint()
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	return nil
}

// writeEntry reads a tensor, quantizes it if planned, and writes it.
func (w *writer) writeEntry(part *savedComponent, reader *nn.Reader, e *entry, put func([]byte) error) (err error) {
	off := 0.0
	switch {
	case e.quantize == nil:
		return e.writePlain(e.read(reader), put)
	case e.kept():
		err = e.writeKept(reader, put)
	default:
		off, err = e.writeQuantized(e.read(reader), put)
	}
	if err != nil {
		return err
	}
	w.report.Layers = append(w.report.Layers, Layer{
		Component: part.Dir, Name: component.Module(e.key), Quantization: *e.quantize, Bytes: e.bytes(), Error: off, Kept: e.kept(),
	})
	return nil
}
