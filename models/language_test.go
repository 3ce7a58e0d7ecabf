package models_test

import (
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/textgen"
)

func openLanguage(t *testing.T, fsys fs.FS) (*models.LanguageModel, error) {
	t.Helper()
	cpu := mlx.CPU
	return models.LoadLanguageModel(fsys, models.LoadOptions{Device: &cpu})
}

func modelFolder(t *testing.T, name string) fs.FS {
	t.Helper()
	fsys, err := checkpoint.OpenFolder("testdata/" + name + "/model")
	if err != nil {
		t.Fatal(err)
	}
	return fsys
}

// TestWrite lets the text encoders of small random models write, which must be the same for the same
// seed, another text for another image or prompt, and free all memory.
func TestWrite(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 40, 30))
	other := image.NewRGBA(img.Rect)
	for i := range other.Pix {
		if img.Pix[i] = 255; i%4 == 3 {
			other.Pix[i] = 255
		} else {
			other.Pix[i] = uint8(i)
		}
	}
	for _, name := range []string{"zimage-small", "qwen-edit", "qwen-image-21"} {
		mlxtest.Do(t, func() {
			before := mlx.ActiveMemory()
			m, err := openLanguage(t, modelFolder(t, name))
			if err != nil {
				t.Fatal(err)
			}
			write := func(prompt string, images []image.Image, seed uint64) string {
				message := textgen.Message{Role: "user"}
				for _, img := range images {
					message.Content = append(message.Content, textgen.Content{Image: img})
				}
				message.Content = append(message.Content, textgen.Content{Text: prompt})
				o := textgen.Options{MaxTokens: 12, Sampling: textgen.Sampling{Temperature: 1}, Seed: seed}
				text, err := m.Write([]textgen.Message{message}, false, o, nil)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return text.Text
			}
			first := write("a red fox", nil, 1)
			if write("a red fox", nil, 1) != first || write("a red fox", nil, 3) == first {
				t.Errorf("%s: seeds 1 and 3 write %q and %q", name, first, write("a red fox", nil, 3))
			}
			shown := []textgen.Message{{Role: "user", Content: []textgen.Content{{Image: img}, {Text: "what?"}}}}
			_, err = m.Write(shown, false, textgen.Options{MaxTokens: 2}, nil)
			if name == "zimage-small" {
				if !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), "cannot see images") {
					t.Errorf("%s: an image: %v", name, err)
				}
			} else if err != nil || write("a", []image.Image{img}, 1) == write("a", []image.Image{other}, 1) {
				t.Errorf("%s: does not see images: %v", name, err)
			}
			m.Close()
			mlx.ClearCache()
			if after := mlx.ActiveMemory(); after > before {
				t.Errorf("%s: %d bytes stay in memory", name, after-before)
			}
		})
	}
}

// TestCaption compares the text that describes an image with transparent pixels with that of diffusers'
// get_image_caption, for a model whose image processor scales the image up.
func TestCaption(t *testing.T) {
	var want struct {
		Caption []int32
		Margin  float64
	}
	data, err := os.ReadFile("testdata/qwen-layered/caption.json")
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil || want.Margin < 1e-3 { // less, and rounding decides
		t.Fatal(want.Margin, err)
	}
	file, err := os.Open("testdata/qwen-layered/transparent.png")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	img, err := png.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Do(t, func() {
		m, err := openLanguage(t, modelFolder(t, "qwen-layered"))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		got, err := m.Caption(img, image.Pt(32, 64))
		if err != nil {
			t.Fatal(err)
		}
		expected, err := m.Spell(want.Caption)
		if err != nil {
			t.Fatal(err)
		}
		whole := func(text string) string { return strings.TrimSpace(strings.ReplaceAll(text, "\ufffd", "")) } // whole characters
		if found, expected := whole(got.Text), whole(expected); found != expected || len(found) < 500 {
			t.Errorf("found %q, expected %q", found, expected)
		}
	})
}

