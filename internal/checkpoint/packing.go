package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
)

// ErrUnsupported is wrapped by errors about valid files that this version cannot read.
var ErrUnsupported = errors.New("not supported")

// A Packing is how ComfyUI stores a quantized matrix. The [Tensor] that has it describes the
// dequantized matrix, except for Dtype, Begin and End, which are those of Weight.
type Packing struct {
	Format string
	// Rotation is the number of columns that are rotated together (ConvRot), 0 if none are.
	Rotation int
	// Weight and Scale are the tensors in the file, Global the second scale of NVFP4.
	Weight, Scale Tensor
	Global        *Tensor
}

// The formats of packings, with ComfyUI's names. The 8-bit floats of the other two, which have at
// most one scale, are read by their dtype.
const (
	PackedInt4  = "convrot_w4a4"
	PackedInt8  = "int8_tensorwise"
	PackedMXFP8 = "mxfp8"
	PackedNVFP4 = "nvfp4"
)

const floatE4M3 = "float8_e4m3fn"

// Block returns the number of columns that share a scale, 0 if that is all of them.
func (p *Packing) Block() int { return map[string]int{PackedMXFP8: 32, PackedNVFP4: 16}[p.Format] }

// Columns returns the number of columns of the dequantized matrix.
func (p *Packing) Columns() int {
	if p.Format == PackedNVFP4 || p.Format == PackedInt4 {
		return 2 * p.Weight.Shape[1] // two in a byte
	}
	return p.Weight.Shape[1]
}

// Tensors returns the tensors in the file.
func (p *Packing) Tensors() []Tensor {
	if p.Global != nil {
		return []Tensor{p.Weight, p.Scale, *p.Global}
	}
	return []Tensor{p.Weight, p.Scale}
}

// PackedFormat returns ComfyUI's name of the format of a weight that is dequantized while it is
// loaded; "" for other tensors.
func (t Tensor) PackedFormat() string {
	switch {
	case t.Packing != nil:
		return t.Packing.Format
	case t.Dtype == F8E4M3:
		return floatE4M3
	}
	return ""
}

// PackedFormats lists the formats that PackedFormat returns.
var PackedFormats = []string{floatE4M3, PackedInt4, PackedInt8, PackedMXFP8, PackedNVFP4}

// InFile returns the tensors of the file that t consists of: itself, or those of its packing.
func (t Tensor) InFile() []Tensor {
	if t.Packing != nil {
		return t.Packing.Tensors()
	}
	return []Tensor{t}
}

const (
	packingSuffix   = ".comfy_quant"
	packingMetadata = "_quantization_metadata"
	// maxPackingConfig limits the size of a comfy_quant tensor, in bytes. Real ones have 100.
	maxPackingConfig = 64 << 10
)

// rotations matches keys of a comfy_quant tensor about rotations.
var rotations = regexp.MustCompile(`(?i)convrot|rotat|hadamard`)

// A packingConfig is the content of a comfy_quant tensor.
type packingConfig struct {
	Format  string `json:"format"`
	ConvRot bool   `json:"convrot"`
	Group   *int   `json:"convrot_groupsize"`
}

// parsePackingConfig reads the JSON of a comfy_quant tensor. Keys that do not change the numbers,
// such as those about the original tensor, are ignored.
func parsePackingConfig(data []byte) (packingConfig, error) {
	var c packingConfig
	if err := ParseJSON(data, &c); err != nil {
		return c, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return c, err
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if rotations.MatchString(key) && key != "convrot" && key != "convrot_groupsize" {
			return c, fmt.Errorf("%w: a rotation with the key %s (expected only convrot and convrot_groupsize)",
				ErrUnsupported, quote.Text(key))
		}
	}
	if c.Format == "" {
		return c, errors.New("no key format")
	}
	return c, nil
}

