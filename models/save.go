package models

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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
	"syscall"
	"time"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/layout"
	"github.com/gomflux/gomflux/lora"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/nn"
	"github.com/gomflux/gomflux/weights"
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
	if lock, err := lockFolder(s.dir); err == nil {
		defer lock.Close()
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

// lockFolder takes a folder that nobody else has taken, until the file is closed
// or the process ends.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err == nil {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			f.Close()
		}
	}
	return f, err
}

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
		if lock, err := lockFolder(filepath.Join(dir, entry.Name())); err == nil {
			os.RemoveAll(lock.Name())
			lock.Close()
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

// freeBytes is what a disk has room for, to those who are not root; 0 if it does
// not tell.
var freeBytes = func(dir string) int64 {
	var s syscall.Statfs_t
	for {
		err := syscall.Statfs(dir, &s)
		if err == nil {
			return int64(s.Bavail) * int64(s.Bsize)
		}
		if parent := filepath.Dir(dir); !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return 0
		}
		dir = filepath.Dir(dir)
	}
}

func checkRoom(dir string, need int64) error {
	if free := freeBytes(dir); free > 0 && need > free {
		return fmt.Errorf("%s: the model takes %.2f GB, and the disk has %.2f GB free", dir, float64(need)/1e9, float64(free)/1e9)
	}
	return nil
}

// A saver saves one model.
type saver struct {
	src    *Source
	o      SaveOptions
	dir    string // that is written to
	index  index
	parts  []*savedPart
	loras  *lora.Set
	total  int64 // bytes of all tensors
	done   int64
	report *SaveReport
}

// A savedPart is a component with what is written of it.
type savedPart struct {
	component
	ck      *weights.Checkpoint
	entries []*savedEntry
}

// A savedEntry is a tensor, or a quantized matrix, with its places.
type savedEntry struct {
	key   string // its name in diffusers
	found nn.Found
	param *nn.Parameter               // nil if the model does not declare it
	like  *nn.Parameter               // of one that it does not, a layer of other numbers that it does
	pack  *mlx.Quantization           // how it is written; nil for plain numbers
	adapt func(*mlx.Array) *mlx.Array // nil: as it is
	form  func(*mlx.Array) *mlx.Array // of a part of its rows; nil: as it is
	slots []slot
}

func (s *saver) close() {
	for _, p := range s.parts {
		p.ck.Close()
	}
	if s.loras != nil {
		s.loras.Close()
	}
}

// plan finds out all that is to be written, and where, before anything is.
func (s *saver) plan() (err error) {
	if s.index, err = readIndex(s.src.FS); err != nil {
		return err
	}
	if _, err := s.index.family(s.src.FS); err != nil {
		return err
	}
	if err := s.index.incomplete(s.src.FS, s.index.missing(s.src.FS)); err != nil {
		return err
	}
	p, components, err := s.index.declare(s.src.FS)
	if err != nil {
		return err
	}
	for name, class := range s.index.components {
		if configOf(class) == modelConfig && !slices.ContainsFunc(components, func(c component) bool { return c.dir == name }) {
			return fmt.Errorf("%w: %s: component %s, a %s, cannot be saved", ErrUnsupported, weights.FullName(s.src.FS, indexFile), name, class)
		}
	}
	if err := p.loader.openLoRAs(s.o.LoRAs, components); err != nil {
		return err
	}
	if s.loras = p.loader.loras; s.loras != nil {
		s.report.LoRAs = s.loras.Reports()
	}
	packed := false
	for _, c := range components {
		ck, err := c.open(s.src.FS)
		if err != nil {
			return err
		}
		part := &savedPart{component: c, ck: ck}
		s.parts = append(s.parts, part)
		if err := s.find(part); err != nil {
			return err
		}
		for _, e := range part.entries {
			packed = packed || e.found.Quantized != nil
		}
	}
	if s.report.Layout == "" {
		s.report.Layout = LayoutDiffusers
		if packed || s.o.Quantize != nil {
			s.report.Layout = LayoutMFlux
		}
	}
	for _, part := range s.parts {
		if err := s.place(part); err != nil {
			return err
		}
	}
	return nil
}

