package picture

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// seedFiles adds the files of testdata that match.
func seedFiles(f *testing.F, patterns ...string) {
	f.Helper()
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil || len(names) == 0 {
			f.Fatalf("no seeds %s: %v", pattern, err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
}

// checkError fails where a message is not one short line.
func checkError(t *testing.T, err error) {
	t.Helper()
	if text := err.Error(); strings.ContainsAny(text, "\n\r") || len(text) > 1000 {
		t.Errorf("error %q", text)
	}
}

func FuzzReadSettings(f *testing.F) {
	seedFiles(f, "gomflux.*", "mflux.*", "easydiffusion.*", "orientation-6.*")
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := ReadSettings(bytes.NewReader(data))
		if err != nil {
			checkError(t, err)
			return
		}
		for _, name := range found.Fields {
			if err := found.Settings.checkField(name); err != nil {
				t.Errorf("read settings that are not allowed: %v", err)
			}
		}
		if found.JSON != nil && !json.Valid(found.JSON) || (found.JSON == nil) != (found.Source == SourceParameters) {
			t.Errorf("%s: JSON %q", found.Source, found.JSON)
		}
	})
}

func FuzzDecode(f *testing.F) {
	seedFiles(f, "rgb*", "*.webp", "cmyk.jpg", "progressive.jpg", "palette*.png", "bit.png", "la.png", "refused/*")
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := decode(bytes.NewReader(data), 1<<16)
		if err != nil {
			checkError(t, err)
			return
		}
		size := p.Image.Rect.Size()
		if size.X*size.Y < 1 || size.X*size.Y > 1<<16 || !p.Image.Opaque() {
			t.Errorf("a picture of %v", size)
		}
	})
}

// Chunks alone, since checksums keep mutations of whole files out.
func FuzzPNGText(f *testing.F) {
	f.Add("tEXt", []byte("parameters\x00caf\xe9"))
	f.Add("zTXt", []byte("parameters\x00\x00"+deflate("a cat")))
	f.Add("iTXt", []byte("gomflux\x00\x01\x00en\x00a\x00"+deflate("{}")))
	f.Add("iTXt", []byte("gomflux\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		_, text, err := pngText(kind, body, "gomflux", "parameters")
		if err == nil && (!utf8.ValidString(text) || len(text) > 2*maxText) {
			t.Errorf("text %.60q", text)
		}
		whole := appendChunk([]byte(pngSignature), kind, string(body))
		pngTexts(append(whole, appendChunk(nil, "IEND", "")...))
	})
}

func FuzzEXIF(f *testing.F) {
	f.Add(appendEXIF(nil, "", "Steps: 1, Seed: 2"))
	f.Add(appendEXIF([]byte(exifPrefix), `{"gomflux":{}}`, "雨🎈"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e := parseEXIF(data)
		if e.orientation < 1 || e.orientation > 8 || !utf8.ValidString(e.comment) || !utf8.ValidString(e.description) {
			t.Errorf("%+v", e)
		}
	})
}

func FuzzJPEGSegments(f *testing.F) {
	f.Add(appendSegment(appendSegment(nil, 0xe0, []byte("JFIF")), markerCOM, []byte(`{"gomflux":{"version":1}}`)))
	f.Add(appendSegment(nil, markerAPP1, appendEXIF([]byte(exifPrefix), "", "Steps: 8")))
	f.Add([]byte("\xff\xff\x01\x00\xff\xfe\x00\x02"))
	f.Fuzz(func(t *testing.T, segments []byte) {
		data := append([]byte("\xff\xd8"), segments...)
		texts, err := jpegTexts(append(data, "\xff\xd9"...))
		if err == nil && texts.settings != nil && !json.Valid(texts.settings) {
			t.Errorf("settings %q", texts.settings)
		}
	})
}

func FuzzWebPChunks(f *testing.F) {
	f.Add([]byte("RIFF\x1e\x00\x00\x00WEBPEXIF\x09\x00\x00\x00Exif\x00\x00MM*\x00ANIM\x00\x00\x00\x00"))
	seedFiles(f, "mflux.webp")
	f.Fuzz(func(t *testing.T, data []byte) {
		webpTexts(data)
		size := 0
		err := webpChunks(data, func(_ string, body []byte) { size += 8 + len(body) })
		if size > len(data) || err == nil && len(data) < 12 {
			t.Errorf("%d bytes of chunks in %d, error %v", size, len(data), err)
		}
	})
}

