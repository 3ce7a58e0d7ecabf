package picture

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"image"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/gomflux.*")

// full has a value in every field.
func full() *Settings {
	blur := new(int)
	*blur = 8
	return &Settings{
		Version: 1, Generator: "gomflux v0.4.0", Model: "Tongyi-MAI/Z-Image-Turbo",
		Revision: "5f4b9cbb80cc95ba44fe6667dfd75710f7db2947", BaseModel: "z-image", Class: "ZImagePipeline",
		Prompt:         "a café — 雨の中, 8 p.m.: \"open\" <&> 🎈\nNegative prompt: not really\nSteps: 3, Seed: 1, Size: 2x2",
		OriginalPrompt: "a cat", EnhancedBy: "krea-2",
		NegativePrompt: "blurry\tor\\worse", Seed: math.MaxUint64, Steps: 8, Guidance: 3.25,
		GuidanceUnit: CFGScaleMinusOne, Height: 5, Width: 7, Layers: 4, Layer: 2,
		GuidanceInterval: []float64{0, 0.6}, StepCache: "first-block:0.1", Sigmas: []float64{1, 0.6, 0.2},
		TrueCFGScale: 1.5, CFGNormalization: 1, CFGTruncation: 0.7,
		MaxSequenceLength: 512, Scheduler: "flow_match_euler_discrete", RNG: "torch", Dtype: "bfloat16", Device: "metal", MLX: "0.32.2",
		Background: "transparent",
		Batch:      4, Split: "passes", Ranks: 2, Tuning: "packed-4=64 compile=off", KVCache: true,
		Image:         &SourceImage{Path: `C:\pictures\in, 1.png`, SHA256: strings.Repeat("0123456789abcdef", 4)},
		ImageStrength: 0.4,
		References:    []SourceImage{{Path: "dress, “red”.png", SHA256: strings.Repeat("fedcba9876543210", 4)}, {Path: "~/b.jpg"}},
		Mask:          &SourceImage{Path: "mask.png", SHA256: strings.Repeat("76543210fedcba98", 4)},
		InvertMask:    true, MaskBlur: blur, MaskCrop: new(int), Expand: []int{0, 16, 0, 300}, NoPasteBack: true,
		Upscaler: "realesrgan-x4plus", UpscaledHeight: 20, UpscaledWidth: 28, Refine: 0.25,
		Quantize: "4", GroupSize: 32,
		LoRAs: []LoRA{
			{Path: "me/loras:in/ink, wash.safetensors", Revision: strings.Repeat("0f", 20), Scale: 0.7,
				SHA256: strings.Repeat("89abcdef01234567", 4)},
			{Path: "~/b.safetensors", Scale: -1},
		},
		RuntimeLoRA: true,
		Created:     time.Date(2026, 11, 21, 16, 30, 5, 0, time.UTC), Seconds: 12.5,
	}
}

func gradient(w, h int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.SetRGBA(x, y, color.RGBA{uint8(x * 30), uint8(y * 40), 128, 255})
		}
	}
	return img
}

