package save

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A plan describes everything that is written of a model.
type plan struct {
	src      Source
	o        *Options
	index    index.Index
	declared *family.Declared
	loras    *lora.Set // may be nil
	layout   string
	level    string // mflux's quantization_level, "" if the model is not quantized
	parts    []*savedComponent
	left     []string // tensors that the layout does not contain
	total    int64    // bytes of all tensors
}

// make plans all files from configs and headers, before anything is written. The plan
// must be closed, also after an error.
func (p *plan) make() error {
	if err := p.declare(); err != nil {
		return err
	}
	packed := p.o.Quantize != nil
	for _, c := range p.declared.Components {
		part, err := openPart(p.src.FS, c)
		if err != nil {
			return err
		}
		p.parts = append(p.parts, part)
		packed = packed || slices.ContainsFunc(part.entries, func(e *entry) bool { return e.found.Quantized != nil })
	}
	if p.layout == "" {
		p.layout = LayoutDiffusers
		if packed {
			p.layout = LayoutMFlux
		}
	}
	for _, part := range p.parts {
		if err := p.place(part); err != nil {
			return err
		}
	}
	p.level = p.quantization()
	return nil
}

// declare reads the configs and opens the LoRAs.
func (p *plan) declare() (err error) {
	fsys := p.src.FS
	if p.index, err = index.Read(fsys); err != nil {
		return err
	}
	if _, err := family.Of(fsys, p.index); err != nil {
		return err
	}
	if err := index.MissingError(fsys, p.index.Missing(fsys, true)); err != nil {
		return err
	}
	loader := component.Loader{Folder: component.Folder{FS: fsys, Points: &hooks.Points{}}}
	if p.declared, err = family.Declare(&loader.Folder, p.index); err != nil {
		return err
	}
	for _, dir := range p.declared.Class.Tokenizers() {
		if err := tokenizer.Check(fsys, dir); err != nil {
			return err
		}
	}
	for _, dir := range p.index.Models() {
		if !slices.ContainsFunc(p.declared.Components, func(c component.Component) bool { return c.Dir == dir }) {
			return fmt.Errorf("%w: %s: component %s of class %s cannot be saved",
				errs.ErrUnsupported, checkpoint.FullName(fsys, index.Name(fsys)), dir, p.index.Components[dir])
		}
	}
	if err := loader.OpenLoRAs(p.o.LoRAs, p.declared.Components); err != nil {
		return err
	}
	p.loras = loader.LoRAs
	return nil
}

// place decides how the tensors of a component are written.
func (p *plan) place(part *savedComponent) (err error) {
	var table *layout.Table
	if p.layout == LayoutMFlux {
		if table, err = mfluxTable(p.declared.Class, part.Component); err != nil {
			return err
		}
	}
	return (&placer{plan: p, part: part, table: table}).placeAll()
}

// folderOf returns the folder in the output for the component of a folder, "." for the top.
func (p *plan) folderOf(dir string) string {
	m, ok := p.declared.Class.Member(dir)
	switch {
	case !ok || p.layout != LayoutMFlux:
		return dir
	case m.Class.MFluxAtRoot:
		return "."
	}
	return cmp.Or(m.MFluxFolder, dir)
}

// quantization returns the quantization of the model as a whole, "" if it is not
// quantized. For weights that were quantized before, it is the one with the most bytes.
func (p *plan) quantization() string {
	if p.layout != LayoutMFlux {
		return ""
	}
	if p.o.Quantize != nil {
		return component.QuantizationName(*p.o.Quantize)
	}
	bytes := map[string]int64{}
	for _, part := range p.parts {
		for _, e := range part.entries {
			if e.quantize != nil {
				bytes[component.QuantizationName(*e.quantize)] += e.slots[0].Bytes()
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

func (p *plan) close() {
	for _, part := range p.parts {
		part.ck.Close()
	}
	if p.loras != nil {
		p.loras.Close()
	}
}
