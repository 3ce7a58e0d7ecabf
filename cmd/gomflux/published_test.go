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
	"github.com/gomflux/gomflux/models/index"
)

// TestPublished runs the command on every published model whose small files are there: no
// model is refused. Weights are random, and the models small. Reading a tokenizer takes most of the time:
// all commands run for the first model of each tokenizer and generate for the first of each pipeline and
// tokenizer, others are looked at only. make parity generates with all of them.
func TestPublished(t *testing.T) {
	found, tokenizers, pipelines := published(t), map[string]bool{}, map[string]bool{}
	image := filepath.Join(modeltest.Folder(t, "flux1-kontext"), "..", "first.png")
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
				t.Log("files that are not had: ", strings.Join(slices.Sorted(maps.Keys(m.Filled)), ", "))
			}
			run := []string{"generate"}
			switch {
			case strings.Contains(m.Name, "Edit"), strings.Contains(m.Name, "Kontext"):
				run = []string{"edit", "--image", image}
			case strings.Contains(m.Name, "Fill"):
				run = []string{"inpaint", "--image", image, "--mask", "rect:8,8,16,16"}
			}
			var shown models.ShownModel
			if err := json.Unmarshal([]byte(succeeds(t, "show", folder, "--json")), &shown); err != nil {
				t.Fatal(err)
			}
			if shown.State() != "ready" || shown.Memory == nil {
				t.Errorf("show: %s, %q, memory %v", shown.State(), shown.Problems, shown.Memory)
			}
			succeeds(t, "inspect", folder)
			x, err := index.Read(os.DirFS(folder))
			if err != nil {
				t.Fatal(err)
			}
			pipeline := x.Class + " " + tokenizerOf(m)
			if pipelines[pipeline] {
				return
			}
			pipelines[pipeline] = true
			succeeds(t, append(run, "-m", folder, "-p", "a red cat -- on a mat", "-H", "64", "-W", "64", "-s", "1", "--quiet",
				"-o", filepath.Join(dir, "a.png"))...)
			if tokenizers[tokenizerOf(m)] {
				return
			}
			tokenizers[tokenizerOf(m)] = true
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
