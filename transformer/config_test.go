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
