package parity

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/report"
)

// replayText replays what transformers has written with a language model of package textenc.
func replayText(t *testing.T, model string) *report.Report {
	t.Helper()
	dir, golden := t.TempDir(), filepath.Join("..", "textenc", "testdata", model)
	err := os.CopyFS(dir, os.DirFS(filepath.Join(testdata, "qwen-image-21", "model", "processor"))) // which has a tokenizer
	if err == nil {
		err = os.Remove(filepath.Join(dir, "preprocessor_config.json"))
	}
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(golden))
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := checkpoint.OpenArraysFS(os.DirFS(golden), "generated.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var arrays []*checkpoint.Array
	for name, as := range map[string]string{"text.prompt": "prompt.input_ids", "text.new": "written.input_ids", "text.logits": "logits"} {
		x, err := f.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		x.Name = as
		arrays = append(arrays, x)
	}
	run := filepath.Join(dir, "run")
	settings, err := json.Marshal(map[string]any{"model": "..", "new_tokens": 200, "never": []int{37, 38}, "compute": "float32"})
	if err == nil {
		err = os.Mkdir(run, 0o777)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(run, "settings.json"), settings, 0o666)
	}
	if err == nil {
		err = checkpoint.WriteFile(filepath.Join(run, "tensors.safetensors"), arrays, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := Replay(t.Context(), run, Options{Dtype: exact, Model: dir})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLanguage compares what language models write with transformers' text, with a cache and without.
func TestLanguage(t *testing.T) {
	for _, model := range []string{"qwen3-published", "qwen25vl-published", "qwen35-head"} {
		r := replayText(t, model)
		t.Log(r.Verdict.Text)
		var names []string
		for _, x := range r.Tensors {
			names = append(names, x.Name)
		}
		want := []string{"logits", "logits.cached", "written.input_ids", "logits.parts"}
		if !r.Verdict.OK || !slices.Equal(names, want) {
			t.Errorf("%s: %v, %q", model, r.Verdict, names)
		}
	}
}