// find lists the tensors of a component, each with what belongs to it.
func (s *saver) find(part *savedPart) error {
	found, mismatch := part.match(part.ck)
	if mismatch != nil {
		return mismatch
	}
	declared := map[string]int{}
	for i, f := range found {
		declared[identity(f.Tensor)] = i
	}
	params := nn.Parameters(part.model)
	alike := map[string]*nn.Parameter{} // by names without numbers
	for i := range params {
		alike[numbers.ReplaceAllString(params[i].Name, "#")] = &params[i]
	}
	for _, key := range slices.SortedFunc(maps.Keys(part.ck.Tensors), compareNames) {
		t := part.ck.Tensors[key]
		e := &savedEntry{key: key, found: nn.Found{Tensor: t}}
		if i, ok := declared[identity(t)]; ok {
			e.found, e.param = found[i], &params[i]
		} else if owner, ok := companion(key); ok {
			if _, ok := part.ck.Tensors[owner]; ok {
				continue // it comes with the weight
			}
		} else if like := alike[numbers.ReplaceAllString(part.plain(key), "#")]; like != nil && like.Kind() != nn.OtherParam {
			f, err := part.foundLike(key, like)
			if err != nil {
				return err
			}
			e.found, e.like = f, like
		} else if t.Dtype == "U32" && part.ck.Tensors[strings.TrimSuffix(key, ".weight")+".scales"].Name != "" {
			return fmt.Errorf("%s: tensor %s: is quantized, and the shape of its weight is not known", t.File, t.Name)
		}
		part.entries = append(part.entries, e)
	}
	return nil
}

var numbers = regexp.MustCompile(`\d+`)

// identity tells tensors apart, and parts of one that several are stored as.
func identity(t weights.Tensor) string { return fmt.Sprint(t.File, "\n", t.Name, "\n", t.Forms) }

// companion is the weight that a tensor comes with, by its name.
func companion(key string) (weight string, ok bool) {
	for _, suffix := range []string{".scales", ".biases", ".scale_weight", ".weight_scale"} {
		if module, ok := strings.CutSuffix(key, suffix); ok {
			return module + ".weight", true
		}
	}
	return "", false
}

// plain is a name without a prefix.
func (c component) plain(key string) string {
	for _, prefix := range c.prefixes {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			return rest
		}
	}
	return key
}

// foundLike finds a weight that the model does not declare with what it comes
// with. It has the shape of another one.
func (part *savedPart) foundLike(key string, like *nn.Parameter) (nn.Found, error) {
	module, _ := strings.CutSuffix(key, ".weight")
	alone := &weights.Checkpoint{Dir: part.ck.Dir, Tensors: map[string]weights.Tensor{}}
	for _, suffix := range []string{".weight", ".scales", ".biases", ".scale_weight", ".weight_scale"} {
		if t, ok := part.ck.Tensors[module+suffix]; ok {
			alone.Tensors["layer"+suffix] = t
		}
	}
	shape := like.Stored()
	found, mismatch := nn.Match(&struct {
		Layer *nn.Dense `w:"layer"`
	}{nn.NewLinear(shape[1], shape[0], false)}, alone, nn.LoadOptions{Name: part.name})
	if mismatch != nil {
		return nn.Found{}, mismatch
	}
	return found[0], nil
}

