package vae_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/hostiletest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/vae"
)

func FuzzConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *vae.KLConfig { c := vae.DefaultKLConfig(); return &c },
		func(c *vae.KLConfig) { nn.Bind(vae.NewKL(*c), "model", nil) },
		"../models/testdata/zimage-ordinary/model/vae/config.json", "../models/testdata/vae-512/model/vae/config.json")
}

func FuzzFlux2Config(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *vae.KLFlux2Config { c := vae.DefaultKLFlux2Config(); return &c },
		func(c *vae.KLFlux2Config) { nn.Bind(vae.NewKLFlux2(*c), "model", nil) },
		"testdata/flux2-quant/config.json", "testdata/flux2-plain/config.json")
}

func FuzzQwenImageConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *vae.KLQwenImageConfig { c := vae.DefaultKLQwenImageConfig(); return &c },
		func(c *vae.KLQwenImageConfig) { nn.Bind(vae.NewKLQwenImage(*c), "model", nil) },
		"testdata/qwenimage-thin/config.json", "testdata/qwenimage-odd/config.json")
}

func FuzzQwenImage21Config(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *vae.KLQwenImage21Config { c := vae.DefaultKLQwenImage21Config(); return &c },
		func(c *vae.KLQwenImage21Config) { nn.Bind(vae.NewKLQwenImage21(*c), "model", nil) },
		"testdata/qwenimage21-thin/config.json", "testdata/qwenimage21-odd/config.json")
}

func FuzzTinyConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *vae.TinyConfig { c := vae.DefaultTinyConfig(); return &c },
		func(c *vae.TinyConfig) { nn.Bind(vae.NewTiny(*c), "model", nil) },
		"testdata/tiny-thin/config.json", "testdata/tiny-pool/config.json")
}
