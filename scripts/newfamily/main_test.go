package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/models/family"
)

const root = "../.."

// A skeleton compiles, and is in the lists of both sides.
func TestCompiles(t *testing.T) {
	s, err := describe("moon-1.5", "flux1-dev", "")
	if err != nil {
		t.Fatal(err)
	}
	files, err := s.files(root)
	if err != nil {
		t.Fatal(err)
	}
	dir, replaced := t.TempDir(), map[string]string{}
	for at, text := range files {
		place, err := filepath.Abs(filepath.Join(root, at))
		if err != nil {
			t.Fatal(err)
		}
		replaced[place] = filepath.Join(dir, strings.ReplaceAll(at, "/", "+"))
		if err := os.WriteFile(replaced[place], text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), root+"/models/family")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mlxtest.Contains(t, string(files["models/family/list.go"]), ", Moon15}")
	mlxtest.Contains(t, string(files[references+"__init__.py"]), `"moon_15")`)
	mlxtest.Contains(t, string(files["models/family/moon_15.go"]), `Embeds: "pooled_embeds"`, `IDs: "input_ids_2"`)
}

// A skeleton like any published model names components that there are.
func TestLike(t *testing.T) {
	var components strings.Builder
	sources, err := filepath.Glob(root + "/models/component/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		components.Write(text)
	}
	for _, f := range family.All {
		for _, m := range f.Models {
			s, err := describe("moon", m.Name, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range s.Members {
				if one.Variable != s.Transformer && !strings.Contains(components.String(), "\t"+one.Variable+" ") &&
					!strings.Contains(components.String(), "var "+one.Variable+" ") {
					t.Errorf("%s: no component.%s", m.Name, one.Variable)
				}
			}
			if len(s.Encoders) == 0 {
				t.Errorf("%s: no text encoder", m.Name)
			}
		}
	}
	for _, wrong := range [][3]string{{"Moon", "krea-2"}, {"moon", "sun"}, {"moon", "krea-2", "FluxPipeline"}} {
		if _, err := describe(wrong[0], wrong[1], wrong[2]); err == nil {
			t.Errorf("%v is accepted", wrong)
		}
	}
}
