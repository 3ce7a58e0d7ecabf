package textenc_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/gomflux/gomflux/nn"
	"github.com/gomflux/gomflux/textenc"
)

// FuzzConfig: a config that Validate accepts can be declared as a model.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{
		"../models/testdata/zimage-ordinary/model/text_encoder/config.json",
		"../models/testdata/zimage-small/model/text_encoder/config.json",
	} {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := textenc.DefaultQwen3Config()
		if json.Unmarshal(text, &c) != nil || c.Validate() != nil {
			return
		}
		nn.Bind(textenc.NewQwen3(c, c.NumHiddenLayers-1, 0), "model", nil)
	})
}
