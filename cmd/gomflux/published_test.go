package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/models"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/publishedtest"
)

// TestPublished runs the command on every published model whose small files are there: no
// model is refused. Weights are random, and the models small. Several models have the same tokenizer, which
// takes most of the time: all commands run for the first of them, and generate for the others.
func TestPublished(t *testing.T) {
	found, tokenizers := published(t), map[string]bool{}
	image := filepath.Join(modeltest.Folder(t, "flux1-kontext"), "..", "first.png")
	mask := filepath.Join(modeltest.Folder(t, "flux1-fill"), "..", "mask.png")
	for _, m := range found {
		t.Run(m.Name, func(t *testing.T) {
			dir := t.TempDir()
			folder, saved := filepath.Join(dir, filepath.Base(m.Name)), filepath.Join(dir, "saved")
			err := m.Write(folder, true)
			if err == nil {
				err = m.WriteWeights(folder)
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Filled) > 0 {
				t.Log("gomflux's own values: ", strings.Join(slices.Sorted(maps.Keys(m.Filled)), ", "))
			}
			run := []string{"generate"}
			switch {
			case strings.Contains(m.Name, "Edit"), strings.Contains(m.Name, "Kontext"):
				run = []string{"edit", "--image", image}
			case strings.Contains(m.Name, "Fill"):
				run = []string{"inpaint", "--image", image, "--mask", mask}
			}
			succeeds(t, append(run, "-m", folder, "-p", "a red cat -- on a mat", "-H", "64", "-W", "64", "-s", "1", "--quiet",
				"-o", filepath.Join(dir, "a.png"))...)
			if tokenizers[tokenizerOf(m)] {
				return
			}
			tokenizers[tokenizerOf(m)] = true
			var shown models.ShownModel
			if err := json.Unmarshal([]byte(succeeds(t, "show", folder, "--json")), &shown); err != nil {
				t.Fatal(err)
			}
			if shown.State() != "ready" || shown.Memory == nil {
				t.Errorf("show: %s, %q, memory %v", shown.State(), shown.Problems, shown.Memory)
			}
			succeeds(t, "inspect", folder)
			succeeds(t, "save", "-m", folder, "--path", saved, "--quiet")
			for file, from := range m.Files {
				if name := filepath.Base(file); name == "config.json" || name == "model_index.json" || strings.Contains(name, ".index.") {
					continue
				}
				want, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(filepath.Join(saved, file)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("save: %s has other bytes (%v)", file, err)
				}
			}
		})
	}
}

// tokenizerOf returns the paths of a model's tokenizers.
func tokenizerOf(m *publishedtest.Model) string {
	var paths []string
	for _, file := range slices.Sorted(maps.Keys(m.Files)) {
		if folder := filepath.Dir(file); strings.HasPrefix(folder, "tokenizer") || folder == "processor" {
			paths = append(paths, m.Files[file])
		}
	}
	return strings.Join(paths, " ")
}

// published are the models whose files are there. Without them the test is skipped.
func published(t *testing.T) []*publishedtest.Model {
	root := publishedtest.Root("../..")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("the small files of published models are not there (%s names their folder): %v", publishedtest.Env, err)
	}
	t.Setenv("HF_HOME", t.TempDir()) // values come from gomflux, not from downloaded models
	t.Setenv("GOMFLUX_MLX", absolute(libraries))
	models, err := publishedtest.Models(root)
	if err != nil {
		t.Fatal(err)
	}
	return models
}

// succeeds runs the command and returns its output.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(args, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("gomflux %s: exit status %d\n%s%s", fmt.Sprint(args), code, stdout.String(), stderr.String())
	}
	return stdout.String()
}
