package models

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
)

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
	ck      *checkpoint.Checkpoint
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
	dtype mlx.Dtype                   // of plain numbers, and of the scales that are affine
	slots []checkpoint.Tensor         // what is written of it
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
			return fmt.Errorf("%w: %s: component %s, a %s, cannot be saved", ErrUnsupported, checkpoint.FullName(s.src.FS, indexFile), name, class)
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
	for _, key := range slices.SortedFunc(maps.Keys(part.ck.Tensors), checkpoint.CompareNames) {
		t := part.ck.Tensors[key]
		e := &savedEntry{key: key, found: nn.Found{Tensor: t}}
		if i, ok := declared[identity(t)]; ok {
			e.found, e.param = found[i], &params[i]
		} else if owner, ok := companion(key); ok {
			if _, ok := part.ck.Tensors[owner]; ok {
				continue // it comes with the weight
			}
		} else if like := alike[numbers.ReplaceAllString(bare(key, part.prefixes), "#")]; like != nil && like.Kind() != nn.OtherParam {
			f, err := part.foundLike(key, like)
			if err != nil {
				return err
			}
			e.found, e.like = f, like
		} else if t.Dtype == checkpoint.U32 && part.ck.Tensors[strings.TrimSuffix(key, ".weight")+".scales"].Name != "" {
			return fmt.Errorf("%s: tensor %s: is quantized, and the shape of its weight is not known", t.File, t.Name)
		}
		part.entries = append(part.entries, e)
	}
	return nil
}

var numbers = regexp.MustCompile(`\d+`)

// identity tells tensors apart, and parts of one that several are stored as.
func identity(t checkpoint.Tensor) string { return fmt.Sprint(t.File, "\n", t.Name, "\n", t.Forms) }

// companion is the weight that a tensor comes with, by its name.
func companion(key string) (weight string, ok bool) {
	for _, suffix := range []string{".scales", ".biases", ".scale_weight", ".weight_scale"} {
		if module, ok := strings.CutSuffix(key, suffix); ok {
			return module + ".weight", true
		}
	}
	return "", false
}

// foundLike finds a weight that the model does not declare with what it comes
// with. It has the shape of another one.
func (part *savedPart) foundLike(key string, like *nn.Parameter) (nn.Found, error) {
	module, _ := strings.CutSuffix(key, ".weight")
	alone := &checkpoint.Checkpoint{Dir: part.ck.Dir, Tensors: map[string]checkpoint.Tensor{}}
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
		e.pack = s.packing(part, e, changed)
		if err := e.layOut(name, s.o, table, rule); err != nil {
			return err
		}
		byName[name] = e
		names = append(names, name)
	}
	if table != nil {
		for name, copies := range table.Again(names) {
			for _, again := range copies {
				byName[again] = byName[name].under(again)
				names = append(names, again)
			}
		}
	}
	slices.SortFunc(names, checkpoint.CompareNames)
	part.entries = nil
	for _, name := range names {
		e := byName[name]
		part.entries = append(part.entries, e)
		for _, slot := range e.slots {
			s.total += slot.Bytes()
		}
	}
	return nil
}

// packing is how a tensor is written, nil for plain numbers; changed is one that
// LoRAs change.
func (s *saver) packing(part *savedPart, e *savedEntry, changed bool) *mlx.Quantization {
	stored := e.found.Quantized
	switch {
	case s.report.Layout == LayoutDiffusers:
		return nil
	case stored != nil && changed: // what is added would be rounded away in fewer bits
		return &mlx.Quantization{Mode: "affine", Bits: 8, Group: max(stored.Group, 32)}
	case stored != nil:
		return stored
	case s.o.Quantize == nil:
		return nil
	case e.param != nil:
		return part.quantization(s.o.Quantize)(*e.param)
	case e.like != nil:
		return layerQuantization(*s.o.Quantize, part.class, module(bare(e.key, part.prefixes)), e.found.Shape[1])
	}
	return nil
}

// module is the name of the module that a weight is of.
func module(weight string) string { return strings.TrimSuffix(weight, ".weight") }

// under is the same tensor, to be written once more under another name.
func (e *savedEntry) under(name string) *savedEntry {
	other := *e
	other.slots = slices.Clone(e.slots)
	for i, slot := range other.slots {
		other.slots[i].Name = module(name) + strings.TrimPrefix(slot.Name, module(e.slots[0].Name))
	}
	return &other
}

// layOut gives a tensor its places, under a name, in the form of a table's rule;
// of no table, in diffusers' form.
func (e *savedEntry) layOut(name string, o SaveOptions, table *layout.Table, rule layout.Rule) error {
	var err error
	if e.dtype, err = o.dtype(e.found); err != nil {
		return err
	}
	shape := e.found.Shape
	if q := e.found.Quantized; q != nil {
		shape = []int{shape[0], shape[1] * 32 / q.Bits}
	}
	if e.pack != nil {
		scales := slot(module(name)+".scales", e.dtype, shape[0], shape[1]/e.pack.Group)
		if e.kept() {
			scales.Dtype = e.found.Scales.Dtype
		} else if e.pack.Mode != "affine" {
			scales.Dtype = checkpoint.U8
		}
		e.slots = []checkpoint.Tensor{slot(name, mlx.Uint32, shape[0], shape[1]*e.pack.Bits/32), scales}
		if e.pack.Mode == "affine" {
			scales.Name = module(name) + ".biases"
			e.slots = append(e.slots, scales)
		}
		return nil
	}
	expanded := 0
	for _, op := range rule.Forms {
		if op != checkpoint.FormExpand {
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
	e.slots = []checkpoint.Tensor{slot(name, e.dtype, shape...)}
	return nil
}

// kept says whether a quantized matrix is written as it is stored.
func (e *savedEntry) kept() bool { return e.pack != nil && e.pack == e.found.Quantized }

// dtype is what a tensor is written in, if it is not packed.
func (o SaveOptions) dtype(f nn.Found) (mlx.Dtype, error) {
	stored := f.Dtype
	if f.Quantized != nil {
		stored = f.Scales.Dtype
	}
	d, ok := readAs(stored)
	switch {
	case !ok:
		return 0, fmt.Errorf("%w: %s: tensor %s: dtype %s", ErrUnsupported, f.File, f.Name, f.Dtype)
	case d.IsFloat() && o.KeepDtypes, !d.IsFloat() && f.Quantized == nil: // numbers that are no weights stay
		return d, nil
	case o.Dtype != nil:
		return *o.Dtype, nil
	}
	return mlx.BFloat16, nil
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
				bytes[QuantizationName(*e.pack)] += e.slots[0].Bytes()
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
