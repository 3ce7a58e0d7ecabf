package parity

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

// writeRun makes a run's folder, with tensors of one value, and a trace unless
// that is "".
func writeRun(t *testing.T, value float32, names []string, trace string) string {
	t.Helper()
	dir := t.TempDir()
	var list []*checkpoint.Array
	for _, name := range names {
		x, err := checkpoint.FromFloat32(name, []int{2}, []float32{value, 1})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	err := checkpoint.WriteFile(filepath.Join(dir, "x.safetensors"), list, nil)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "settings.json"), []byte("{}"), 0o666)
	}
	if err == nil && trace != "" {
		err = os.Mkdir(filepath.Join(dir, "traces"), 0o777)
	}
	if err == nil && trace != "" {
		err = os.WriteFile(filepath.Join(dir, filepath.FromSlash(runs.TraceFile)), []byte(trace), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// traceOf is the trace of a run in which tensors were made in this order.
func traceOf(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "{\"name\":%q,\"point\":\"output\",\"shape\":[2],\"dtype\":\"float32\"}\n", name)
	}
	return b.String()
}

// TestDiffOrder names the first of many tensors that differ, as a trace says or
// else by their numbers.
func TestDiffOrder(t *testing.T) {
	var layers []string
	for i := range 12 {
		layers = append(layers, fmt.Sprintf("transformer.layers.%d@0", i))
	}
	names := append(slices.Clone(layers), "latents@0", "prompt.embeds")
	backwards := slices.Clone(layers)
	slices.Reverse(backwards)
	of := func(last string, layers []string) []string {
		return slices.Concat([]string{"prompt.embeds"}, layers, []string{last})
	}
	byName := of("latents@0", layers)
	for name, c := range map[string]struct {
		ours, reference string
		want            []string
		text            string
	}{
		"no trace": {"", "", byName, "prompt.embeds is the first to differ by name (neither run has traces/taps.jsonl, which has " +
			"the order), in stage text (max "},
		"ours": {traceOf(of("latents@0", backwards)...), "", of("latents@0", backwards),
			"prompt.embeds is the first to differ, in stage text (max "},
		"the reference": {"", traceOf(of("latents@0", backwards)...), of("latents@0", backwards),
			"prompt.embeds is the first to differ, in stage text (max "},
		"both": {traceOf(of("latents@0", backwards)...), traceOf(layers...), of("latents@0", backwards),
			"prompt.embeds is the first to differ, in stage text (max "},
		"twice": {traceOf(slices.Concat(of("latents@0", backwards), layers)...), "", of("latents@0", backwards),
			"prompt.embeds is"},
		"cut": {traceOf("transformer.layers.3@0", "latents@0") + `{"name":"transfor`, "", nil,
			"transformer.layers.3@0 is the first to differ, in stage step 0 (max "},
		"of others": {traceOf("vae.decode.in"), "", byName, "prompt.embeds is the first to differ by name"},
		"damaged":   {"[", "", byName, "prompt.embeds is the first to differ by name"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := DiffRuns(context.Background(), writeRun(t, 3, names, c.ours), writeRun(t, 2, names, c.reference), nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, x := range r.Tensors {
				got = append(got, x.Name)
				if x.Order != i+1 {
					t.Errorf("%s has place %d, expected %d", x.Name, x.Order, i+1)
				}
			}
			if c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("found %q, expected %q", got, c.want)
			}
			if !strings.HasPrefix(r.Verdict.Text, c.text) || r.Verdict.Tensor != got[0] || len(r.Verdict.Others) != len(names)-1 {
				t.Errorf("verdict %+v, expected %q", r.Verdict, c.text)
			}
		})
	}
}

// TestDiffClaims has a diff say no more than it can know, in both forms.
func TestDiffClaims(t *testing.T) {
	names := []string{"transformer.layers.2@0", "transformer.layers.10@0", "transformer.layers.2@0:in.0"}
	r, err := DiffRuns(context.Background(), writeRun(t, 3, names, ""), writeRun(t, 2, names, ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	var text, page bytes.Buffer
	if err := r.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, text.String(), "FAIL: transformer.layers.2@0:in.0 is the first to differ by name", "(of 3 tensors in both)",
		"also: transformer.layers.10@0 differs\n", "a module may differ because of one before it")
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, page.String(), "Also: transformer.layers.10@0 differs</div>")
	for _, claim := range []string{"diverges", "differs by itself", "are right"} {
		if strings.Contains(text.String()+page.String(), claim) {
			t.Errorf("a diff cannot know %q:\n%s", claim, &text)
		}
	}
}

func TestCompareNames(t *testing.T) {
	want := []string{
		"transformer.layers.2@0:in.2", "transformer.layers.2@0:in.10", "transformer.layers.2@0:q", "transformer.layers.2@0",
		"transformer.layers.2@0:out.1",
		"transformer.layers.2@0#2", "transformer.layers.2@0#10", "transformer.layers.2@10", "transformer.layers.10@0", "x:y z",
	}
	got := slices.Sorted(slices.Values(want))
	slices.SortFunc(got, report.CompareNames)
	if !slices.Equal(got, want) {
		t.Errorf("found %q, expected %q", got, want)
	}
}
