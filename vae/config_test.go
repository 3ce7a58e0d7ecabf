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