func encode(t testing.TB, format Format, s *Settings) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Encode(&b, format, gradient(7, 5), s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	long := full()
	long.Prompt = strings.Repeat("\x01", maxPrompt)
	long.NegativePrompt = strings.Repeat("\x01", maxPrompt)
	long.References = slices.Repeat([]SourceImage{{Path: strings.Repeat("\x01", maxString), SHA256: full().Image.SHA256}}, maxReferences)
	long.LoRAs = slices.Repeat([]LoRA{{Path: strings.Repeat("\x01", maxString), Revision: strings.Repeat("\x01", maxString),
		SHA256: full().Image.SHA256}}, maxLoRAs)
	bare := &Settings{Model: "shapes", Prompt: "", Steps: 1, Height: 1, Width: 1}
	for name, s := range map[string]*Settings{"full": full(), "long": long, "bare": bare} {
		want := *s
		want.Version = SettingsVersion
		for _, format := range []Format{PNG, JPEG, WebP, 0} {
			var data []byte
			if format == 0 {
				var b bytes.Buffer
				if err := EncodeSettings(&b, s); err != nil {
					t.Fatal(err)
				}
				data = b.Bytes()
			} else {
				data = encode(t, format, s)
				if !bytes.Equal(data, encode(t, format, s)) {
					t.Errorf("%s, %v: encoded differently the second time", name, format)
				}
			}
			f, err := ReadSettings(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("%s, %v: %v", name, format, err)
			}
			if f.Source != SourceGomflux || !reflect.DeepEqual(f.Settings, want) {
				t.Errorf("%s, %v: got %s settings %+v, want %+v", name, format, f.Source, f.Settings, want)
			}
			if name == "full" && !reflect.DeepEqual(f.Fields, settingsFields) {
				t.Errorf("%v: found fields %v, want %v", format, f.Fields, settingsFields)
			}
			if name == "bare" && (f.Has("scheduler") || f.Has("image") || f.Has("created") || !f.Has("seed")) {
				t.Errorf("%v: found fields %v", format, f.Fields)
			}
			if hasText := f.Parameters != ""; hasText != (format == PNG || format == WebP || format == JPEG && name != "long") {
				t.Errorf("%s, %v: parameters text %.60q", name, format, f.Parameters)
			}
			if format != 0 {
				p, err := Decode(bytes.NewReader(data))
				if err != nil {
					t.Fatalf("%s, %v: %v", name, format, err)
				}
				if d := worst(t, p.Image, gradient(7, 5)); d > 0 && format != JPEG || d > 25 { // a steep picture, its chroma halved
					t.Errorf("%s, %v: the picture is off by %d", name, format, d)
				}
			}
		}
	}
}