// place decides how a component's tensors are written and what they are called.
func (s *saver) place(part *savedPart) error {
	var table *layout.Table
	class := layout.Class(part.class)
	if s.report.Layout == LayoutMFlux {
		if table = layout.MFlux(class, s.index.class); table == nil {
			return fmt.Errorf("%w: mflux has no %s", ErrUnsupported, class)
		}
	}
	quantization := part.quantization(s.o.Quantize)
	var bake func(nn.Parameter, *mlx.Array) *mlx.Array
	if s.loras != nil {
		bake = s.loras.Bake(part.dir)
	}
	byName := map[string]*savedEntry{}
	var names []string
	for _, e := range part.entries {
		name := e.key
		var rule layout.Rule
		if table != nil {
			if table.Lacks(e.key) {
				s.report.Left = append(s.report.Left, part.dir+"/"+e.key)
				continue
			}
			name, rule, _ = table.Other(e.key)
			if before := byName[name]; before != nil { // under two names
				if e.param == nil {
					continue
				}
				names = slices.DeleteFunc(names, func(n string) bool { return n == name })
			}
		}
		changed := e.param != nil && bake != nil && s.loras.Changes(part.dir, e.param.Name)
		if changed {
			e.adapt = func(a *mlx.Array) *mlx.Array { return bake(*e.param, a.AsType(mlx.Float32)) }
		}
		switch stored := e.found.Quantized; {
		case table != nil && stored != nil && !changed:
			e.pack = stored
		case table != nil && stored != nil: // what is added would be rounded away in fewer bits
			e.pack = &mlx.Quantization{Mode: "affine", Bits: 8, Group: max(stored.Group, 32)}
		case e.param != nil && quantization != nil:
			e.pack = quantization(*e.param)
		case e.like != nil && quantization != nil:
			e.pack = layerQuantization(*s.o.Quantize, part.class, strings.TrimSuffix(part.plain(e.key), ".weight"), e.found.Shape[1])
		}
		if err := e.layOut(name, s.o, table, rule); err != nil {
			return err
		}
		byName[name] = e
		names = append(names, name)
	}
	if table != nil {
		for name, copies := range table.Again(names) {
			e := byName[name]
			for _, again := range copies {
				other := *e
				other.slots = slices.Clone(e.slots)
				for i, slot := range other.slots {
					other.slots[i].name = strings.TrimSuffix(again, ".weight") + strings.TrimPrefix(slot.name, strings.TrimSuffix(name, ".weight"))
				}
				byName[again] = &other
				names = append(names, again)
			}
		}
	}
	slices.SortFunc(names, compareNames)
	part.entries = nil
	for _, name := range names {
		e := byName[name]
		part.entries = append(part.entries, e)
		for _, slot := range e.slots {
			s.total += slot.bytes()
		}
	}
	return nil
}

// layOut gives a tensor its places, under a name, in the form of a table's rule;
// of no table, in diffusers' form.
func (e *savedEntry) layOut(name string, o SaveOptions, table *layout.Table, rule layout.Rule) error {
	dtype, err := o.dtype(e.found)
	if err != nil {
		return err
	}
	shape := e.found.Shape
	if q := e.found.Quantized; q != nil {
		shape = []int{shape[0], shape[1] * 32 / q.Bits}
	}
	if e.pack != nil {
		module := strings.TrimSuffix(name, ".weight")
		scales := slot{module + ".scales", dtype, []int{shape[0], shape[1] / e.pack.Group}}
		if kept := e.kept(); kept {
			scales.dtype = map[weights.Dtype]mlx.Dtype{"F32": mlx.Float32, "F16": mlx.Float16, "BF16": mlx.BFloat16, "U8": mlx.Uint8}[e.found.Scales.Dtype]
		} else if e.pack.Mode != "affine" {
			scales.dtype = mlx.Uint8
		}
		e.slots = []slot{{name, mlx.Uint32, []int{shape[0], shape[1] * e.pack.Bits / 32}}, scales}
		if e.pack.Mode == "affine" {
			scales.name = module + ".biases"
			e.slots = append(e.slots, scales)
		}
		return nil
	}
	expanded := 0
	for _, op := range rule.Forms {
		if op != weights.FormExpand {
			return fmt.Errorf("%s: tensor %s: cannot be brought to the form of %s", e.found.File, e.found.Name, table.Name)
		}
		expanded++
	}
	switch {
	case expanded > 0:
		shape = shape[:len(shape)-expanded]
		e.form = func(a *mlx.Array) *mlx.Array { return a.Reshape(a.Shape()[:a.Ndim()-expanded]...) }
	case table != nil && table.ChannelsLast && len(shape) > 3:
		shape = slices.Concat(shape[:1], shape[2:], shape[1:2])
		e.form = nn.ChannelsLast
	}
	e.slots = []slot{{name, dtype, shape}}
	return nil
}

