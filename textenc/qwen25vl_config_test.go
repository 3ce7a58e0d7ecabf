package textenc_test

import (
	"encoding/json"
	"errors"
	"image"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/hostiletest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

func FuzzQwen25VLConfig(f *testing.F) {
	hostiletest.FuzzConfig(f,
		func() *textenc.Qwen25VLConfig { c := textenc.DefaultQwen25VLConfig(); return &c },
		func(c *textenc.Qwen25VLConfig) { nn.Bind(textenc.NewQwen25VL(*c, true, 0), "model", nil) },
		"testdata/qwen25vl-published/config.json", "testdata/qwen25vl-small/config.json", "testdata/qwen25vl-whole/config.json")
}

// FuzzQwen2VLImageProcessor checks that a processor accepts the sizes that Resized returns.
func FuzzQwen2VLImageProcessor(f *testing.F) {
	for _, name := range []string{"qwen25vl-published/preprocessor_config.json", "qwen25vl-small/processor_config.json",
		"qwen3vl-whole/processor_config.json"} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, 75, 131)
		f.Add(text, 1, 200)
	}
	f.Add([]byte("{}"), 1000, 40)
	f.Fuzz(func(t *testing.T, text []byte, width, height int) {
		for _, name := range []string{"processor_config.json", "preprocessor_config.json"} {
			p, err := textenc.LoadQwen2VLImageProcessor(fstest.MapFS{"p/" + name: {Data: text}}, "p")
			if err != nil {
				if !strings.Contains(err.Error(), "processor_config.json") {
					t.Errorf("%v: does not name its file", err)
				}
				continue
			}
			const most = 1 << 20
			size, err := p.Resized(image.Pt(width%most, height%most))
			if err != nil {
				continue
			}
			if unit := p.PatchSize * p.MergeSize; size.X < unit || size.Y < unit || size.X%unit != 0 || size.Y%unit != 0 {
				t.Fatalf("%dx%d: found %v, expected multiples of %d", width, height, size, unit)
			}
			if size.X*size.Y > 1<<14 {
				continue
			}
			if in, err := p.Process(image.NewRGBA(image.Rect(0, 0, size.X,
				size.Y))); err != nil || len(in.Pixels) != size.X*size.Y*3*p.TemporalPatchSize {
				t.Fatalf("%v: found %d values, %v", size, len(in.Pixels), err)
			}
		}
	})
}

// smaller overrides defaults, which do not fit together.
const smaller = `"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4`

func TestQwen25VLConfigs(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{` + smaller + `}`, ""},
		{`{"text_config": {` + smaller + `}}`, ""},
		{`{"text_config": null, "vision_config": null, ` + smaller + `}`, ""},
		{`{` + smaller + `, "rope_theta": 5e5, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}`, ""},
		{`{` + smaller + `, "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [64]}}`, ""},
		{`{` + smaller + `, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}`, ""},
		{`{` + smaller + `, "vision_config": {"in_chans": 3, "rope_parameters": {"rope_type": "axial", "rope_theta": 100}}}`, ""},
		{`{` + smaller + `, "vision_config": {"rope_theta": 100, "rope_parameters": {"rope_type": "default"}}}`, ""},
		{`{}`, "vision_config: out_hidden_size 3584 must be hidden_size 8192"},
		{`{"text_config": {}, ` + smaller + `}`, "must be hidden_size 8192"}, // with text_config, the top level is not read
		{`{` + smaller + `, "vocab_size": 0}`, "vocab_size 0: expected 1 to 1048576"},
		{`{` + smaller + `, "num_hidden_layers": 1001}`, "num_hidden_layers 1001: expected 1 to 1000"},
		{`{"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 3}`,
			"num_attention_heads 28 must be a multiple of num_key_value_heads 3"},
		{`{"hidden_size": 3584, "num_attention_heads": 30, "num_key_value_heads": null}`,
			"hidden_size 3584 must be num_attention_heads 30 times an even number"},
		{`{` + smaller + `, "hidden_act": "gelu"}`, `hidden_act "gelu", expected silu`},
		{`{` + smaller + `, "rms_norm_eps": -1}`, "rms_norm_eps -1: must not be negative"},
		{`{` + smaller + `, "use_sliding_window": true}`, "use_sliding_window true"},
		{`{` + smaller + `, "layer_types": ["sliding_attention"]}`, "expected full_attention only"},
		{`{` + smaller + `, "rope_scaling": {"type": "yarn"}}`, `rope_type "yarn", expected default or mrope`},
		{`{` + smaller + `, "rope_theta": 0}`, "rope_theta 0 must be positive"},
		{`{` + smaller + `, "rope_scaling": {"mrope_section": [16, 24, 25]}}`, "mrope_section [16 24 25] must sum to 64"},
		{`{` + smaller + `, "rope_scaling": {"mrope_section": [-1, 65]}}`, "mrope_section [-1 65]: must be positive"},
		{`{` + smaller + `, "vision_config": {"depth": 0}}`, "vision_config: depth 0: expected 1 to 1000"},
		{`{` + smaller + `, "vision_config": {"num_heads": 15}}`, "hidden_size 3584 must be num_heads 15 times a multiple of 4"},
		{`{` + smaller + `, "vision_config": {"hidden_act": "quick_gelu"}}`, `hidden_act "quick_gelu", expected silu`},
		{`{` + smaller + `, "vision_config": {"in_chans": 4}}`, "in_channels or in_chans is not 3"},
		{`{` + smaller + `, "vision_config": {"in_channels": 1}}`, "in_channels or in_chans is not 3"},
		{`{` + smaller + `, "vision_config": {"window_size": 27}}`, "window_size 27 must be at least 28"},
		{`{` + smaller + `, "vision_config": {"patch_size": 0}}`, "patch size 0"},
		{`{` + smaller + `, "vision_config": {"rope_parameters": {"rope_type": "linear"}}}`, `rope_type "linear", expected axial`},
		{`{` + smaller + `, "vision_config": {"rope_scaling": {"type": "yarn"}}}`, `rope_type "yarn", expected axial`},
		{`{` + smaller + `, "vision_config": {"rope_theta": 0}}`, "rope_theta 0 must be positive"},
		{`{` + smaller + `, "vision_config": {"rope_parameters": {"rope_theta": -1}}}`, "rope_theta -1 must be positive"},
	} {
		t.Run(c.text, func(t *testing.T) {
			config := textenc.DefaultQwen25VLConfig()
			if err := json.Unmarshal([]byte(c.text), &config); err != nil {
				t.Fatal(err)
			}
			switch err := config.Validate(); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("found %v, expected %q", err, c.want)
			}
		})
	}
}