// rotation returns the number of columns that are rotated together, 0 if none are.
func (c packingConfig) rotation(columns int) (int, error) {
	if !c.ConvRot && c.Format != PackedInt4 {
		return 0, nil
	}
	group := 256
	if c.Group != nil {
		group = *c.Group
	}
	power := group
	for power > 1 && power%4 == 0 {
		power /= 4
	}
	switch {
	case group < 4 || power != 1:
		return 0, fmt.Errorf("%w: convrot_groupsize %d, expected a power of 4", ErrUnsupported, group)
	case columns%group != 0:
		return 0, fmt.Errorf("convrot_groupsize %d does not divide the %d columns", group, columns)
	}
	return group, nil
}

// NewCheckpoint returns a checkpoint of a single file.
func NewCheckpoint(f *File) (*Checkpoint, error) {
	c := &Checkpoint{Dir: f.Name, Files: []*File{f}, Tensors: f.Header.Tensors}
	return c, c.unpack(func() string { return "" })
}

// unpack gives matrices that ComfyUI has quantized their Packing, and removes the tensors that
// belong to it. A file has a format for each module, as JSON in the tensor MODULE.comfy_quant or,
// for all modules, in the metadata. Formats that gomflux does not read are an error; see foreign.
func (c *Checkpoint) unpack(method func() string) error {
	configs := map[string]packingConfig{}
	for _, f := range c.Files {
		if err := f.packings(configs); err != nil {
			return err
		}
	}
	if len(configs) == 0 {
		return c.foreign(method)
	}
	c.Tensors = maps.Clone(c.Tensors)
	for _, module := range slices.Sorted(maps.Keys(configs)) {
		delete(c.Tensors, module+packingSuffix)
		if w, ok := c.Tensors[module+".weight"]; ok {
			if err := c.pack(module, w, configs[module]); err != nil {
				return fmt.Errorf("%s: tensor %s: %w", w.File, quote.Text(w.Name), err)
			}
		}
	}
	return c.foreign(method)
}

// packings reads the formats of a file's modules.
func (f *File) packings(configs map[string]packingConfig) error {
	if text := f.Header.Metadata[packingMetadata]; text != "" {
		var all struct {
			Layers map[string]json.RawMessage `json:"layers"`
		}
		err := ParseJSON([]byte(text), &all)
		for _, module := range slices.Sorted(maps.Keys(all.Layers)) {
			if err == nil {
				configs[module], err = parsePackingConfig(all.Layers[module])
			}
		}
		if err != nil {
			return fmt.Errorf("%s: metadata %s: %w", f.Name, packingMetadata, err)
		}
	}
	for _, name := range f.Header.Names {
		module, ok := strings.CutSuffix(name, packingSuffix)
		if !ok {
			continue
		}
		text, err := f.text(name, maxPackingConfig)
		if err != nil {
			return err
		}
		if configs[module], err = parsePackingConfig(text); err != nil {
			return fmt.Errorf("%s: tensor %s: %w", f.Name, quote.Text(name), err)
		}
	}
	return nil
}

// text reads a tensor of U8 that is a text.
func (f *File) text(name string, limit int64) ([]byte, error) {
	t := f.Header.Tensors[name]
	var err error
	var data []byte
	if t.Dtype != U8 || len(t.Shape) != 1 || t.Bytes() > limit {
		err = fmt.Errorf("expected a text as U8 with at most %d bytes, found %s", limit, t.Type())
	} else {
		data = make([]byte, t.Bytes())
		err = f.read(data, t.Begin)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %s: %w", f.Name, quote.Text(name), err)
	}
	return data, nil
}

// ReadText reads the tensor of some name, a text, in which ComfyUI's files have tokenizers. It returns nil if the
// checkpoint does not have it.
func (c *Checkpoint) ReadText(name string, limit int64) ([]byte, error) {
	for _, f := range c.Files {
		if _, ok := f.Header.Tensors[name]; ok {
			return f.text(name, limit)
		}
	}
	return nil, nil
}

