package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf16"
)

// mflux 0.24.0's own writer made these files.
func TestMfluxFiles(t *testing.T) {
	want := Settings{
		Generator: "mflux 0.24.0", Model: "Tongyi-MAI/Z-Image-Turbo", Prompt: "a cat, on a “mat”\nNegative prompt: none",
		NegativePrompt: "blurry, ugly", Seed: 42, Steps: 9, Height: 2, Width: 3, Dtype: "bfloat16",
		Image: &SourceImage{Path: "in.png"}, ImageStrength: 0.4, Seconds: 12.35, Quantize: "8",
	}
	for _, name := range []string{"mflux.png", "mflux.jpg", "mflux.webp", "mflux.metadata.json"} {
		f, err := ReadSettingsFile(filepath.Join("testdata", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if f.Source != SourceMflux || !reflect.DeepEqual(f.Settings, want) {
			t.Errorf("%s: got %s settings %+v, want %+v", name, f.Source, f.Settings, want)
		}
		if f.Has("guidance") || !f.Has("seed") || !bytes.Contains(f.JSON, []byte(`"quantize"`)) {
			t.Errorf("%s: fields %v, JSON %s", name, f.Fields, f.JSON)
		}
	}
}

func TestMfluxEdit(t *testing.T) {
	want := Settings{
		Generator: "mflux 0.24.0", Model: "black-forest-labs/FLUX.2-klein-4B", Prompt: "the cat of image 1 on the mat of image 2",
		Seed: 42, Steps: 4, Guidance: 1, Height: 2, Width: 3, Dtype: "bfloat16", Seconds: 12.35,
		References: []SourceImage{{Path: "cat.png"}, {Path: "in/mat.jpg"}},
	}
	for _, name := range []string{"mflux-edit.png", "mflux-edit.metadata.json"} {
		f, err := ReadSettingsFile(filepath.Join("testdata", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if f.Source != SourceMflux || !reflect.DeepEqual(f.Settings, want) || f.Has("image") {
			t.Errorf("%s: got %s settings %+v, want %+v", name, f.Source, f.Settings, want)
		}
	}
}

func TestMfluxJSON(t *testing.T) {
	for text, want := range map[string]Settings{
		`{"mflux_version":"0.9.0","model":"z-image","model_path":"/models/z","guidance":3.5}`: {Generator: "mflux 0.9.0",
			Model: "/models/z", Guidance: 3.5},
		`{"mflux_version":null,"image_paths":["a.png"],"scheduler":"linear"}`: {Generator: "mflux ",
			References: []SourceImage{{Path: "a.png"}}, Scheduler: "linear"},
		`{"mflux_version":"1","image_paths":[],"image_path":"a.png","revision":7}`: {Generator: "mflux 1",
			Image: &SourceImage{Path: "a.png"}},
		`{"mflux_version":"1","image_path":"a.png","masked_image_path":"m.png","image_strength":0.4}`: {
			Generator: "mflux 1", Image: &SourceImage{Path: "a.png"}, Mask: &SourceImage{Path: "m.png"},
		},
		`{"mflux_version":"1","image_path":"a.png","image_paths":["a.png","b.png"],"image_strength":0.4}`: {
			Generator: "mflux 1", References: []SourceImage{{Path: "a.png"}, {Path: "b.png"}},
		},
		`{"mflux_version":"1","quantize":8,"lora_paths":["a.safetensors","b/c"],"lora_scales":[0.5]}`: {
			Generator: "mflux 1", Quantize: "8", LoRAs: []LoRA{{Path: "a.safetensors", Scale: 0.5}, {Path: "b/c", Scale: 1}},
		},
		`{"mflux_version":"1","quantize":null,"lora_paths":null,"lora_scales":[]}`: {Generator: "mflux 1"},
	} {
		f, err := ReadSettings(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if !reflect.DeepEqual(f.Settings, want) {
			t.Errorf("%s: got %+v", text, f.Settings)
		}
	}
	for text, want := range map[string]string{
		"{\"mflux_version\":[1,\n\t2]}":            "expected a string, found [1, 2]",
		`{"mflux_version":1}`:                      "settings of mflux: mflux_version: expected a string, found 1",
		`{"mflux_version":"1","seed":-1}`:          "seed: expected",
		`{"mflux_version":"1","image_paths":"a"}`:  "image_paths: expected strings",
		`{"mflux_version":"1","image_paths":[""]}`: "references[0].path is missing",
		`{"mflux_version":"1","quantize":"8"}`:     "quantize: expected a whole number",
		`{"mflux_version":"1","lora_paths":"a"}`:   "lora_paths: expected strings",
		`{"mflux_version":"1","lora_scales":"a"}`:  "lora_scales: expected numbers",
		`{"mflux_version":"1","lora_paths":[""]}`:  "loras[0].path is missing",
		`{"mflux_version":"1","image_path":[]}`:    "image_path: expected a string",
		`{"mflux_version":"1","precision":{}}`:     "precision: expected a string",
		`{"mflux_version":"1","model_path":false}`: "model_path: expected a string",
	} {
		if _, err := ReadSettings(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v", text, err)
		}
	}
}

func TestLoRAsInParameters(t *testing.T) {
	s := full()
	s.Prompt, s.NegativePrompt = "a cat", ""
	text := s.parameters()
	if first, _, _ := strings.Cut(text, "\n"); first != "a cat <lora:ink_ wash:0.7> <lora:b:-1>" {
		t.Errorf("the prompt is %q", first)
	}
	if want := `, Version: gomflux v0.4.0, Hashes: {"lora:ink_ wash":"89abcdef01"}`; !strings.HasSuffix(text, want) {
		t.Errorf("%q does not end with %q", text, want)
	}
	want := []LoRA{{Path: "ink_ wash", Scale: 0.7}, {Path: "b", Scale: -1}}
	if p, ok := parsed(text); !ok || p.Prompt != "a cat" || p.Generator != s.Generator || !reflect.DeepEqual(p.LoRAs, want) {
		t.Errorf("%q became %+v", text, p)
	}
	s.Prompt, s.LoRAs = `a <lora:b:1> as text`, nil // which stays text
	if p, ok := parsed(s.parameters()); !ok || p.Prompt != s.Prompt || p.LoRAs != nil {
		t.Errorf("%q became %+v", s.parameters(), p)
	}
}

// parsed returns the settings in a parameters text.
func parsed(text string) (s Settings, ok bool) {
	if f := parseParameters(text); f != nil {
		return f.Settings, true
	}
	return s, false
}

func TestInpaintingInParameters(t *testing.T) {
	s := full()
	const want = ", Denoising strength: 0.6, Mask blur: 8, Mask mode: Inpaint not masked, Inpaint area: Only masked, " +
		"Masked area padding: 0, Expand: \"0,16,0,300\", Paste back: no, Model: "
	if text := s.parameters(); !strings.Contains(text, want) {
		t.Errorf("%q does not contain %q", text, want)
	}
	if p, ok := parsed(s.parameters()); !ok || !sameInpainting(&p, s) || p.Mask != nil {
		t.Errorf("%q became %+v", s.parameters(), p)
	}
	s.InvertMask, s.MaskBlur, s.MaskCrop, s.ImageStrength, s.Expand, s.NoPasteBack = false, nil, nil, 0, nil, false
	if text := s.parameters(); !strings.Contains(text, "1,0.6,0.2\", Denoising strength: 1, Model: ") {
		t.Errorf("%q", text)
	}
	if p, ok := parsed(s.parameters()); !ok || !sameInpainting(&p, s) {
		t.Errorf("%q became %+v", s.parameters(), p)
	}
	s.Mask = nil
	if text := s.parameters(); strings.Contains(text, "Denoising") {
		t.Errorf("without a mask: %q", text)
	}
}

func TestParseParameters(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Settings
		fields     string
	}{
		{
			"web UI",
			"a cat,\r\nsitting\r\nNegative prompt: dog,\r\nbird\r\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, " +
				"CFG scale: 7.5, Seed: 965400086, " +
				"Size: 512x768, Model hash: 45dee52b, Model: v1-5-pruned, Lora hashes: \"a: 12, b: 34\", Version: v1.10.1",
			Settings{
				Generator: "v1.10.1", Model: "v1-5-pruned", Prompt: "a cat,\nsitting", NegativePrompt: "dog,\nbird",
				Seed: 965400086, Steps: 20, Guidance: 7.5, GuidanceUnit: CFGScale, Height: 768, Width: 512,
			},
			"generator model prompt negative_prompt seed steps guidance guidance_unit height width",
		},
		{
			"Forge, with lines after it",
			"a cat\nSteps: 4, Sampler: Euler, Schedule type: Simple, CFG scale: 1, Distilled CFG Scale: 3.5, Seed: 1, " +
				"Size: 896x1152, Model: \"flux: dev\", Version: f2.0.1\nTemplate: a {cat|dog}",
			Settings{Generator: "f2.0.1", Model: "flux: dev", Prompt: "a cat", Seed: 1, Steps: 4, Guidance: 3.5,
				GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 1152, Width: 896, Scheduler: "flow_match_euler_discrete"},
			"generator model prompt seed steps guidance guidance_unit true_cfg_scale height width scheduler",
		},
		{
			"stable-diffusion.cpp, with a transformer of its own file",
			"一只猫\nSteps: 4, CFG scale: 1.000000, Guidance: 3.500000, Eta: inf, Seed: 42, Size: 64x32, Model: , RNG: cuda, " +
				"Sampler: euler discrete, Unet: flux-2-klein-4b.safetensors, Version: stable-diffusion.cpp",
			Settings{Generator: "stable-diffusion.cpp", Model: "flux-2-klein-4b.safetensors", Prompt: "一只猫", Seed: 42, Steps: 4,
				Guidance: 3.5, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 32, Width: 64,
				Scheduler: "flow_match_euler_discrete"},
			"generator model prompt seed steps guidance guidance_unit true_cfg_scale height width scheduler",
		},
		{
			"stable-diffusion.cpp",
			"a cat\nNegative prompt: \nSteps: 8, CFG scale: 1.000000, Guidance: 3.500000, Eta: 0.000000, Seed: 42, " +
				"Size: 64x32, Model: z.gguf, RNG: cuda, Sampler: euler, Version: stable-diffusion.cpp",
			Settings{Generator: "stable-diffusion.cpp", Model: "z.gguf", Prompt: "a cat", Seed: 42, Steps: 8, Guidance: 3.5,
				GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 32, Width: 64, Scheduler: "flow_match_euler_discrete"},
			"generator model prompt seed steps guidance guidance_unit true_cfg_scale height width scheduler",
		},
		{
			"a settings line inside of the prompt, and a quote that is not one",
			"Steps: 3, Seed: 1\nx\nSteps: 5, Model: \"a\"b, Seed: 2, Sampler: flow_match_euler_discrete, Version: gomflux v9",
			Settings{Generator: "gomflux v9", Model: `"a"b`, Prompt: "Steps: 3, Seed: 1\nx", Seed: 2, Steps: 5,
				Scheduler: "flow_match_euler_discrete"},
			"generator model prompt seed steps scheduler",
		},
		{
			"settings that save work",
			"a cat\nSteps: 20, CFG scale: 4, Seed: 2, Guidance interval: \"0.1,0.6\", CFG normalization: 0.7, CFG truncation: 0.3, " +
				"Step cache: \"first-block:0.1\", Sigmas: \"1,0.5\", Version: gomflux v9",
			Settings{Generator: "gomflux v9", Prompt: "a cat", Seed: 2, Steps: 20, Guidance: 4, GuidanceUnit: CFGScale,
				GuidanceInterval: []float64{0.1, 0.6}, CFGNormalization: 0.7, CFGTruncation: 0.3, StepCache: "first-block:0.1",
				Sigmas: []float64{1, 0.5}},
			"generator prompt seed steps guidance guidance_unit guidance_interval cfg_normalization cfg_truncation step_cache sigmas",
		},
		{
			"inpainting",
			"a cat\nSteps: 20, CFG scale: 7, Seed: 3, Denoising strength: 0.7, Mask blur: 4, Inpaint area: Only masked, " +
				"Masked area padding: 32, Mask mode: Inpaint not masked, Expand: \"1,2,3,4\", Paste back: no, Version: v1.10.1",
			Settings{Generator: "v1.10.1", Prompt: "a cat", Seed: 3, Steps: 20, Guidance: 7, GuidanceUnit: CFGScale, ImageStrength: 0.3,
				InvertMask: true, MaskBlur: new(4), MaskCrop: new(32)},
			"generator prompt seed steps guidance guidance_unit image_strength invert_mask mask_blur mask_crop",
		},
		{
			"inpainting of the whole image, from noise",
			"a cat\nSteps: 20, Denoising strength: 1, Mask mode: Inpaint masked, Inpaint area: Whole picture, Masked area padding: 32, " +
				"Expand: \"0,0,0,0\", Paste back: yes, Version: gomflux v9",
			Settings{Generator: "gomflux v9", Prompt: "a cat", Steps: 20},
			"generator prompt steps",
		},
		{
			"values out of bounds are passed over",
			"Negative prompt: b\nSteps: 5, Seed: -1, Size: 0x7, CFG scale: NaN, Model: , Hires resize: 0x0, Denoising strength: 0, " +
				"Mask blur: -1, Inpaint area: Only masked, Masked area padding: 4.5",
			Settings{NegativePrompt: "b", Steps: 5, Height: 7},
			"prompt negative_prompt steps height",
		},
	} {
		got := parseParameters(c.text)
		if got == nil || !reflect.DeepEqual(got.Settings, c.want) || strings.Join(got.Fields, " ") != c.fields {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
	for _, text := range []string{"", "a cat", "a cat\nSeed: 3, Size: 2x2", "Steps: many",
		`{"sui_image_params": {"steps": 8, "Steps": "x"}}`, "Steps:\n8"} {
		if parseParameters(text) != nil {
			t.Errorf("%q was taken for parameters", text)
		}
	}
}

// Guidance scales in the units of other programs, and back.
func TestGuidanceUnits(t *testing.T) {
	for _, c := range []struct {
		guidance float64
		unit     GuidanceUnit
		text     string
		read     float64
		readUnit GuidanceUnit
	}{
		{4, "", "CFG scale: 4, Seed", 4, CFGScale}, // as in files of older versions, whose JSON counts
		{4, CFGScale, "CFG scale: 4, Seed", 4, CFGScale},
		{0, CFGScaleMinusOne, "CFG scale: 1, Seed", 1, CFGScale},
		{3.2, CFGScaleMinusOne, "CFG scale: 4.2, Seed", 4.2, CFGScale},
		{3.5, DistilledCFGScale, "CFG scale: 1, Distilled CFG Scale: 3.5, Seed", 3.5, DistilledCFGScale},
		{0, DistilledCFGScale, "CFG scale: 1, Seed", 1, CFGScale}, // FLUX.1-schnell
	} {
		with := Settings{Prompt: "x", Steps: 4, Guidance: c.guidance, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 2.5}
		if p, _ := parsed(with.parameters()); p.Guidance != c.guidance || p.GuidanceUnit != DistilledCFGScale ||
			p.TrueCFGScale != 2.5 || !strings.Contains(with.parameters(), "CFG scale: 2.5, Distilled CFG Scale: ") {
			t.Errorf("%q: %+v", with.parameters(), p)
		}
		s := Settings{Prompt: "x", Steps: 4, Guidance: c.guidance, GuidanceUnit: c.unit}
		text := s.parameters()
		if !strings.Contains(text, "Steps: 4, "+c.text) {
			t.Errorf("%g %s: %q", c.guidance, c.unit, text)
		}
		p, _ := parsed(text)
		if p.Guidance != c.read || p.GuidanceUnit != c.readUnit {
			t.Errorf("%q: guidance %g %s", text, p.Guidance, p.GuidanceUnit)
		}
		back, ok := p.GuidanceUnit.Convert(p.Guidance, c.unit)
		if none := c.guidance == 0 && c.unit == DistilledCFGScale; ok == none || !none && back != c.guidance {
			t.Errorf("%q: %g in the unit %q, %v", text, back, c.unit, ok)
		}
	}
	for _, c := range []struct {
		scale    float64
		from, to GuidanceUnit
		want     float64
		ok       bool
	}{
		{0.5, CFGScale, CFGScaleMinusOne, 0, true},
		{1e300, CFGScale, CFGScaleMinusOne, 1e300, true},
		{7, CFGScale, DistilledCFGScale, 7, true}, // of programs that know no distilled scale
		{2.5, CFGScaleMinusOne, DistilledCFGScale, 3.5, true},
		{0, CFGScaleMinusOne, DistilledCFGScale, 0, false},
		{3.5, DistilledCFGScale, CFGScale, 0, false},
		{3.5, "degrees", CFGScale, 0, false},
		{3.5, CFGScale, "degrees", 0, false},
		{3.5, CFGScale, "", 3.5, true},
	} {
		if got, ok := c.from.Convert(c.scale, c.to); ok != c.ok || ok && got != c.want {
			t.Errorf("%g from %q to %q: %g, %v", c.scale, c.from, c.to, got, ok)
		}
	}
}

const someParameters = "a cät\nSteps: 20, Seed: 3, Size: 8x16"

func deflate(text string) string {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	z.Write([]byte(text))
	z.Close()
	return b.String()
}

// pngWith is a PNG file with chunks between IHDR and IDAT, or before IEND.
func pngWith(t testing.TB, late bool, chunks []byte) []byte {
	data := encode(t, PNG, nil)
	at := pngHead
	if late {
		at = len(data) - 12
	}
	return bytes.Join([][]byte{data[:at], chunks, data[at:]}, nil)
}

func TestPNGTexts(t *testing.T) {
	latin := "parameters\x00" + strings.Replace(someParameters, "ä", "\xe4", 1)
	for name, chunk := range map[string][]byte{
		"tEXt":            appendChunk(nil, "tEXt", latin),
		"tEXt, UTF-8":     appendChunk(nil, "tEXt", "parameters\x00"+someParameters),
		"zTXt":            appendChunk(nil, "zTXt", "parameters\x00\x00"+deflate(latin[11:])),
		"iTXt":            appendChunk(nil, "iTXt", "parameters\x00\x00\x00de\x00Worte\x00"+someParameters),
		"iTXt compressed": appendChunk(nil, "iTXt", "parameters\x00\x01\x00\x00\x00"+deflate(someParameters)),
		"eXIf":            appendChunk(nil, "eXIf", string(appendEXIF(nil, "", someParameters))),
		"eXIf, prefix":    appendChunk(nil, "eXIf", string(appendEXIF([]byte("Exif\x00\x00"), "", someParameters))),
	} {
		for _, late := range []bool{false, true} {
			f, err := ReadSettings(bytes.NewReader(pngWith(t, late, chunk)))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if f.Source != SourceParameters || f.Settings.Prompt != "a cät" || f.Settings.Width != 8 || f.Settings.Seed != 3 ||
				f.Has("guidance") || f.Parameters != someParameters || f.JSON != nil {
				t.Errorf("%s: got %+v", name, f)
			}
		}
	}
	bomb := deflate(strings.Repeat("a", maxText+1))
	flipped := appendChunk(nil, "tEXt", latin)
	flipped[20] ^= 1
	for want, chunk := range map[string][]byte{
		`zTXt chunk "parameters": longer than 8388608 bytes`: appendChunk(nil, "zTXt", "parameters\x00\x00"+bomb),
		`iTXt chunk "gomflux": longer`:                       appendChunk(nil, "iTXt", "gomflux\x00\x01\x00\x00\x00"+bomb),
		`zTXt chunk "parameters": unknown compression`:       appendChunk(nil, "zTXt", "parameters\x00\x01"),
		`zTXt chunk "parameters": zlib:`:                     appendChunk(nil, "zTXt", "parameters\x00\x00abcdefgh"),
		`iTXt chunk "gomflux": unknown compression`:          appendChunk(nil, "iTXt", "gomflux\x00\x02\x00\x00\x00"),
		`the PNG file is truncated`:                          appendChunk(nil, "iTXt", "gomflux\x00\x00\x00en\x00{}"),
		`iTXt chunk "gomflux": not UTF-8`:                    appendChunk(nil, "iTXt", "gomflux\x00\x00\x00\x00\x00\xff"),
		`chunk "tEXt" has a wrong checksum`:                  flipped,
		`settings: invalid JSON`:                             appendChunk(nil, "tEXt", "gomflux\x00{"),
	} {
		_, err := ReadSettings(bytes.NewReader(pngWith(t, false, chunk)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	whole := encode(t, PNG, full())
	for n := range whole {
		if _, err := ReadSettings(bytes.NewReader(whole[:n])); err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("cut off at %d: error %v", n, err)
		}
	}
}

// Our JSON counts before mflux's, and that before a text, wherever they are.
func TestPrecedence(t *testing.T) {
	text := appendPNGText(nil, "parameters", someParameters)
	mflux := appendChunk(nil, "eXIf", string(appendEXIF(nil, "", `{"mflux_version":"1","seed":5}`)))
	ours := appendChunk(nil, "tEXt", "gomflux\x00"+`{"version":1,"seed":7}`)
	other := appendChunk(nil, "eXIf", string(appendEXIF(nil, "", `{"seed":5}`)))
	for _, c := range []struct {
		chunks [][]byte
		source Source
		seed   uint64
	}{
		{[][]byte{text, mflux, ours}, SourceGomflux, 7},
		{[][]byte{ours, mflux}, SourceGomflux, 7},
		{[][]byte{text, mflux}, SourceMflux, 5},
		{[][]byte{text, other}, SourceParameters, 3},
	} {
		f, err := ReadSettings(bytes.NewReader(pngWith(t, false, bytes.Join(c.chunks, nil))))
		if err != nil {
			t.Fatal(err)
		}
		if f.Source != c.source || f.Settings.Seed != c.seed {
			t.Errorf("got %s, seed %d, want %s, seed %d", f.Source, f.Settings.Seed, c.source, c.seed)
		}
	}
	_, err := ReadSettings(bytes.NewReader(pngWith(t, false,
		bytes.Join([][]byte{text, appendChunk(nil, "tEXt", "gomflux\x00"+`{"version":9}`)}, nil))))
	if err == nil || !strings.Contains(err.Error(), "written by a newer gomflux (settings version 9") {
		t.Errorf("got error %v", err)
	}
}

// exifBlock is an EXIF block of any byte order, with an orientation and a
// comment.
func exifBlock(order binary.AppendByteOrder, orientation uint16, kind uint16, comment string) []byte {
	mark := "II*\x00"
	if order == binary.BigEndian {
		mark = "MM\x00*"
	}
	b := order.AppendUint32([]byte(mark), 8)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, tagOrientation)
	b = order.AppendUint16(b, 3)
	b = order.AppendUint32(b, 1)
	b = order.AppendUint16(b, orientation)
	b = order.AppendUint16(b, 0)
	b = order.AppendUint16(b, tagExifIFD)
	b = order.AppendUint16(b, 4)
	b = order.AppendUint32(b, 1)
	b = order.AppendUint32(b, 38)
	b = order.AppendUint32(b, 0)
	b = order.AppendUint16(b, 1)
	b = order.AppendUint16(b, tagUserComment)
	b = order.AppendUint16(b, kind)
	b = order.AppendUint32(b, uint32(len(comment)))
	b = order.AppendUint32(b, 38+18)
	b = order.AppendUint32(b, 0)
	return append(b, comment...)
}

func utf16Bytes(order binary.AppendByteOrder, text string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

func TestEXIF(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	const unicode, ascii, undefined = "UNICODE\x00", "ASCII\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00"
	for _, c := range []struct{ comment, want string }{
		{unicode + utf16Bytes(be, "Steps: 雨🎈"), "Steps: 雨🎈"},
		{unicode + utf16Bytes(le, "Steps: 雨🎈"), "Steps: 雨🎈"},
		{unicode + "\xfe\xff" + utf16Bytes(be, "雨"), "雨"},
		{unicode + "\xff\xfe" + utf16Bytes(le, "雨"), "雨"},
		{unicode + utf16Bytes(be, "odd Steps:") + "x", "odd Steps:"},
		{ascii + "caf\xc3\xa9 \x00\x00", "café"},
		{ascii + "caf\xe9", "café"},
		{undefined + "plain", "plain"},
		{"no code at all", "no code at all"},
		{"JIS\x00\x00\x00\x00\x00abc", ""},
		{unicode, ""},
	} {
		for _, order := range []binary.AppendByteOrder{le, be} {
			for _, kind := range []uint16{7, 2} {
				e := parseEXIF(exifBlock(order, 6, kind, c.comment))
				if e.orientation != 6 || e.comment != c.want {
					t.Errorf("%v, type %d, %q: got %+v", order, kind, c.comment, e)
				}
			}
		}
	}
	// without a mark or Steps, the order of the block decides
	for _, order := range []binary.AppendByteOrder{le, be} {
		if got := parseEXIF(exifBlock(order, 1, 7, unicode+utf16Bytes(order, "雨の中"))).comment; got != "雨の中" {
			t.Errorf("%v: got %q", order, got)
		}
	}
	whole := exifBlock(le, 6, 7, ascii+"abcdef")
	for n := range whole {
		if got := parseEXIF(whole[:n]).comment; got != "" {
			t.Errorf("cut off at %d: got comment %q", n, got)
		}
	}
	for _, o := range []uint16{0, 9, 65535} {
		if got := parseEXIF(exifBlock(be, o, 7, "")).orientation; got != 1 {
			t.Errorf("orientation %d became %d", o, got)
		}
	}
}

func TestJPEGComments(t *testing.T) {
	data := encode(t, JPEG, nil)
	with := func(segments ...string) []byte {
		b := data[:2:2]
		for _, s := range segments {
			b = appendSegment(b, s[0], []byte(s[1:]))
		}
		return append(b, data[2:]...)
	}
	ours := `{"gomflux":{"version":1,"seed":7}}`
	for _, segments := range [][]string{
		{"\xfe" + ours},
		{"\xfemade by something", "\xfe" + ours},
		{"\xfe" + ours, "\xfemade by something"},
		{"\xfe" + ours[:11] + strings.Repeat(" ", maxSegment-11), "\xfe" + ours[11:], "\xfemade by something"},
	} {
		f, err := ReadSettings(bytes.NewReader(with(segments...)))
		if err != nil || f.Settings.Seed != 7 || f.Source != SourceGomflux {
			t.Errorf("%.40q: got %+v, %v", segments, f, err)
		}
	}
	for _, segments := range [][]string{
		{"\xfea cat"},
		{"\xe1" + "http://ns.adobe.com/xap/1.0/\x00<x/>"},
		{"\xe1Exif\x00\x00MM"},
	} {
		if _, err := ReadSettings(bytes.NewReader(with(segments...))); !errors.Is(err, ErrNoSettings) {
			t.Errorf("%q: got error %v", segments, err)
		}
	}
	if _, err := ReadSettings(bytes.NewReader(with("\xfe" + ours[:20]))); err == nil || errors.Is(err, ErrNoSettings) {
		t.Errorf("a cut off comment: got error %v", err)
	}
	// lengths around those that fill segments
	for _, n := range []int{maxSegment, 2 * maxSegment} {
		for d := -2; d <= 2; d++ {
			s := full()
			object, err := s.marshal("")
			if err != nil {
				t.Fatal(err)
			}
			s.Prompt += strings.Repeat("a", n+d-len(object)-len(commentStart+"}"))
			f, err := ReadSettings(bytes.NewReader(encode(t, JPEG, s)))
			if err != nil || f.Settings.Prompt != s.Prompt || f.Source != SourceGomflux {
				t.Errorf("JSON of %d bytes: %v", n+d, err)
			}
		}
	}
	whole := encode(t, JPEG, full())
	scan := bytes.Index(whole, []byte("\xff\xda"))
	for n := range scan {
		if _, err := ReadSettings(bytes.NewReader(whole[:n])); err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("cut off at %d: error %v", n, err)
		}
	}
}

func TestReadSettingsOfOtherFiles(t *testing.T) {
	for data, want := range map[string]string{
		"":                         "is empty",
		"hello":                    "not a PNG, JPEG or WebP image",
		"GIF89a":                   "format GIF is not supported",
		"{":                        "invalid JSON",
		"RIFF\xff\x00\x00\x00WEBP": "truncated",
	} {
		if _, err := ReadSettings(strings.NewReader(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v", data, err)
		}
	}
	name := filepath.Join(t.TempDir(), "none.png")
	if _, err := ReadSettingsFile(name); err == nil || strings.Count(err.Error(), name) != 1 {
		t.Errorf("got error %v", err)
	}
}

func TestFoundFormat(t *testing.T) {
	for name, want := range map[string]Found{
		"gomflux.png":         {Format: PNG, Width: 7, Height: 5},
		"gomflux.jpg":         {Format: JPEG, Width: 7, Height: 5},
		"gomflux.webp":        {Format: WebP, Width: 7, Height: 5},
		"mflux.webp":          {Format: WebP, Width: 3, Height: 2},
		"mflux.metadata.json": {},
	} {
		f, err := ReadSettingsFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if f.Format != want.Format || f.Width != want.Width || f.Height != want.Height {
			t.Errorf("%s: %v of %dx%d, expected %v of %dx%d", name, f.Format, f.Width, f.Height, want.Format, want.Width, want.Height)
		}
	}
}
