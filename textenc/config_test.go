package textenc_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/configtest"
	"github.com/gomflux/gomflux/textenc"
)

func FuzzConfig(f *testing.F) {
	configtest.Fuzz(f,
		func() *textenc.Qwen3Config { c := textenc.DefaultQwen3Config(); return &c },
		func(c *textenc.Qwen3Config) any { return textenc.NewQwen3(*c, []int{c.NumHiddenLayers - 1}, 0) },
		"../models/testdata/zimage-ordinary/model/text_encoder/config.json", "../models/testdata/zimage-small/model/text_encoder/config.json")
}
