package gomflux_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
)

// TestModularFolder opens a modular pipeline as its makers publish it: without a scheduler, which diffusers' blocks make,
// with the tokenizer next to the text encoder, and with a component of another repository that nothing needs.
func TestModularFolder(t *testing.T) {
	plain := modeltest.Folder(t, "flux3-klein")
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(plain)); err != nil {
		t.Fatal(err)
	}
	join := func(names ...string) string { return filepath.Join(append([]string{folder}, names...)...) }
	if err := os.CopyFS(join("text_encoder"), os.DirFS(join("tokenizer"))); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"tokenizer", "scheduler"} {
		if err := os.RemoveAll(join(dir)); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := func(subfolder string) []any {
		return []any{nil, nil, map[string]any{
			"pretrained_model_name_or_path": "owner/other", "subfolder": subfolder, "type_hint": []string{"transformers", "Other"}}}
	}
	edit := func(change func(map[string]any)) {
		text, err := os.ReadFile(join("modular_model_index.json"))
		var members map[string]any
		if err == nil {
			err = json.Unmarshal(text, &members)
		}
		if err != nil {
			t.Fatal(err)
		}
		change(members)
		if text, err = json.Marshal(members); err == nil {
			err = os.WriteFile(join("modular_model_index.json"), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	edit(func(members map[string]any) {
		delete(members, "scheduler")
		members["prompt_upsampler"] = elsewhere("")
		members["tokenizer"].([]any)[2].(map[string]any)["subfolder"] = "text_encoder"
	})
	seed := uint64(7)
	generate := func(folder string) []byte {
		m, err := gomflux.Open(context.Background(), folder, &gomflux.OpenOptions{Device: gomflux.CPU})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		result, err := m.Generate(context.Background(), gomflux.Options{Prompt: "a red hat", Height: 32, Width: 48, Steps: 2, Seed: &seed})
		if err != nil {
			t.Fatal(err)
		}
		return result.Image.Pix
	}
	if !bytes.Equal(generate(plain), generate(folder)) {
		t.Error("the images differ")
	}
	edit(func(members map[string]any) { members["vae"] = elsewhere("vae") })
	if err := os.RemoveAll(join("vae")); err != nil {
		t.Fatal(err)
	}
	_, err := gomflux.Open(context.Background(), folder, nil)
	if err == nil || !strings.Contains(err.Error(), "the vae of this modular pipeline is in owner/other") {
		t.Errorf("a component of another repository: %v", err)
	}
}
