package parity

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// A port is compared from the pixels backwards: with an autoencoder alone, then with the transformer too.
// A class that no family describes has its autoencoder compared.
func TestStandIn(t *testing.T) {
	for _, test := range []struct {
		parts    []string
		pipeline string
		compared string // a tensor
		not      string
		bug      string
		absent   int
	}{
		{[]string{"vae"}, "ZImagePipeline", "vae.decode.in", "latents@1", "vae.decode.in", 4},
		{[]string{"vae", "transformer"}, "ZImagePipeline", "noise_pred@1", "prompt.embeds", "transformer@1", 3},
		{[]string{"vae", "transformer"}, "SanaPipeline", "vae.decode.out", "noise_pred@1", "vae.decoder.conv_in", 2},
	} {
		model := t.TempDir()
		for _, part := range test.parts {
			from := os.DirFS(filepath.Join("../models/testdata/zimage-ordinary/model", part))
			if err := os.CopyFS(filepath.Join(model, part), from); err != nil {
				t.Fatal(err)
			}
		}
		run := filepath.Join(t.TempDir(), "dump")
		if err := os.CopyFS(run, os.DirFS(ordinary)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(run, "settings.json")
		settings, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, bytes.Replace(settings, []byte("ZImagePipeline"), []byte(test.pipeline), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := Replay(context.Background(), run, Options{Model: model, Dtype: exact})
		if err != nil {
			t.Errorf("%v of %s: %v", test.parts, test.pipeline, err)
			continue
		}
		if !r.Verdict.OK || !strings.Contains(r.Verdict.Text, "components that are there") || r.Find(test.compared) == nil ||
			r.Find(test.not) != nil || len(r.Absent) != test.absent ||
			slices.Contains(r.Missing, test.not) {
			t.Errorf("%v of %s: %s; absent %v, %d missing", test.parts, test.pipeline, r.Verdict.Text, r.Absent, len(r.Missing))
		}
		bug := onto(test.bug, func(x *mlx.Array) *mlx.Array { return x.Times(1.5) })
		r, err = Replay(context.Background(), run, Options{Model: model, Dtype: exact, bug: bug, quick: true})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(r.Verdict.Text, test.bug) {
			t.Errorf("%v with a wrong %s: %v, %+v", test.parts, test.bug, err, r.Verdict)
		}
	}
}