// TestEnhanceQuotes keeps quoted texts: a random model loses them, is asked again, and then the prompt
// stays.
func TestEnhanceQuotes(t *testing.T) {
	mlxtest.Do(t, func() {
		m, err := openLanguage(t, modelFolder(t, "zimage-small"))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		r, size := family.RewriterFor("ZImagePipeline"), image.Pt(32, 48)
		r.MaxTokens = 8
		lines := 0
		count := func(p textgen.Piece) { lines += strings.Count(p.Text, "\n") }
		e, err := m.Enhance(`a sign with "FOX 42"`, nil, size, r, 1, count)
		if err != nil || !strings.Contains(e.Lost, "FOX 42") || e.Text.Text != `a sign with "FOX 42"` || lines < 1 {
			t.Errorf("%+v, %v, asked %d times", e, err, lines)
		}
		e, err = m.Enhance("a sign", nil, size, r, 1, nil)
		if err != nil || e.Lost != "" || e.Text.Text == "a sign" || e.Text.Text == "" {
			t.Errorf("%+v, %v", e, err)
		}
		if _, err = m.Enhance(" \n", nil, size, r, 1, nil); !errors.Is(err, errs.ErrRequest) {
			t.Errorf("an empty prompt: %v", err)
		}
		r.MaxTokens = 0
		_, err = m.Enhance("a sign", nil, size, r, 1, nil)
		if !errors.Is(err, textgen.ErrNothing) || err.Error() != "rewriting the prompt: the language model wrote nothing" {
			t.Errorf("a model that writes nothing: %v", err)
		}
		r.MaxTokens, r.Sampling = 300, textgen.Sampling{}
		lines = 0
		if _, err = m.Enhance("a sign", nil, size, r, 1, count); !errors.Is(err, textgen.ErrLoop) || lines < 2 {
			t.Errorf("a model that repeats a token, asked %d times: %v", lines, err)
		}
		long := strings.Repeat("word ", 50_000)
		_, err = m.Enhance(long, nil, size, r, 1, nil)
		if err == nil || !strings.Contains(err.Error(), "the language model can see") {
			t.Errorf("a long prompt: %v", err)
		}
	})
}

func TestLostQuote(t *testing.T) {
	for _, c := range []struct{ prompt, rewritten, lost string }{
		{`a "red" fox`, `the fox is "red"`, ""},
		{`a "red" fox`, "a blue fox", "red"},
		{`"a" and “b c”`, "a, b  c", "b c"},
		{"「日本」と『東京』", "日本", "東京"},
		{"«oui» „nein“ „no”", "oui nein", "no"},
		{"it's Bob's fox", "a fox", ""},
		{`""`, "", ""},
	} {
		if lost := models.LostQuote(c.prompt, c.rewritten); lost != c.lost {
			t.Errorf("%q in %q lacks %q, expected %q", c.prompt, c.rewritten, lost, c.lost)
		}
	}
}