// kept says whether a quantized matrix is written as it is stored.
func (e *savedEntry) kept() bool { return e.pack != nil && e.pack == e.found.Quantized }

// dtype is what a tensor is written in, if it is not packed.
func (o SaveOptions) dtype(f nn.Found) (mlx.Dtype, error) {
	float := mlx.BFloat16
	if o.Dtype != nil {
		float = *o.Dtype
	}
	stored := map[weights.Dtype]mlx.Dtype{"F32": mlx.Float32, "F16": mlx.Float16, "BF16": mlx.BFloat16, "F8_E4M3": mlx.BFloat16}
	if f.Quantized != nil {
		if d, ok := stored[f.Scales.Dtype]; ok && o.KeepDtypes {
			return d, nil
		}
		return float, nil
	}
	if d, ok := stored[f.Dtype]; ok {
		if o.KeepDtypes {
			return d, nil
		}
		return float, nil
	}
	for d, name := range dtypeNames { // numbers that are no weights
		if name == f.Dtype {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%w: %s: tensor %s: dtype %s", ErrUnsupported, f.File, f.Name, f.Dtype)
}

// level is how the model is quantized as a whole, "" for not at all: of one that
// was quantized before, as most of its bytes are.
func (s *saver) level() string {
	if s.report.Layout != LayoutMFlux {
		return ""
	}
	if s.o.Quantize != nil {
		return QuantizationName(*s.o.Quantize)
	}
	bytes := map[string]int64{}
	for _, part := range s.parts {
		for _, e := range part.entries {
			if e.pack != nil {
				bytes[QuantizationName(*e.pack)] += e.slots[0].bytes()
			}
		}
	}
	most := ""
	for _, name := range slices.Sorted(maps.Keys(bytes)) {
		if most == "" || bytes[name] > bytes[most] {
			most = name
		}
	}
	return most
}

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
	files := shards(part.entries, func(e *savedEntry) []slot { return e.slots }, maxShard)
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
		var slots []slot
		for _, e := range entries {
			slots = append(slots, e.slots...)
			for _, slot := range e.slots {
				where[slot.name] = name
				size += slot.bytes()
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

func (s *saver) writeShard(part *savedPart, reader *nn.Reader, name string, entries []*savedEntry, slots []slot, metadata map[string]string) error {
	file, err := createShard(name, slots, metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	defer file.f.Close() // again, unless it failed
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
	if err := file.close(); err != nil {
		return fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	return nil
}

// writeEntry reads, packs and writes a tensor.
func (s *saver) writeEntry(part *savedPart, reader *nn.Reader, file *shardFile, e *savedEntry) error {
	layer := SavedLayer{Component: part.dir, Name: strings.TrimSuffix(e.key, ".weight"), Kept: e.kept()}
	for _, slot := range e.slots {
		layer.Bytes += slot.bytes()
	}
	put := func(data []byte) error {
		s.done += int64(len(data))
		if s.o.Progress != nil {
			s.o.Progress(Progress{Phase: PhaseSave, Component: part.name, Bytes: s.done, TotalBytes: s.total})
		}
		return file.write(data)
	}
	if e.kept() {
		q := reader.Packed(e.found)
		layer.Quantization = *e.pack
		s.report.Layers = append(s.report.Layers, layer)
		for _, a := range q.Arrays() {
			if err := put(a.Bytes()); err != nil {
				return err
			}
		}
		return nil
	}
	a := reader.Plain(e.found)
	if e.adapt != nil {
		a = e.adapt(a)
		mlx.Eval(a)
	}
	if e.pack == nil {
		return inRows(a, func(rows *mlx.Array) error {
			if rows.Dtype() != e.slots[0].dtype {
				rows = rows.AsType(e.slots[0].dtype)
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
	dtype, err := s.o.dtype(e.found)
	if err != nil {
		return err
	}
	var rest [2][]byte // scales and biases, which come behind the whole of the packed weights
	var off, whole float64
	if err := inRows(a, func(rows *mlx.Array) error {
		plain := rows.AsType(mlx.Float32)
		rows = rows.AsType(dtype)
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
		return err
	}
	for _, data := range rest[:len(e.slots)-1] {
		if err := put(data); err != nil {
			return err
		}
	}
	layer.Quantization = *e.pack
	if whole > 0 {
		layer.Error = math.Sqrt(off / whole)
	}
	s.report.Layers = append(s.report.Layers, layer)
	return nil
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
	if !a.Dtype().IsFloat() || a.IsFinite().All() {
		return nil
	}
	return fmt.Errorf("%s: tensor %s: has NaN or infinite values as %v%s", e.found.File, e.found.Name, a.Dtype(), halfHint(a.Dtype()))
}

// copyOthers copies the files of the model that are no weights.
func (s *saver) copyOthers() error {
	copyFile := func(name string) error {
		data, err := weights.ReadFile(s.src.FS, name, 256<<20)
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
		if err := weights.ReadJSON(s.src.FS, indexFile, &members); err != nil {
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
			return fmt.Errorf("%s: %w", weights.FullName(s.src.FS, dir), oserr.Bare(err))
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

// describe writes mflux_model.json, which mflux-save writes last.
func (s *saver) describe() error {
	type upstream struct {
		Repo     string  `json:"repo_id"`
		Revision *string `json:"revision"`
	}
	type added struct {
		Source string  `json:"source"`
		Scale  float64 `json:"scale"`
		SHA256 string  `json:"sha256,omitempty"`
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05Z")
	about := struct {
		Format    int       `json:"format_version"`
		Version   string    `json:"mflux_version"`
		Created   string    `json:"created_at"`
		Updated   string    `json:"updated_at"`
		CreatedBy string    `json:"created_by"`
		Name      string    `json:"model_name"`
		Base      *string   `json:"base_model"`
		Quantize  any       `json:"quantize"`
		Size      float64   `json:"size_gb"`
		Upstream  *upstream `json:"upstream"`
		Encoders  []string  `json:"text_encoders"`
		LoRAs     []added   `json:"loras"`
	}{
		Format: 1, Version: mfluxVersion, Created: now, Updated: now, CreatedBy: "gomflux",
		Name: s.src.Name, Size: math.Round(float64(s.total)/1e7) / 100, Encoders: []string{}, LoRAs: []added{},
	}
	if s.src.Revision != "" {
		repo, _, _ := strings.Cut(s.src.Name, ":")
		about.Upstream = &upstream{repo, &s.src.Revision}
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
		if err := weights.ReadJSON(s.src.FS, path.Join(dir, modelConfig), &config); err != nil {
			return err
		}
		about.Encoders = append(about.Encoders, cmp.Or(config.Type, dir))
	}
	for _, spec := range s.o.LoRAs {
		sum, err := fileSHA256(spec.Path)
		if err != nil {
			return err
		}
		about.LoRAs = append(about.LoRAs, added{filepath.Base(spec.Path), spec.Scale, sum})
	}
	return writeNewJSON(filepath.Join(s.dir, "mflux_model.json"), about)
}

// fileSHA256 is that of a file, "" of a folder.
func fileSHA256(name string) (string, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return "", nil
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
