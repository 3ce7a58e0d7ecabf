package transformer_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/configtest"
	"github.com/gomflux/gomflux/transformer"
)

func FuzzConfig(f *testing.F) {
	configtest.Fuzz(f,
		func() *transformer.ZImageConfig { c := transformer.DefaultZImageConfig(); return &c },
		func(c *transformer.ZImageConfig) any { return transformer.NewZImage(*c) },
		"../models/testdata/zimage-ordinary/model/transformer/config.json", "../models/testdata/zimage-small/model/transformer/config.json")
}

func FuzzFluxConfig(f *testing.F) {
	configtest.Fuzz(f,
		func() *transformer.FluxConfig { c := transformer.DefaultFluxConfig(); return &c },
		func(c *transformer.FluxConfig) any { return transformer.NewFlux(*c) })
}

func FuzzFlux2Config(f *testing.F) {
	configtest.Fuzz(f,
		func() *transformer.Flux2Config { c := transformer.DefaultFlux2Config(); return &c },
		func(c *transformer.Flux2Config) any { return transformer.NewFlux2(*c) })
}

func FuzzQwenImageConfig(f *testing.F) {
	configtest.Fuzz(f,
		func() *transformer.QwenImageConfig { c := transformer.DefaultQwenImageConfig(); return &c },
		func(c *transformer.QwenImageConfig) any { return transformer.NewQwenImage(*c) })
}