// TestQwen25VLNames checks the number of tensors with and without the vision encoder.
func TestQwen25VLNames(t *testing.T) {
	c := qwen25VLConfig(t, "qwen25vl-published")
	names := func(vision bool) (all []string) {
		for _, p := range nn.Parameters(textenc.NewQwen25VL(c, vision, 0)) {
			all = append(all, p.Name)
		}
		return all
	}
	text, both := names(false), names(true)
	visual := 0
	for _, name := range both {
		if strings.HasPrefix(name, "visual.") {
			visual++
		}
	}
	if len(text) != 2*12+2 || len(both) != len(text)+visual || visual != 2*12+6 {
		t.Errorf("%d tensors without the vision encoder, %d of %d belong to it", len(text), visual, len(both))
	}
}

func TestQwen2VLImageProcessorConfigs(t *testing.T) {
	load := func(files fstest.MapFS) (*textenc.Qwen2VLImageProcessor, error) {
		return textenc.LoadQwen2VLImageProcessor(files, "processor")
	}
	for _, c := range []struct{ text, want string }{
		{`{}`, ""},
		{`{"min_pixels": 10, "max_pixels": 20, "size": {"shortest_edge": 5, "longest_edge": 1}}`, ""},
		{`{"do_resize": false}`, "do_resize, do_rescale and do_normalize must be true"},
		{`{"resample": 2}`, "resample 2, expected 3 (bicubic)"},
		{`{"rescale_factor": 0}`, "rescale_factor 0 must be positive"},
		{`{"image_mean": [0.5]}`, "image_mean and image_std must have 3 numbers"},
		{`{"image_std": [0.5, 0, 1]}`, "image_std has a zero"},
		{`{"max_pixels": 3135}`, "an image of 3136 to 3135 pixels"},
		{`{"size": {"longest_edge": 999999999}}`, "an image of 3136 to 999999999 pixels"},
		{`{"patch_size": 0}`, "patch size 0"},
		{`{"merge_size": 257}`, "merge size 257"},
		{`{"patch_size": "large"}`, "patch_size"},
	} {
		for name, text := range map[string]string{
			"preprocessor_config.json": c.text,
			"processor_config.json":    `{"image_processor": ` + c.text + `}`,
		} {
			_, err := load(fstest.MapFS{"processor/" + name: {Data: []byte(text)}})
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(),
				"processor/"+name)):
				t.Errorf("%s: %s: found %v, expected %q", name, text, err, c.want)
			}
		}
	}
	if _, err := load(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("found %v without any file", err)
	}
	p, err := load(fstest.MapFS{
		"processor/processor_config.json":    {Data: []byte(`{"image_processor": {"patch_size": 7}}`)},
		"processor/preprocessor_config.json": {Data: []byte(`{"patch_size": 8}`)},
	})
	if err != nil || p.PatchSize != 7 {
		t.Errorf("found %+v, %v, expected the newer file's", p, err)
	}
	p, err = load(fstest.MapFS{
		"processor/processor_config.json":    {Data: []byte(`{"processor_class": "Qwen2_5_VLProcessor"}`)},
		"processor/preprocessor_config.json": {Data: []byte(`{"patch_size": 8}`)},
	})
	if err != nil || p.PatchSize != 8 {
		t.Errorf("found %+v, %v, expected the older file's", p, err)
	}
}
