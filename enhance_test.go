package gomflux_test

import (
	"errors"
	"image"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// TestEnhance rewrites a prompt before an image is generated. Its settings generate the same image without
// a language model.
func TestEnhance(t *testing.T) {
	m := openTestModel(t, "qwen-edit")
	seed := uint64(3)
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	var streamed strings.Builder
	o := gomflux.Options{
		Prompt: "a red hat", Height: 32, Width: 32, Steps: 1, Seed: &seed, References: []image.Image{img},
		Enhance: &gomflux.LanguageOptions{Seed: 1, MaxTokens: 12, Text: func(text string, _ bool) { streamed.WriteString(text) }},
	}
	first, err := m.Generate(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := first.Settings
	if s.OriginalPrompt != "a red hat" || s.Prompt != strings.TrimSpace(streamed.String()) || s.EnhancedBy != s.Model {
		t.Errorf("settings have prompt %q, original %q, by %q; streamed %q", s.Prompt, s.OriginalPrompt, s.EnhancedBy, streamed.String())
	}
	again := gomflux.OptionsFrom(&s)
	again.References = o.References
	second, err := m.Generate(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first.Image.Pix, second.Image.Pix) || second.Settings.OriginalPrompt != "a red hat" {
		t.Errorf("the settings generate another image, or have lost the prompt: %+v", second.Settings)
	}
	again.Prompt = "a red hat"
	typed, err := m.Generate(t.Context(), again)
	if err != nil || slices.Equal(first.Image.Pix, typed.Image.Pix) {
		t.Errorf("the prompt as it was typed generates the same image: %v", err)
	}
}

// TestBoxes expects the user's box at the end of a rewritten prompt, and an error by a model whose prompts cannot have any.
func TestBoxes(t *testing.T) {
	m := openTestModel(t, "flux3-klein")
	seed := uint64(3)
	o := gomflux.Options{Prompt: "a man", Height: 32, Width: 32, Steps: 1, Seed: &seed, Enhance: &gomflux.LanguageOptions{
		MaxTokens: 12, Boxes: []gomflux.Box{{ID: "hat", Desc: "red", BBox: []float64{0, 0.25, 0.5, 1}}},
	}}
	res, err := m.Generate(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	const table = ` [{"id": "hat", "bbox": [0, 250, 500, 1000], "desc": "red"}]`
	if s := res.Settings; !strings.HasSuffix(s.Prompt, table) || s.OriginalPrompt != "a man" || len(s.Prompt) == len(table) {
		t.Errorf("prompt %q of %q, expected a text and%s", s.Prompt, s.OriginalPrompt, table)
	}
	if _, err := openTestModel(t, "qwen-edit").Generate(t.Context(), o); err == nil || !strings.Contains(err.Error(), "boxes: ") {
		t.Errorf("Qwen-Image-Edit: %v", err)
	}
}

// TestEnhanceLowRAM checks that in low RAM no transformer is in memory while a prompt is rewritten or an image
// described, and that the image is the same.
func TestEnhanceLowRAM(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	seed := uint64(3)
	var used [2][2]int
	var pixels [2][]uint8
	for i, low := range []bool{false, true} {
		m, err := gomflux.Open(t.Context(), "models/testdata/qwen-edit/model", &gomflux.OpenOptions{Device: gomflux.CPU, LowRAM: low})
		if err != nil {
			t.Fatal(err)
		}
		language := func(what int) *gomflux.LanguageOptions {
			return &gomflux.LanguageOptions{MaxTokens: 3, Text: func(string, bool) { used[i][what] = mlx.ActiveMemory() }}
		}
		o := gomflux.Options{Prompt: "a hat", Height: 32, Width: 32, Steps: 1, Seed: &seed, References: []image.Image{img}}
		_, err = m.Generate(t.Context(), o)
		_, err2 := m.Describe(t.Context(), img, "", language(0))
		o.Enhance = language(1)
		r, err3 := m.Generate(t.Context(), o)
		if err := errors.Join(err, err2, err3, m.Close()); err != nil {
			t.Fatal(err)
		}
		pixels[i] = r.Image.Pix
	}
	const transformer = 45000 // bytes of its weights, about
	for what := range used[0] {
		if saved := used[0][what] - used[1][what]; saved < transformer {
			t.Errorf("low RAM saves %d bytes", saved)
		}
	}
	if !slices.Equal(pixels[0], pixels[1]) {
		t.Error("the image is another one")
	}
}

// TestDescribe describes an image with a model in low RAM, which then still generates images.
func TestDescribe(t *testing.T) {
	m := openTestModel(t, "qwen-edit")
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	var parts int
	d, err := m.Describe(t.Context(), img, "what is it?", &gomflux.LanguageOptions{MaxTokens: 9, Text: func(string, bool) { parts++ }})
	if err != nil || d.Text == "" || d.Tokens != 9 || parts < 2 {
		t.Errorf("%+v in %d parts, %v", d, parts, err)
	}
	same, err := m.Describe(t.Context(), img, "what is it?", &gomflux.LanguageOptions{MaxTokens: 9})
	if err != nil || same.Text != d.Text {
		t.Errorf("%+v, %v, expected %q", same, err, d.Text)
	}
	if _, err := m.Generate(t.Context(), gomflux.Options{
		Prompt: "a hat", Height: 32, Width: 32, Steps: 1, References: []image.Image{img},
	}); err != nil {
		t.Error(err)
	}
	_, err = openTestModel(t, "zimage-small").Describe(t.Context(), img, "", nil)
	if !errors.Is(err, gomflux.ErrRequest) {
		t.Fatalf("a model without vision: %v", err)
	}
	mlxtest.Contains(t, err.Error(), "cannot see images")
	_, err = m.Describe(t.Context(), img, "", &gomflux.LanguageOptions{Model: "nothing"})
	if !errors.Is(err, gomflux.ErrNotFound) {
		t.Errorf("a language model that does not exist: %v", err)
	}
	m.Close()
	if _, err := m.Describe(t.Context(), img, "", nil); !errors.Is(err, gomflux.ErrClosed) {
		t.Errorf("a closed model: %v", err)
	}
}

// openTestModel opens a small random model in low RAM.
func openTestModel(t *testing.T, name string) *gomflux.Model {
	t.Helper()
	m, err := gomflux.Open(t.Context(), "models/testdata/"+name+"/model", &gomflux.OpenOptions{Device: gomflux.CPU, LowRAM: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// TestLanguageModel keeps a language model for several texts. Another model can be closed while it is loaded,
// to make room for it.
func TestLanguageModel(t *testing.T) {
	other := openTestModel(t, "zimage-small")
	source, err := gomflux.Find("models/testdata/qwen-edit/model")
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	m, err := source.OpenLanguageModel(t.Context(), &gomflux.LanguageOptions{Device: gomflux.CPU, Progress: func(gomflux.Progress) {
		if !closed {
			closed = true
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
	}})
	if err != nil || !closed {
		t.Fatalf("%v, the other model was closed: %v", err, closed)
	}
	o := &gomflux.LanguageOptions{Seed: 1, MaxTokens: 12}
	alone, err := source.Enhance(t.Context(), "a red hat", nil, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e, err := m.Enhance(t.Context(), source, "a red hat", nil, o)
		if err != nil || *e != *alone {
			t.Errorf("%+v, %v, expected %+v", e, err, alone)
		}
	}
	turns := []gomflux.Message{
		{Role: "system", Parts: []gomflux.Part{{Text: "Be short."}}},
		{Role: "user", Parts: []gomflux.Part{{Text: "What is it?"}, {Image: image.NewRGBA(image.Rect(0, 0, 64, 64))}}},
	}
	a, err := m.Chat(t.Context(), turns, o)
	if err != nil || a.Text == "" || a.Tokens != 12 || a.Whole || a.PromptTokens < 20 {
		t.Fatalf("%+v, %v", a, err)
	}
	short := *o
	short.Stop = []string{a.Text[1:]}
	if b, err := m.Chat(t.Context(), turns, &short); err != nil || b.Text != strings.TrimSpace(a.Text[:1]) || !b.Whole {
		t.Errorf("%+v, %v, expected the first letter of %q", b, err, a.Text)
	}
	short.Sampling = &gomflux.Sampling{Temperature: -1}
	if _, err := m.Chat(t.Context(), turns, &short); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("a negative temperature: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Chat(t.Context(), turns, o); !errors.Is(err, gomflux.ErrClosed) {
		t.Errorf("a closed model: %v", err)
	}
}