func FuzzParameters(f *testing.F) {
	f.Add("a cat\nNegative prompt: dog\nSteps: 8, Sampler: \"a, b\", Seed: 7, Size: 8x16\nTemplate: x")
	f.Add("Steps: 1, Model: \"\\u12\", : , \"")
	f.Add("a cat\nSteps: 8, Denoising strength: 0.75, Mask blur: 4, Mask mode: Inpaint not masked, Inpaint area: Only masked, " +
		"Masked area padding: 32, Expand: \"0,8,0,300\", Paste back: no, Version: gomflux v9")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?") // as it comes out of chunks
		f := parseParameters(text)
		if f == nil {
			return
		}
		if len(f.Fields) == 0 || len(f.Settings.Prompt) > len(text) {
			t.Errorf("got %+v", f)
		}
		for _, name := range f.Fields {
			if err := f.Settings.checkField(name); err != nil {
				t.Error(err)
			}
		}
	})
}

// The JSON of other programs. It is not that of a file, whose bytes would keep mutations out.
func FuzzForeign(f *testing.F) {
	for _, c := range foreign {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found, err := texts{parameters: text, chunks: map[string]string{"prompt": text}}.parse()
		if err != nil {
			return
		}
		for _, name := range found.Fields {
			if err := found.Settings.checkField(name); err != nil {
				t.Error(err)
			}
		}
		for _, l := range found.NotUsed {
			if len(l.Value) > 200 || strings.ContainsAny(l.Value, "\n\r") {
				t.Errorf("%q is not one short line", l.Value)
			}
		}
	})
}

// What is written is read again, whatever the strings are.
func FuzzRoundTrip(f *testing.F) {
	s := full()
	f.Add(s.Prompt, s.NegativePrompt, s.Model, s.Generator, s.Seed, s.Guidance)
	f.Add("一一一\x00", "Steps: 8, Seed: 7", `"`, "\r", uint64(0), -1e-300)
	f.Fuzz(func(t *testing.T, prompt, negative, model, generator string, seed uint64, guidance float64) {
		s := Settings{
			Version: 1, Prompt: prompt, NegativePrompt: negative, Model: model, Generator: generator,
			Seed: seed, Guidance: guidance, Steps: 8, Height: 5, Width: 7,
		}
		for _, path := range []string{model, generator} {
			if path != "" {
				s.References = append(s.References, SourceImage{Path: path})
				s.LoRAs = append(s.LoRAs, LoRA{Path: path, Scale: 0.5, SHA256: full().Image.SHA256})
			}
		}
		if model != "" {
			crop := int(seed % (MaxSide + 2))
			s.Mask, s.MaskCrop, s.MaskBlur = &SourceImage{Path: model}, &crop, &crop
			s.Expand = []int{0, crop, 0, 1}
			s.ImageStrength, s.InvertMask, s.NoPasteBack = float64(seed%1000)/1000, seed%2 == 1, seed%3 == 1
		}
		if s.Check() != nil {
			return
		}
		for _, format := range []Format{PNG, JPEG, WebP} {
			found, err := ReadSettings(bytes.NewReader(encode(t, format, &s)))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(found.Settings, s) {
				t.Errorf("%v: got %+v, want %+v", format, found.Settings, s)
			}
			if found.Parameters == "" && format == JPEG && len(prompt)+len(negative)+len(model)+len(generator) > 5000 {
				continue // the text was too long
			}
			p, ok := parsed(found.Parameters)
			if !ok || p.Seed != seed || p.Guidance != guidance || p.Steps != 8 || p.Height != 5 || p.Width != 7 {
				t.Errorf("%v: parameters %q became %+v", format, found.Parameters, p)
			}
			if printable(model) == model && p.Model != model || printable(generator) == generator && p.Generator != generator {
				t.Errorf("%v: parameters %q: model %q, generator %q", format, found.Parameters, p.Model, p.Generator)
			}
			if !sameInpainting(&p, &s) {
				t.Errorf("%v: parameters %q became %+v", format, found.Parameters, p)
			}
		}
	})
}

// sameInpainting reports whether the settings of inpainting that were read from a parameters text
// are those of s, which it was written for.
func sameInpainting(p, s *Settings) bool {
	same := reflect.DeepEqual(p.MaskBlur, s.MaskBlur) && reflect.DeepEqual(p.MaskCrop, s.MaskCrop) &&
		p.InvertMask == s.InvertMask && p.ImageStrength == s.ImageStrength
	if strings.HasPrefix(p.Generator, "gomflux ") {
		return same && slices.Equal(p.Expand, s.Expand) && p.NoPasteBack == s.NoPasteBack
	}
	return same && p.Expand == nil && !p.NoPasteBack
}