// TestLanguageErrors opens folders that cannot write: each error is one line that names the reason.
func TestLanguageErrors(t *testing.T) {
	mlxtest.Do(t, func() {
		for name, want := range map[string]string{
			"flux1-dev-small": "text encoders (CLIPTextModel, T5EncoderModel) cannot write text",
			"krea-2":          "lacks lm_head.weight",
		} {
			_, err := openLanguage(t, modelFolder(t, name))
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, expected %q", name, err, want)
			}
		}
		broken := fstest.MapFS{}
		whole := os.DirFS("testdata/zimage-small/model")
		err := fs.WalkDir(whole, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := fs.ReadFile(whole, name)
			broken[name] = &fstest.MapFile{Data: data}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var values map[string]any
		if err := json.Unmarshal(broken["text_encoder/config.json"].Data, &values); err != nil {
			t.Fatal(err)
		}
		delete(values, "eos_token_id")
		data, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		config := string(data)
		for file, c := range map[string][2]string{
			"tokenizer/chat_template.jinja":       {"{% if %}", "chat_template.jinja"},
			"text_encoder/generation_config.json": {`{"eos_token_id": "x"}`, "eos_token_id: expected a number"},
			"text_encoder/config.json":            {`{"architectures": ["GPT2LMHeadModel"]}`, "expected a language model"},
			"text_encoder/config.json eos": {strings.Replace(config, "{", `{"eos_token_id": "x", `, 1),
				"config.json: eos_token_id: expected"},
			"text_encoder/config.json text_config": {strings.Replace(config, "{", `{"text_config": {"eos_token_id": "x"}, `, 1),
				"config.json: text_config: eos_token_id: expected"},
		} {
			file, _, _ = strings.Cut(file, " ")
			kept := broken[file]
			broken[file] = &fstest.MapFile{Data: []byte(c[0])}
			_, err := openLanguage(t, broken)
			if err == nil || !strings.Contains(err.Error(), c[1]) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, expected %q", file, err, c[1])
			}
			if kept == nil {
				delete(broken, file)
			} else {
				broken[file] = kept
			}
		}
		m, err := openLanguage(t, broken)
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	})
}

// TestOwnEnhancer rewrites prompts with the component that ERNIE-Image's folders may have for it. The ids are
// those of transformers' tokenizer for the text of its apply_chat_template.
func TestOwnEnhancer(t *testing.T) {
	files := fstest.MapFS{}
	read := func(from, to string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[to] = &fstest.MapFile{Data: data}
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		read("testdata/ernie-image/model/tokenizer/"+name, "pe_tokenizer/"+name)
	}
	text := func(name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }
	text("pe_tokenizer/chat_template.jinja", `{{ bos_token }}[INST]{% for m in messages %}Rewrite: {{ m.content }}{% endfor %}[/INST]`+
		`{% if add_generation_prompt %}Output:{% endif %}`)
	text("pe/config.json", `{"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "vocab_size": 480, "hidden_size": 16,
		"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}`)
	text("model_index.json", `{"_class_name": "ErnieImagePipeline", "pe": ["transformers", "Ministral3ForCausalLM"],
		"text_encoder": ["transformers", "Mistral3Model"]}`)
	own := component.Folder{FS: files, Points: &hooks.Points{}}
	c, _, err := own.LanguageModel("language_model", "pe")
	if err != nil {
		t.Fatal(err)
	}
	weights := filepath.Join(t.TempDir(), "model.safetensors")
	modeltest.WriteRandom(t, weights, c.Model, rand.New(rand.NewPCG(1, 2)))
	read(weights, "pe/model.safetensors")
	r := family.RewriterFor("ErnieImagePipeline")
	r.MaxTokens = 12
	mlxtest.Do(t, func() {
		m, err := openLanguage(t, files)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		enhance := func(size image.Point, seed uint64) models.Enhanced {
			e, err := m.Enhance("a <s> hat", nil, size, r, seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		one := enhance(image.Pt(32, 48), 1)
		if one.Source != "the model's own pe" || one.Text.Tokens != 12 || one.Text != enhance(image.Pt(32, 48), 1).Text {
			t.Errorf("%+v", one)
		}
		if one.Text == enhance(image.Pt(48, 48), 1).Text || one.Text == enhance(image.Pt(32, 48), 2).Text {
			t.Error("the text is the same for another size or seed")
		}
		message, err := r.Message("a “hat” <b>\u2028\\u2028\n", 32, 48)
		if want := `{"prompt": "a “hat” <b>` + "\u2028" + `\\u2028\n", "width": 32, "height": 48}`; message != want || err != nil {
			t.Errorf("found %s, expected %s", message, want)
		}
		ids, err := m.Encode([]textgen.Message{textgen.TextMessage("user", `{"prompt": "a hat"}`)})
		want := []int32{1, 1, 3, 60, 79, 97, 92, 83, 284, 36, 231, 101, 12, 90, 92, 89, 87, 90, 94, 12, 36, 231, 12, 75, 231, 82, 282, 12,
			103, 4}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("%v, %v, expected %v", ids, err, want)
		}
	})
}

// TestWriteTekken lets a model write that has tekken.json alone, as Mistral publishes some.
func TestWriteTekken(t *testing.T) {
	files := fstest.MapFS{"config.json": {Data: []byte(`{"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3",
		"vocab_size": 400, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
		"num_key_value_heads": 1, "head_dim": 8}`)}}
	own := component.Folder{FS: files, Points: &hooks.Points{}}
	c, _, err := own.LanguageModel("language_model", ".")
	if err != nil {
		t.Fatal(err)
	}
	weights := filepath.Join(t.TempDir(), "model.safetensors")
	modeltest.WriteRandom(t, weights, c.Model, rand.New(rand.NewPCG(1, 2)))
	const tekken = "../textenc/tokenizer/testdata/tekken-3/tekken.json"
	for from, to := range map[string]string{weights: "model.safetensors", tekken: "tekken.json"} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[to] = &fstest.MapFile{Data: data}
	}
	mlxtest.Do(t, func() {
		m, err := openLanguage(t, files)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		text, err := m.Write([]textgen.Message{textgen.TextMessage("user", "hat</s>")}, false, textgen.Options{MaxTokens: 5}, nil)
		// <s>[INST], three letters, </s> as text, [/INST]
		if err != nil || text.Prompt < 8 || text.Tokens != 5 {
			t.Errorf("%+v, %v", text, err)
		}
		ids, err := m.Encode([]textgen.Message{textgen.TextMessage("user", "ab")})
		if err != nil || !slices.Equal(ids, []int32{1, 3, 30 + 'a', 30 + 'b', 4}) {
			t.Errorf("%v, %v", ids, err)
		}
	})
}

