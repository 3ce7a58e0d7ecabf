package models

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/filehash"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// write writes the folder.
func (s *saver) write() error {
	s.report.Quantization = s.level()
	s.report.Bytes = s.total
	for _, part := range s.parts {
		if err := s.writePart(part); err != nil {
			return err
		}
	}
	if err := s.copyOthers(); err != nil {
		return err
	}
	if s.report.Layout == LayoutMFlux {
		return s.describe()
	}
	return nil
}

// writePart writes the files of a component.
func (s *saver) writePart(part *savedPart) error {
	dir := filepath.Join(s.dir, part.dir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	found := make([]nn.Found, len(part.entries))
	for i, e := range part.entries {
		found[i] = e.found
	}
	reader, err := nn.NewReader(part.ck, found)
	if err != nil {
		return err
	}
	files := shards(part.entries, func(e *savedEntry) []checkpoint.Tensor { return e.slots }, maxShard)
	stem := "model"
	if class := layout.Class(part.class); strings.HasPrefix(class, "Autoencoder") || strings.HasSuffix(class, "Transformer2DModel") {
		stem = "diffusion_pytorch_model" // as diffusers itself calls them
	}
	metadata, about := map[string]string{"format": "pt"}, map[string]any{}
	if s.report.Layout == LayoutMFlux {
		stem = "model"
		metadata = map[string]string{"quantization_level": cmp.Or(s.report.Quantization, "None"), "mflux_version": mfluxVersion}
		for key, value := range metadata {
			about[key] = value
		}
	}
	where := map[string]string{}
	var size int64
	for i, entries := range files {
		name := stem + ".safetensors"
		switch {
		case s.report.Layout == LayoutMFlux:
			name = fmt.Sprintf("%d.safetensors", i)
		case len(files) > 1:
			name = fmt.Sprintf("%s-%05d-of-%05d.safetensors", stem, i+1, len(files))
		}
		var slots []checkpoint.Tensor
		for _, e := range entries {
			slots = append(slots, e.slots...)
			for _, slot := range e.slots {
				where[slot.Name] = name
				size += slot.Bytes()
			}
		}
		if err := s.writeShard(part, reader, filepath.Join(dir, name), entries, slots, metadata); err != nil {
			return err
		}
		s.report.Files++
	}
	if s.report.Layout == LayoutMFlux || len(files) > 1 {
		about["total_size"] = size
		return writeNewJSON(filepath.Join(dir, stem+".safetensors.index.json"), map[string]any{"metadata": about, "weight_map": where})
	}
	return nil
}

func (s *saver) writeShard(part *savedPart, reader *nn.Reader, name string, entries []*savedEntry, slots []checkpoint.Tensor, metadata map[string]string) error {
	file, err := checkpoint.Create(name, slots, metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	defer file.Discard()
	for _, e := range entries {
		mlx.Scope(func() *mlx.Array {
			err = s.writeEntry(part, reader, file, e)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, oserr.Bare(err))
		}
		mlx.ClearCache() // which would keep the memory of all tensors' sizes
		mlx.StopPoint()
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	return nil
}

// writeEntry reads a tensor and writes it as it is planned.
func (s *saver) writeEntry(part *savedPart, reader *nn.Reader, file *checkpoint.Writer, e *savedEntry) (err error) {
	put := func(data []byte) error {
		s.done += int64(len(data))
		if s.o.Progress != nil {
			s.o.Progress(Progress{Phase: PhaseSave, Component: part.name, Bytes: s.done, TotalBytes: s.total})
		}
		_, err := file.Write(data)
		return err
	}
	off := 0.0
	if e.kept() {
		for _, a := range reader.Packed(e.found).Arrays() {
			if err := put(a.Bytes()); err != nil {
				return err
			}
		}
	} else {
		a := reader.Plain(e.found)
		if e.adapt != nil {
			a = e.adapt(a)
			mlx.Eval(a)
		}
		if e.pack == nil {
			return e.writePlain(a, put)
		}
		if off, err = e.writePacked(a, put); err != nil {
			return err
		}
	}
	layer := SavedLayer{Component: part.dir, Name: module(e.key), Quantization: *e.pack, Error: off, Kept: e.kept()}
	for _, slot := range e.slots {
		layer.Bytes += slot.Bytes()
	}
	s.report.Layers = append(s.report.Layers, layer)
	return nil
}

// writePlain writes a tensor that is not packed.
func (e *savedEntry) writePlain(a *mlx.Array, put func([]byte) error) error {
	return inRows(a, func(rows *mlx.Array) error {
		if rows.Dtype() != e.dtype {
			rows = rows.AsType(e.dtype)
		}
		if err := checkFinite(e, rows); err != nil {
			return err
		}
		if e.form != nil {
			rows = e.form(rows)
		}
		return put(rows.Bytes())
	})
}

// writePacked packs a matrix and writes it, and returns the relative error of what
// is written.
func (e *savedEntry) writePacked(a *mlx.Array, put func([]byte) error) (float64, error) {
	var rest [2][]byte // scales and biases, which come behind the whole of the packed weights
	var off, whole float64
	if err := inRows(a, func(rows *mlx.Array) error {
		plain := rows.AsType(mlx.Float32)
		rows = rows.AsType(e.dtype)
		if err := checkFinite(e, rows); err != nil {
			return err
		}
		q := rows.Quantize(*e.pack)
		off += squares(q.Dequantize(mlx.Float32).Sub(plain))
		whole += squares(plain)
		for i, part := range q.Arrays()[1:] {
			rest[i] = append(rest[i], part.Bytes()...)
		}
		return put(q.Packed.Bytes())
	}); err != nil {
		return 0, err
	}
	for _, data := range rest[:len(e.slots)-1] {
		if err := put(data); err != nil {
			return 0, err
		}
	}
	if whole == 0 {
		return 0, nil
	}
	return math.Sqrt(off / whole), nil
}

// rowsBytes is how much of a tensor is packed and written at a time.
var rowsBytes = 8 << 20

// inRows calls f with a tensor, some of its rows at a time.
func inRows(a *mlx.Array, f func(rows *mlx.Array) error) error {
	if a.Ndim() == 0 || a.Nbytes() <= rowsBytes {
		return f(a)
	}
	n := a.Dim(0)
	step := max(1, int(int64(n)*int64(rowsBytes)/int64(a.Nbytes())))
	for at := 0; at < n; at += step {
		var err error
		mlx.Scope(func() *mlx.Array {
			err = f(a.Slice(0, at, min(at+step, n)))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkFinite refuses NaN and infinite weights: no picture could be made of them.
func checkFinite(e *savedEntry, a *mlx.Array) error {
	if a.AllFinite() {
		return nil
	}
	return fmt.Errorf("%s: tensor %s: has NaN or infinite values as %v%s", e.found.File, e.found.Name, a.Dtype(), halfHint(a.Dtype()))
}

// copyOthers copies the files of the model that are no weights.
func (s *saver) copyOthers() error {
	copyFile := func(name string) error {
		data, err := checkpoint.ReadFile(s.src.FS, name, 256<<20)
		if err != nil {
			return err
		}
		return writeNew(filepath.Join(s.dir, filepath.FromSlash(name)), data)
	}
	if origin := s.src.origin(); origin == "" {
		if err := copyFile(indexFile); err != nil {
			return err
		}
	} else {
		var members map[string]any
		if err := checkpoint.ReadJSON(s.src.FS, indexFile, &members); err != nil {
			return err
		}
		members[originKey] = origin
		if err := writeNewJSON(filepath.Join(s.dir, indexFile), members); err != nil {
			return err
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(s.index.components)) {
		entries, err := fs.ReadDir(s.src.FS, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", checkpoint.FullName(s.src.FS, dir), oserr.Bare(err))
		}
		for _, entry := range entries {
			name := path.Join(dir, entry.Name())
			info, err := fs.Stat(s.src.FS, name)
			if err != nil || !info.Mode().IsRegular() || !configFile.MatchString(entry.Name()) || strings.Contains(entry.Name(), ".safetensors.index.") {
				continue
			}
			if err := copyFile(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// configFile are the names of configs, vocabularies and templates.
var configFile = regexp.MustCompile(`^[^.].*\.(json|txt|model|jinja)$`)

// mfluxModel is mflux_model.json.
type mfluxModel struct {
	Format    int              `json:"format_version"`
	Version   string           `json:"mflux_version"`
	Created   string           `json:"created_at"`
	Updated   string           `json:"updated_at"`
	CreatedBy string           `json:"created_by"`
	Name      string           `json:"model_name"`
	Base      *string          `json:"base_model"`
	Quantize  any              `json:"quantize"` // bits, or the name of another mode
	Size      float64          `json:"size_gb"`
	Upstream  *mfluxUpstream   `json:"upstream"`
	Encoders  []string         `json:"text_encoders"`
	LoRAs     []mfluxSavedLoRA `json:"loras"`
}

type mfluxUpstream struct {
	Repo     string  `json:"repo_id"`
	Revision *string `json:"revision"`
}

type mfluxSavedLoRA struct {
	Source string  `json:"source"`
	Scale  float64 `json:"scale"`
	SHA256 string  `json:"sha256,omitempty"`
}

// describe writes mflux_model.json, which mflux-save writes last.
func (s *saver) describe() error {
	now := time.Now().UTC().Format("2006-01-02T15:04:05Z")
	about := mfluxModel{
		Format: 1, Version: mfluxVersion, Created: now, Updated: now, CreatedBy: "gomflux",
		Name: s.src.Name, Size: math.Round(float64(s.total)/1e7) / 100, Encoders: []string{}, LoRAs: []mfluxSavedLoRA{},
	}
	if s.src.Revision != "" {
		repo, _, _ := strings.Cut(s.src.Name, ":")
		about.Upstream = &mfluxUpstream{repo, &s.src.Revision}
	} else if s.src.Folder != "" { // others need not know where it was
		about.Name = filepath.Base(s.src.Folder)
	}
	if p, ok := findNamed(s.src.origin()); ok {
		about.Base = &p.Name
	}
	if name := s.report.Quantization; name != "" {
		about.Quantize = name
		if bits, err := strconv.Atoi(name); err == nil {
			about.Quantize = bits
		}
	}
	for _, dir := range []string{"text_encoder", "text_encoder_2"} {
		if s.index.components[dir] == "" {
			continue
		}
		var config struct {
			Type string `json:"model_type"`
		}
		if err := checkpoint.ReadJSON(s.src.FS, path.Join(dir, modelConfig), &config); err != nil {
			return err
		}
		about.Encoders = append(about.Encoders, cmp.Or(config.Type, dir))
	}
	for _, spec := range s.o.LoRAs {
		sum := "" // of a folder
		if !disk.IsFolder(spec.Path) {
			var err error
			if sum, err = filehash.SHA256(context.Background(), spec.Path); err != nil {
				return fmt.Errorf("%s: %w", spec.Path, err)
			}
		}
		about.LoRAs = append(about.LoRAs, mfluxSavedLoRA{filepath.Base(spec.Path), spec.Scale, sum})
	}
	return writeNewJSON(filepath.Join(s.dir, "mflux_model.json"), about)
}
