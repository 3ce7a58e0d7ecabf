package component

import (
	"fmt"
	"math"

	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/upscaler"
)

// Upscalers is the folder that the networks that enlarge images are found in; no pipeline has one.
const Upscalers = "upscaler"

// RRDBNet is the network of ESRGAN, Real-ESRGAN and their relatives.
var RRDBNet = &Class{
	Name: "RRDBNet", Library: "basicsr", Role: Upscaler, Folder: Upscalers, Standalone: true,
	Original:    rrdbTables(),
	Infer:       inferRRDB,
	NewUpscaler: newUpscaler(upscaler.DefaultRRDBConfig, upscaler.NewRRDBNet),
}

// SRVGGNetCompact is the small network of Real-ESRGAN.
var SRVGGNetCompact = &Class{
	Name: "SRVGGNetCompact", Library: "basicsr", Role: Upscaler, Folder: Upscalers, Standalone: true,
	Original: []*layout.Table{{Prefixes: upscalerPrefixes, Signature: []string{"body.0.weight", "body.0.bias", "body.1.weight",
		"body.2.weight", "body.2.bias"}}},
	Infer:       inferCompact,
	NewUpscaler: newUpscaler(upscaler.DefaultCompactConfig, upscaler.NewCompact),
}

// upscalerPrefixes are the names of the dictionaries and modules that checkpoints of BasicSR and others have the tensors in.
var upscalerPrefixes = []string{"params_ema.", "params-ema.", "params.", "module.", "netG.", "net.", "state_dict.", "model_state_dict."}

// newUpscaler returns the NewUpscaler of a class, from its default config and its constructor.
func newUpscaler[C any, P interface {
	*C
	Config
}, N upscaler.Network](defaults func() C, declare func(C) N) func(read func(Config) error) (upscaler.Model, error) {
	return func(read func(Config) error) (upscaler.Model, error) {
		c := defaults()
		if err := read(P(&c)); err != nil {
			return nil, err
		}
		return declare(c), nil
	}
}

// DeclareUpscaler declares the network that the config in a folder describes, without the autoencoder that SeedVR2 has too.
func DeclareUpscaler(f *Folder, dir string) (upscaler.Model, Component, error) {
	class, err := f.classIn(dir, Upscaler)
	if err != nil {
		return nil, Component{}, err
	}
	n, err := class.NewUpscaler(func(c Config) error { return f.Config(dir, c) })
	if err != nil {
		return nil, Component{}, err
	}
	c := Component{Class: class, Name: Upscalers, Dir: dir, Model: n}
	if s, ok := n.(*upscaler.SeedVR2); ok {
		c.Model = s.Transformer
	}
	return n, c, nil
}

// rrdbTables returns the names of ESRGAN, which number the layers of a Sequential and so depend on how often the
// size is doubled, those of BSRGAN and RealSR, and those of BasicSR.
func rrdbTables() []*layout.Table {
	var tables []*layout.Table
	for ups := range 4 {
		hr, last := fmt.Sprintf("model.%d", 3*ups+2), fmt.Sprintf("model.%d", 3*ups+4)
		names := []string{"model.0", "conv_first", "model.1.sub.{}.RDB{}.conv{}.0", "body.{}.rdb{}.conv{}",
			"model.1.sub.{}.weight", "conv_body.weight", "model.1.sub.{}.bias", "conv_body.bias", hr, "conv_hr", last, "conv_last"}
		for i := 1; i <= ups; i++ {
			names = append(names, fmt.Sprintf("model.%d", 3*i), fmt.Sprintf("conv_up%d", i))
		}
		tables = append(tables, &layout.Table{Prefixes: upscalerPrefixes, Rules: layout.Rename(names...),
			Signature: []string{"model.1.sub.0.RDB1.conv1.0.weight", hr + ".weight", last + ".weight"}})
	}
	return append(tables,
		&layout.Table{Prefixes: upscalerPrefixes, Rules: layout.Rename("RRDB_trunk.{}.RDB{}.conv{}", "body.{}.rdb{}.conv{}",
			"trunk_conv", "conv_body", "upconv1", "conv_up1", "upconv2", "conv_up2", "upconv3", "conv_up3", "HRconv", "conv_hr"),
			Signature: []string{"RRDB_trunk.0.RDB1.conv1.weight", "conv_first.weight", "conv_last.weight"}},
		&layout.Table{Prefixes: upscalerPrefixes, Signature: []string{"body.0.rdb1.conv1.weight", "conv_first.weight", "conv_last.weight"}})
}

func inferRRDB(s *layout.Sizes, inferred, _ map[string]any) {
	if s.Has("model.1.sub.0.RDB1.conv1x1.weight") {
		s.Fail("is a network of ESRGAN+, which is not supported by this version, expected ESRGAN or Real-ESRGAN")
	}
	in, out, ups := s.Dim("conv_first.weight", 1), s.Dim("conv_last.weight", 0), 0
	for s.Has(fmt.Sprintf("conv_up%d.weight", ups+1)) {
		ups++
	}
	shuffle := 1
	if in == 4*out || in == 16*out {
		shuffle = int(math.Sqrt(float64(in / out)))
	}
	inferred["num_in_ch"], inferred["num_out_ch"], inferred["num_up"] = in/(shuffle*shuffle), out, ups
	inferred["shuffle"], inferred["num_block"] = shuffle, s.Count("body")
	inferred["num_feat"], inferred["num_grow_ch"] = s.Dim("conv_first.weight", 0), s.Dim("body.0.rdb1.conv1.weight", 0)
}

// inferCompact infers how often the size is enlarged from the channels of the last convolution: those of the input
// for each of the pixels.
func inferCompact(s *layout.Sizes, inferred, _ map[string]any) {
	n := s.Count("body")
	if n%2 == 0 {
		s.Fail("body has %d layers, expected an odd number", n)
	}
	in, out := s.Dim("body.0.weight", 1), s.Dim(fmt.Sprintf("body.%d.weight", n-1), 0)
	scale := int(math.Sqrt(float64(out / in)))
	if in*scale*scale != out {
		s.Fail("body.%d has %d channels, expected %d for each pixel", n-1, out, in)
	}
	inferred["num_in_ch"], inferred["num_out_ch"], inferred["upscale"] = in, in, scale
	inferred["num_feat"], inferred["num_conv"] = s.Dim("body.0.weight", 0), (n-3)/2
}
