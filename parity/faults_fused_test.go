package parity

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/parity/report"
)

// A fusedFault is a mistake in code that runs only without hooks. A line of Go before the text at, in a
// file of the repository, plants it where the fault is asked for by its name.
type fusedFault struct {
	name, file, at, plant string
	dump                  string
	module, operation     string // of the verdict; without an operation the first tensor that differs
}

var fusedFaults = []fusedFault{
	{"norms of q and k swapped", "mlx/nn/attention.go", "q, k, dtype := p.norms[0]", "p.norms[0], p.norms[1] = p.norms[1], p.norms[0]",
		"flux1-inner", "transformer.transformer_blocks.0.attn@0", "nn.Module.NormRope"},
	{"rotary table off by one", "mlx/nn/attention.go", "q, k := mlx.NormRope(",
		"n := rope.Cos.Dim(0); rope.Cos = mlx.Concat(0, rope.Cos.Slice(0, n-1, n), rope.Cos.Slice(0, 0, n-1))",
		"zimage-ordinary", "transformer.noise_refiner.0.attention@0", "nn.Module.NormRope"},
	{"scale and shift swapped", "transformer/joint.go", "return n.Plain(x.Dtype(), m.Scale, m.Shift).Apply(x)",
		"m.Scale, m.Shift = m.Shift, m.Scale", "flux1-inner", "transformer.transformer_blocks.0.norm1.norm@0", "modulation.norm"},
	{"gate missing after attention", "transformer/joint.go", "sum, y := n.Plain(",
		"return []*mlx.Array{x.Add(dx), next.norm(n, x.Add(dx))}", "qwen-inner",
		"transformer.transformer_blocks.0.img_norm2@0", "modulation.addThenNorm"},
	{"gate missing in the feed-forward", "transformer/qwenimage21.go", "return wideSwiGLU(nil, in[0], in[1])", "return in[1].Array()",
		"qwen-image-21", "transformer.transformer_blocks.0.img_mlp@0", "qwenImage21FeedForward.Forward"},
	{"bias missing before a group norm", "vae/coder.go", "y = r.Conv2.Plain(", "y = y.Sub(r.Conv1.Bias.As(x.Dtype()))",
		"zimage-ordinary", "vae.decoder.mid_block.resnets.0", "resnet.Forward"},
	{"row of the timestep after", "models/family/time_table.go", "row, n := t.rows.Slice(", "i = min(i+1, len(t.timesteps)-1)",
		"flux1-inner", "latents@0", ""},
}

// plantedFault is the environment variable with the name of the fault that planted code has.
const plantedFault = "GOMFLUX_PLANTED_FAULT"

// TestFusedFaults plants each fault in the source, in a build of this test, and reads the verdict.
func TestFusedFaults(t *testing.T) {
	if os.Getenv(plantedFault) == "" {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", plantFused(t), "-vet=off", "-count=1", "-v",
			"-run=^TestFusedFaults$", ".")
		cmd.Env = append(os.Environ(), plantedFault+"=none")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range fusedFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Setenv(plantedFault, f.name)
			r, err := Replay(t.Context(), filepath.Join(testdata, f.dump, "dump"), Options{Dtype: exact, Readings: []string{report.Free}})
			if err != nil {
				t.Fatal(err)
			}
			v := r.Verdict
			t.Log(v.Text)
			if v.OK || v.Module != f.module || !strings.Contains(v.Text, f.operation) {
				t.Errorf("found %s, expected %s in %s", v.Module, f.operation, f.module)
			}
			var text, page bytes.Buffer
			data, err := json.Marshal(r)
			if err := errors.Join(err, r.Print(&text, false), r.HTML(&page)); err != nil {
				t.Fatal(err)
			}
			mlxtest.Contains(t, text.String(), "without hooks: DIFFERS", "FAIL: "+v.Text)
			mlxtest.Contains(t, page.String(), "Without hooks: DIFFERS", f.module)
			mlxtest.Contains(t, string(data), `"unhooked":{"ok":false`, f.operation)
		})
	}
}

// plantFused writes the files with faults, and returns the file that lists them for go test.
func plantFused(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replaced := map[string]string{}
	write := func(file, text string) {
		at := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(at, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(root, filepath.FromSlash(file))] = at
	}
	sources := map[string]string{}
	for _, f := range fusedFaults {
		source := sources[f.file]
		if source == "" {
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f.file)))
			if err != nil {
				t.Fatal(err)
			}
			source = string(text)
			folder := filepath.ToSlash(filepath.Dir(f.file))
			write(folder+"/planted.go", "package "+filepath.Base(folder)+"\n\nimport \"os\"\n\n"+
				"func planted(fault string) bool { return os.Getenv(\""+plantedFault+"\") == fault }\n")
		}
		if strings.Count(source, f.at) != 1 {
			t.Fatalf("%s: expected %q once", f.file, f.at)
		}
		sources[f.file] = strings.Replace(source, f.at, "if planted(\""+f.name+"\") { "+f.plant+" }\n"+f.at, 1)
	}
	for file, source := range sources {
		write(file, source)
	}
	list := filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err == nil {
		err = os.WriteFile(list, data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}