// TestLanguageModelPeak compares the estimated memory of reading a prompt and writing with the measured one.
func TestLanguageModelPeak(t *testing.T) {
	config := fstest.MapFS{"config.json": {Data: []byte(`{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4000,
		"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
		"head_dim": 64, "tie_word_embeddings": false, "max_position_embeddings": 40960}`)}}
	cpu, dtype := mlx.CPU, mlx.Float32
	for _, tokens := range [][2]int{{16, 8}, {700, 8}, {64, 200}} {
		mlxtest.Do(t, func() {
			before := mlx.ActiveMemory()
			random := &models.Random{Dtype: checkpoint.F32}
			m, err := models.LoadLanguageModel(config, models.LoadOptions{Device: &cpu, Dtype: &dtype, Random: random})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			mlx.ResetPeakMemory()
			m.Measure(tokens[0], tokens[1])
			measured, estimated := int64(mlx.PeakMemory()-before), m.Peak(tokens[0], tokens[1])
			t.Logf("%v: %d MB, estimated %d MB, weights %d MB", tokens, measured>>20, estimated>>20, m.Memory(0)>>20)
			if d := estimated - measured; d > measured/10 || d < -measured/10 {
				t.Errorf("%v: %d bytes, estimated %d", tokens, measured, estimated)
			}
		})
	}
	mlxtest.Do(t, func() {
		before := mlx.ActiveMemory()
		for name, writes := range map[string]bool{"zimage-small": true, "flux1-dev-small": false} {
			e, low, _, err := models.EstimateModel(modelFolder(t, name), models.LoadOptions{Device: &cpu})
			if err != nil || e.Rewrite > 1<<18 != writes || e.Rewrite != low.Rewrite {
				t.Errorf("%s: %d bytes to rewrite a prompt, %d with low RAM, %v", name, e.Rewrite, low.Rewrite, err)
			}
		}
		if after := mlx.ActiveMemory(); after > before+1<<16 {
			t.Errorf("%d bytes are in memory, %d before", after, before)
		}
	})
}
