package catalog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/errs"
)

func TestFindLoRA(t *testing.T) {
	cache, home, here, library := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("HOME", home)
	t.Setenv("LORA_LIBRARY_PATH", filepath.Join(library, "nowhere")+string(filepath.ListSeparator)+library)
	t.Chdir(here)
	for name, text := range map[string]string{
		cache + "/models--me--one/refs/main":                                             "c1",
		cache + "/models--me--one/snapshots/c1/README.md":                                "",
		cache + "/models--me--one/snapshots/c1/style.safetensors":                        "",
		cache + "/models--me--one/snapshots/c2/older.safetensors":                        "",
		cache + "/models--me--peft/snapshots/c1/adapter_model.safetensors":               "",
		cache + "/models--me--peft/snapshots/c1/adapter_config.json":                     "",
		cache + "/models--me--peft/snapshots/c1/checkpoint-10/adapter_model.safetensors": "",
		cache + "/models--me--peft/snapshots/c1/other.safetensors":                       "",
		cache + "/models--me--many/snapshots/c1/a.safetensors":                           "",
		cache + "/models--me--many/snapshots/c1/sub/b.safetensors":                       "",
		cache + "/models--me--many/snapshots/c1/z.safetensors":                           "",
		cache + "/models--me--pickle/snapshots/c1/pytorch_lora_weights.bin":              "",
		cache + "/models--me--nothing/snapshots/c1/README.md":                            "",
		home + "/mine.safetensors":                                                       "",
		here + "/loras/mine.safetensors":                                                 "",
		here + "/me/one":                                                                 "a file of a repository's name",
		here + "/folder/pytorch_lora_weights.safetensors":                                "",
		here + "/folder/other.safetensors":                                               "",
		here + "/deep/sub/only.safetensors":                                              "",
		here + "/deep/sub/._only.safetensors":                                            "",
		here + "/deep/.cache/hidden.safetensors":                                         "",
		here + "/deep/1/2/3/4/far.safetensors":                                           "",
		here + "/old.ckpt":                                                               "",
		library + "/styles/ink.safetensors":                                              "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		cache + "/models--me--begun/snapshots/c1/x.safetensors": "../../blobs/abc",
		here + "/linked": here + "/folder",
	} {
		if err := os.MkdirAll(filepath.Dir(link), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func(repo, commit, file string) string {
		return filepath.Join(cache, "models--me--"+repo, "snapshots", commit, file)
	}
	for name, want := range map[string]LoRAFile{
		"loras/mine.safetensors":   {"loras/mine.safetensors", "loras/mine.safetensors", ""},
		"~/mine.safetensors":       {"~/mine.safetensors", home + "/mine.safetensors", ""},
		"me/one":                   {"me/one", "me/one", ""},
		"folder":                   {"folder/pytorch_lora_weights.safetensors", "folder/pytorch_lora_weights.safetensors", ""},
		"./folder/":                {"folder/pytorch_lora_weights.safetensors", "folder/pytorch_lora_weights.safetensors", ""},
		"linked":                   {"linked/pytorch_lora_weights.safetensors", "linked/pytorch_lora_weights.safetensors", ""},
		"deep":                     {"deep/sub/only.safetensors", "deep/sub/only.safetensors", ""},
		"me/one@main":              {"me/one:style.safetensors", snapshot("one", "c1", "style.safetensors"), "c1"},
		"me/one@c2":                {"me/one:older.safetensors", snapshot("one", "c2", "older.safetensors"), "c2"},
		"me/one:style.safetensors": {"me/one:style.safetensors", snapshot("one", "c1", "style.safetensors"), "c1"},
		"me/peft":                  {"me/peft:adapter_model.safetensors", snapshot("peft", "c1", "adapter_model.safetensors"), "c1"},
		"me/peft:checkpoint-10/adapter_model.safetensors": {"me/peft:checkpoint-10/adapter_model.safetensors",
			snapshot("peft", "c1", "checkpoint-10/adapter_model.safetensors"), "c1"},
		"me/many@c1:sub/b.safetensors": {"me/many:sub/b.safetensors", snapshot("many", "c1", "sub/b.safetensors"), "c1"},
		"ink":                          {library + "/styles/ink.safetensors", library + "/styles/ink.safetensors", ""},
		"ink.safetensors":              {library + "/styles/ink.safetensors", library + "/styles/ink.safetensors", ""},
	} {
		found, err := FindLoRA(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if *found != want {
			t.Errorf("%s: found %+v, expected %+v", name, *found, want)
		}
	}
	for name, want := range map[string]struct {
		text string
		is   error
	}{
		"":                        {"name is empty", errs.ErrNotFound},
		"nothing":                 {"no LoRA nothing: expected a safetensors file", errs.ErrNotFound},
		"loras/other.safetensors": {"no LoRA loras/other.safetensors: expected a safetensors file", errs.ErrNotFound},
		"me/other": {"no file me/other, and me/other: not in the Hugging Face cache " + cache +
			" (to get it: gomflux pull me/other)", errs.ErrNotFound},
		"me/other:x.safetensors":  {"(to get it: gomflux pull me/other:x.safetensors)", errs.ErrNotFound},
		"me/one@v1:x.safetensors": {"(to get it: gomflux pull me/one@v1:x.safetensors)", errs.ErrNotFound},
		"me/begun":                {"(to get it: gomflux pull me/begun:x.safetensors)", hub.ErrNotCached},
		"me/many":                 {"me/many: expected one LoRA, found 2 safetensors files: name one of a.safetensors, z.safetensors", nil},
		"me/pickle":               {"only pickle files, which can run arbitrary code: pytorch_lora_weights.bin", errs.ErrUnsupported},
		"me/many:a.pt":            {"pickle file", errs.ErrUnsupported},
		"old.ckpt":                {"old.ckpt: not supported: pickle file", errs.ErrUnsupported},
		"me/nothing":              {"me/nothing: contains no safetensors file", nil},
	} {
		found, err := FindLoRA(name)
		switch {
		case err == nil || !strings.Contains(err.Error(), want.text):
			t.Errorf("%s: %+v, error %v, expected %q", name, found, err, want.text)
		case want.is != nil && !errors.Is(err, want.is):
			t.Errorf("%s: error %v is not %v", name, err, want.is)
		case want.is == nil && (errors.Is(err, errs.ErrNotFound) || errors.Is(err, errs.ErrUnsupported)):
			t.Errorf("%s: error %v is about something else", name, err)
		}
	}
}

func TestListLoRAs(t *testing.T) {
	cache, library := t.TempDir(), t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("LORA_LIBRARY_PATH", filepath.Join(library, "nowhere")+string(filepath.ListSeparator)+library)
	file := func(tensor string) string {
		header := `{"` + tensor + `":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`
		return string([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}) + header + "\x00\x00\x00\x00"
	}
	const lora, weight = "transformer.x_embedder.lora_A.weight", "x_embedder.weight"
	for name, text := range map[string]string{
		cache + "/models--me--two/refs/main":                      "c1",
		cache + "/models--me--two/snapshots/c1/a.safetensors":     file(lora),
		cache + "/models--me--two/snapshots/c1/b.safetensors":     file(lora),
		cache + "/models--me--model/refs/main":                    "c1",
		cache + "/models--me--model/snapshots/c1/m.safetensors":   file(weight),
		cache + "/models--me--model/snapshots/c1/bad.safetensors": "x",
		library + "/styles/ink.safetensors":                       file(lora),
		library + "/vae.safetensors":                              file(weight),
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	names, err := ListLoRAs()
	if got := strings.Join(names, " "); err != nil || got != "ink me/two:a.safetensors me/two:b.safetensors" {
		t.Errorf("found %s, %v", got, err)
	}
	for _, name := range names {
		if _, err := FindLoRA(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