// The metadata of the golden files was checked with Pillow (testdata/check.py).
func TestGoldenBytes(t *testing.T) {
	for name, format := range map[string]Format{"gomflux.png": PNG, "gomflux.jpg": JPEG, "gomflux.webp": WebP, "gomflux.metadata.json": 0} {
		name = filepath.Join("testdata", name)
		var got []byte
		if format == 0 {
			var b bytes.Buffer
			if err := EncodeSettings(&b, full()); err != nil {
				t.Fatal(err)
			}
			got = b.Bytes()
		} else {
			got = encode(t, format, full())
		}
		if *update {
			if err := os.WriteFile(name, got, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// what follows is Go's encoder's, and may change with its version
		if end, ok := map[Format]string{PNG: "IDAT", JPEG: "\xff\xdb"}[format]; ok {
			got, _, _ = bytes.Cut(got, []byte(end))
			want, _, _ = bytes.Cut(want, []byte(end))
		}
		if format == PNG { // and so may IDAT's length
			got, want = got[:len(got)-4], want[:len(want)-4]
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		f, err := ReadSettingsFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(f.Settings, *full()) {
			t.Errorf("%s: got %+v", name, f.Settings)
		}
	}
}

// A text within Latin-1 is in the chunk that every program reads.
func TestPNGTextChunk(t *testing.T) {
	s := full()
	s.Prompt, s.NegativePrompt, s.LoRAs = "café\x00\x1b", "", nil
	for _, c := range []struct{ prompt, kind, want string }{
		{"café\x00\x1b\r\n1", "tEXt", "parameters\x00caf\xe9  \n1\nSteps: 8, "},
		{"雨", "iTXt", "parameters\x00\x00\x00\x00\x00雨\nSteps: 8, "},
		{"Ã©", "iTXt", "parameters\x00\x00\x00\x00\x00Ã©\nSteps: 8, "}, // in Latin-1 the bytes of é in UTF-8
	} {
		s.Prompt = c.prompt
		var kinds []string
		err := pngChunks(encode(t, PNG, s), func(kind string, body []byte, verify func() error) error {
			kinds = append(kinds, kind)
			if len(kinds) == 2 && (kind != c.kind || !strings.HasPrefix(string(body), c.want)) {
				t.Errorf("%q: got %s chunk %q", c.prompt, kind, body)
			}
			return verify()
		})
		if err != nil {
			t.Error(err)
		}
		if want := []string{"IHDR", c.kind, "iTXt", "IDAT", "IEND"}; !reflect.DeepEqual(kinds, want) {
			t.Errorf("%q: chunks %v, want %v", c.prompt, kinds, want)
		}
	}
}

func TestNoSettings(t *testing.T) {
	for _, format := range []Format{PNG, JPEG, WebP} {
		data := encode(t, format, nil)
		if bytes.Contains(data, []byte("gomflux")) {
			t.Errorf("%v: has metadata", format)
		}
		if _, err := ReadSettings(bytes.NewReader(data)); !errors.Is(err, ErrNoSettings) {
			t.Errorf("%v: got error %v", format, err)
		}
	}
	if _, err := ReadSettings(strings.NewReader(`{"seed": 1}`)); !errors.Is(err, ErrNoSettings) {
		t.Errorf("got error %v", err)
	}
}

func TestCheck(t *testing.T) {
	for want, change := range map[string]func(s *Settings){
		"":                       func(s *Settings) {},
		"guidance: ":             func(s *Settings) { s.Guidance = math.NaN() },
		"guidance_interval: ":    func(s *Settings) { s.GuidanceInterval = []float64{0.6, 0.6} },
		"seconds: ":              func(s *Settings) { s.Seconds = math.Inf(1) },
		"steps: ":                func(s *Settings) { s.Steps = 0 },
		"width: ":                func(s *Settings) { s.Width = MaxSide + 1 },
		"height: ":               func(s *Settings) { s.Height = -1 },
		"max_sequence_length: ":  func(s *Settings) { s.MaxSequenceLength = -1 },
		"prompt is not UTF-8":    func(s *Settings) { s.Prompt = "\xff" },
		"prompt: expected at mo": func(s *Settings) { s.Prompt = strings.Repeat("a", maxPrompt+1) },
		"model: ":                func(s *Settings) { s.Model = strings.Repeat("a", maxString+1) },
		"image.sha256: ":         func(s *Settings) { s.Image.SHA256 = "abc" },
		"image.path is not":      func(s *Settings) { s.Image.Path = "\xff" },
		"mask.sha256: ":          func(s *Settings) { s.Mask.SHA256 = "x" },
		"mask_blur: ":            func(s *Settings) { *s.MaskBlur = -1 },
		"mask_crop: ":            func(s *Settings) { *s.MaskCrop = MaxSide + 1 },
		"expand: ":               func(s *Settings) { s.Expand = []int{0, 0, 0, 0} },
		"image_strength: ":       func(s *Settings) { s.ImageStrength = 1.5 },
		"references: expected at most 64, found 65": func(s *Settings) {
			s.References = slices.Repeat(s.References[:1], maxReferences+1)
		},
		"references[1].path is missing":  func(s *Settings) { s.References[1].Path = "" },
		"references[0].path is not":      func(s *Settings) { s.References[0].Path = "\xff" },
		"references[0].path: expected":   func(s *Settings) { s.References[0].Path = strings.Repeat("a", maxString+1) },
		"references[1].sha256: expected": func(s *Settings) { s.References[1].SHA256 = "ABC" },
		"loras: expected at most 32, found 33": func(s *Settings) {
			s.LoRAs = slices.Repeat(s.LoRAs[:1], maxLoRAs+1)
		},
		"loras[1].path is missing": func(s *Settings) { s.LoRAs[1].Path = "" },
		"loras[0].scale: ":         func(s *Settings) { s.LoRAs[0].Scale = math.NaN() },
		"loras[0].sha256: ":        func(s *Settings) { s.LoRAs[0].SHA256 = "ABC" },
		"loras[0].revision is not": func(s *Settings) { s.LoRAs[0].Revision = "\xff" },
		"group_size: ":             func(s *Settings) { s.GroupSize = -1 },
		"created: ":                func(s *Settings) { s.Created = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC) },
		"written by a newer":       func(s *Settings) { s.Version = 2 },
	} {
		s := full()
		change(s)
		err := s.Check()
		if want == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "settings: "+want) {
			t.Errorf("got error %v, want %q", err, want)
		}
		for _, format := range []Format{PNG, JPEG, WebP} {
			var b bytes.Buffer
			if err := Encode(&b, format, gradient(1, 1), s); err == nil || b.Len() > 0 {
				t.Errorf("%s: Encode wrote %d bytes, error %v", want, b.Len(), err)
			}
		}
		if err := EncodeSettings(&bytes.Buffer{}, s); err == nil {
			t.Errorf("%s: EncodeSettings wrote it", want)
		}
	}
}

func TestFormatOf(t *testing.T) {
	for name, want := range map[string]Format{
		"a.png": PNG, "a.b/c.PNG": PNG, "a.jpg": JPEG, "a.JPEG": JPEG, "a.Jpg": JPEG, "a.webp": WebP,
		"a": 0, "a.gif": 0, "png": 0, ".png/a": 0, "": 0,
	} {
		got, err := FormatOf(name)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: got %v, %v", name, got, err)
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	if err := Encode(&bytes.Buffer{}, 0, gradient(1, 1), nil); err == nil {
		t.Error("wrote an unknown format")
	}
	if err := Encode(&failing{}, WebP, gradient(1, 1), full()); !errors.Is(err, errFull) {
		t.Errorf("WebP: got error %v", err)
	}
	for _, format := range []Format{PNG, JPEG} {
		for i := range 3 {
			w := &failing{after: i}
			if err := Encode(w, format, gradient(1, 1), full()); !errors.Is(err, errFull) {
				t.Errorf("%v: write %d failed, got error %v", format, i, err)
			}
		}
	}
}

var errFull = errors.New("no space left")

// failing is a writer that takes some writes and then fails.
type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if f.after == 0 {
		return 0, errFull
	}
	f.after--
	return len(p), nil
}

func TestJSONIsStrict(t *testing.T) {
	ok := `{"gomflux":{"version":1,"seed":7,"future":{"a":[1]},"model":"x"}}`
	f, err := ReadSettings(strings.NewReader(" \n" + ok + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Settings.Seed != 7 || !reflect.DeepEqual(f.Fields, []string{"version", "model", "seed"}) || !json.Valid(f.JSON) {
		t.Errorf("got %+v", f)
	}
	for object, want := range map[string]string{
		`{}`:                       "version is missing",
		`{"version":2,"seed":"a"}`: "written by a newer gomflux (settings version 2",
		`{"version":0}`:            "version: expected a whole number from 1",
		`{"version":null}`:         "version: expected a whole number, found null",
		`{"Version":1}`:            "version is missing",
		`{"version":1,"seed":-1}`:  "seed: expected a whole number from 0 to 2^64-1, found -1",
		`{"version":1,"seed":18446744073709551616}`:              "seed: expected",
		`{"version":1,"seed":1.5}`:                               "seed: expected",
		`{"version":1,"seed":"1"}`:                               "seed: expected",
		`{"version":1,"steps":0}`:                                "steps: expected a whole number from 1",
		`{"version":1,"steps":1e9}`:                              "steps: expected a whole number",
		`{"version":1,"guidance":1e999}`:                         "guidance: expected a number",
		`{"version":1,"guidance":NaN}`:                           "invalid JSON",
		`{"version":1,"mask":"a.png"}`:                           "mask: expected an object with path and sha256",
		`{"version":1,"mask_blur":1.5}`:                          "mask_blur: expected a whole number, found 1.5",
		`{"version":1,"mask_crop":-1}`:                           "mask_crop: expected a whole number from 0 to 65536, found -1",
		`{"version":1,"mask_crop":null}`:                         "mask_crop: expected a whole number, found null",
		`{"version":1,"expand":[1,2,3]}`:                         "expand: expected four whole numbers from 0 to 65536",
		`{"version":1,"expand":[1,2,3,70000]}`:                   "expand: expected four whole numbers from 0 to 65536",
		`{"version":1,"expand":"all"}`:                           "expand: expected an array of four whole numbers",
		`{"version":1,"no_paste_back":1}`:                        "no_paste_back: expected true or false",
		`{"version":1,"guidance_interval":[0.5,0.5]}`:            "guidance_interval: expected two numbers from 0 to 1 that rise",
		`{"version":1,"guidance_interval":[0]}`:                  "guidance_interval: expected two numbers from 0 to 1 that rise",
		`{"version":1,"guidance_interval":0.5}`:                  "guidance_interval: expected an array of two numbers",
		`{"version":1,"guidance_interval":null}`:                 "guidance_interval: expected an array of two numbers",
		`{"version":1,"prompt":7}`:                               "prompt: expected a string, found 7",
		`{"version":1,"image":"a.png"}`:                          "image: expected an object",
		`{"version":1,"image":{"path":1}}`:                       "image: expected an object",
		`{"version":1,"references":{"path":"a"}}`:                "references: expected an array of objects with path and sha256, found {",
		`{"version":1,"references":["a.png"]}`:                   "references: expected an array",
		`{"version":1,"references":null}`:                        "references: expected an array",
		`{"version":1,"references":[null]}`:                      "references[0].path is missing",
		`{"version":1,"references":[{"path":"a","sha256":"0"}]}`: "references[0].sha256: expected 64",
		`{"version":1,"references":[` + strings.Repeat(`{"path":"a"},`, maxReferences) +
			`{"path":"a"}]}`: "references: expected at most 64, found 65",
		`{"version":1,"loras":["a"]}`:                      "loras: expected an array of objects with path, revision, scale, sha256 and",
		`{"version":1,"loras":[{"scale":1}]}`:              "loras[0].path is missing",
		`{"version":1,"loras":[{"path":"a","scale":"1"}]}`: "loras: expected an array",
		`{"version":1,"runtime_lora":1}`:                   "runtime_lora: expected true or false, found 1",
		`{"version":1,"created":"yesterday"}`:              "created: expected a time",
		`{"version":1,"version":1}`:                        "duplicate key",
		`[]`:                                               "expected a JSON object",
		`{"version":1,"seed":1`:                            "invalid JSON",
		`{"version":1} 2`:                                  "invalid JSON",
		"{\"version\":1,\"prompt\":\"\xff\"}":              "is not UTF-8",
		`{"version":1,"prompt":"` + strings.Repeat("a", maxPrompt+1) + `"}`: "prompt: expected at most",
	} {
		_, err := ReadSettings(strings.NewReader(`{"gomflux":` + object + `}`))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%.60s: got error %v, want %q", object, err, want)
		}
	}
	deep := `{"gomflux":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`
	if _, err := ReadSettings(strings.NewReader(deep)); err == nil {
		t.Error("read a million levels")
	}
}

func TestEncodeJPEG(t *testing.T) {
	files := map[int][]byte{}
	for _, quality := range []int{1, jpegQuality, 100} {
		var b bytes.Buffer
		if err := EncodeJPEG(&b, gradient(40, 30), full(), quality); err != nil {
			t.Fatal(err)
		}
		if found, err := ReadSettings(bytes.NewReader(b.Bytes())); err != nil || found.Settings.Prompt != full().Prompt {
			t.Errorf("quality %d: settings %v, %v", quality, found, err)
		}
		files[quality] = b.Bytes()
	}
	var b bytes.Buffer
	if err := Encode(&b, JPEG, gradient(40, 30), full()); err != nil || !bytes.Equal(b.Bytes(), files[jpegQuality]) {
		t.Errorf("Encode differs from quality %d (%v)", jpegQuality, err)
	}
	if !(len(files[1]) < len(files[jpegQuality]) && len(files[jpegQuality]) < len(files[100])) {
		t.Errorf("sizes %d, %d, %d", len(files[1]), len(files[jpegQuality]), len(files[100]))
	}
	for _, quality := range []int{0, 101} {
		if EncodeJPEG(&b, gradient(1, 1), nil, quality) == nil {
			t.Errorf("quality %d is accepted", quality)
		}
	}
}