// pack gives the weight w of a module the packing that its config describes.
func (c *Checkpoint) pack(module string, w Tensor, config packingConfig) error {
	p := &Packing{Format: config.Format, Weight: w}
	dtype := map[string]Dtype{PackedInt4: I8, PackedInt8: I8, PackedMXFP8: F8E4M3, PackedNVFP4: U8, floatE4M3: F8E4M3}[p.Format]
	switch {
	case dtype == "":
		return fmt.Errorf("%w: its quantization format is %s (expected one of %s; "+
			"use a file in another format, such as bfloat16 or INT8 ConvRot)",
			ErrUnsupported, quote.Text(p.Format), strings.Join(PackedFormats, ", "))
	case config.ConvRot && p.Format != PackedInt8 && p.Format != PackedInt4:
		return fmt.Errorf("%w: the format %s with convrot", ErrUnsupported, p.Format)
	case w.Dtype != dtype || len(w.Shape) != 2:
		return fmt.Errorf("expected a matrix of dtype %s for the format %s, found %s", dtype, p.Format, w.Type())
	case p.Format == floatE4M3:
		return nil
	}
	shape := []int{w.Shape[0], p.Columns()}
	if p.Format == PackedNVFP4 {
		if _, ok := c.Tensors[module+".pre_quant_scale"]; ok {
			return fmt.Errorf("%w: the format %s with pre_quant_scale", ErrUnsupported, p.Format)
		}
		one := func(t Tensor) bool { return t.Dtype == F32 && t.Len() == 1 }
		global, err := c.companion(module+".weight_scale_2", "one number, F32", one)
		if err != nil {
			return err
		}
		p.Global = &global
	}
	var err error
	if p.Rotation, err = config.rotation(shape[1]); err != nil {
		return err
	}
	expected, fits := p.scales(shape)
	if p.Scale, err = c.companion(module+".weight_scale", expected, fits); err != nil {
		return err
	}
	w.Shape, w.Packing = shape, p
	c.Tensors[module+".weight"] = w
	return nil
}

// scales returns what the scales of a matrix must be, in words and as a function.
func (p *Packing) scales(shape []int) (string, func(Tensor) bool) {
	rows, columns := shape[0], shape[1]
	if p.Block() == 0 {
		return fmt.Sprintf("one number or %d, F32, F16 or BF16", rows), func(t Tensor) bool {
			return t.Dtype.IsWeight() && (t.Len() == 1 || t.Len() == rows && t.Shape[0] == rows)
		}
	}
	dtypes := []Dtype{U8, "F8_E8M0"}
	if p.Format == PackedNVFP4 {
		dtypes = []Dtype{F8E4M3, U8}
	}
	tiles := ScaleTiles(rows, columns/p.Block())
	return fmt.Sprintf("%d numbers, %s or %s, in tiles of 128x4", 512*tiles, dtypes[0], dtypes[1]), func(t Tensor) bool {
		return slices.Contains(dtypes, t.Dtype) && t.Len() == 512*tiles && columns%p.Block() == 0
	}
}

// companion removes a tensor that belongs to a packed weight from the checkpoint, and returns it.
func (c *Checkpoint) companion(name, expected string, fits func(Tensor) bool) (Tensor, error) {
	t, ok := c.Tensors[name]
	switch {
	case !ok:
		return t, fmt.Errorf("cannot be dequantized without the tensor %s", quote.Text(name))
	case !fits(t):
		return t, fmt.Errorf("expected %s in the tensor %s, found %s", expected, quote.Text(name), t.Type())
	}
	delete(c.Tensors, name)
	return t, nil
}

// ScaleTiles returns the number of tiles of 128x4 that hold the scales of MXFP8 and NVFP4, for a
// matrix of scales of rows x columns.
func ScaleTiles(rows, columns int) int { return (rows + 127) / 128 * ((columns + 3) / 4) }
