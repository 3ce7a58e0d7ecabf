package vae_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/configtest"
	"github.com/gomflux/gomflux/vae"
)

func FuzzConfig(f *testing.F) {
	configtest.Fuzz(f,
		func() *vae.KLConfig { c := vae.DefaultKLConfig(); return &c },
		func(c *vae.KLConfig) any { return vae.NewKL(*c) },
		"../models/testdata/zimage-ordinary/model/vae/config.json", "../models/testdata/vae-512/model/vae/config.json")
}

func FuzzFlux2Config(f *testing.F) {
	configtest.Fuzz(f,
		func() *vae.KLFlux2Config { c := vae.DefaultKLFlux2Config(); return &c },
		func(c *vae.KLFlux2Config) any { return vae.NewKLFlux2(*c) },
		"testdata/flux2-quant/config.json", "testdata/flux2-plain/config.json")
}

func FuzzQwenImageConfig(f *testing.F) {
	configtest.Fuzz(f,
		func() *vae.KLQwenImageConfig { c := vae.DefaultKLQwenImageConfig(); return &c },
		func(c *vae.KLQwenImageConfig) any { return vae.NewKLQwenImage(*c) },
		"testdata/qwenimage-thin/config.json", "testdata/qwenimage-odd/config.json")
}
