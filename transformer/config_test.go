package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/hostiletest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
)

func FuzzConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *transformer.ZImageConfig { c := transformer.DefaultZImageConfig(); return &c },
		func(c *transformer.ZImageConfig) { nn.Bind(transformer.NewZImage(*c), "model", nil) },
		"../models/testdata/zimage-ordinary/model/transformer/config.json", "../models/testdata/zimage-small/model/transformer/config.json")
}

func FuzzFluxConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *transformer.FluxConfig { c := transformer.DefaultFluxConfig(); return &c },
		func(c *transformer.FluxConfig) { nn.Bind(transformer.NewFlux(*c), "model", nil) })
}

func FuzzFlux2Config(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *transformer.Flux2Config { c := transformer.DefaultFlux2Config(); return &c },
		func(c *transformer.Flux2Config) { nn.Bind(transformer.NewFlux2(*c), "model", nil) })
}

func FuzzQwenImageConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *transformer.QwenImageConfig { c := transformer.DefaultQwenImageConfig(); return &c },
		func(c *transformer.QwenImageConfig) { nn.Bind(transformer.NewQwenImage(*c), "model", nil) })
}

func FuzzKrea2Config(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *transformer.Krea2Config { c := transformer.DefaultKrea2Config(); return &c },
		func(c *transformer.Krea2Config) { nn.Bind(transformer.NewKrea2(*c), "model", nil) })
}

func FuzzQwenImage21Config(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *transformer.QwenImage21Config { c := transformer.DefaultQwenImage21Config(); return &c },
		func(c *transformer.QwenImage21Config) { nn.Bind(transformer.NewQwenImage21(*c), "model", nil) })
}
