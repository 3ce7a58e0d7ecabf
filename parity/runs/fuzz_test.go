package runs_test

import (
	"encoding/json"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/runs"
)

// FuzzReplacement: a replacement has a name that is one, and is from a file or
// from what was saved.
func FuzzReplacement(f *testing.F) {
	for _, s := range []string{"latents", "latents@f16", "latents@3=x.npy:y@bf16", "a.b:in.0=vae.encode.out", "x=", "=x", "x=a/b", "x=a@",
		"noise_pred@1=nan.npz:a@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := runs.ParseReplacement(s)
		if err != nil {
			return
		}
		if again, err := hooks.ParseName(r.Name.String()); err != nil || again != r.Name {
			t.Errorf("%q replaces %v, which is %v, %v", s, r.Name, again, err)
		}
		if (r.From.File == "") == (r.Saved == "") {
			t.Errorf("%q is from %+v and %q", s, r.From, r.Saved)
		}
	})
}

// FuzzReadStats: what is read has names, and reads the same when it is written again.
func FuzzReadStats(f *testing.F) {
	f.Add([]byte(`{"name":"latents@0","hit_count":1,"timestamp":"","location":{"file":"a.go","line":1,"function":"f"},` +
		`"point":"output","class":"","shape":[1,2],"dtype":"float32","stats":{"min":-1,"max":"Infinity","mean":"NaN","std":0,` +
		`"nan":0,"inf":1},"preview":[1,"-Infinity"]}` + "\n" + `{"name":"x"}` + "\n" + `{"na`))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := runs.ReadStats(fstest.MapFS{runs.StatsFile: {Data: data}})
		if err != nil {
			return
		}
		var text []byte
		for _, rec := range records {
			line, err := json.Marshal(rec)
			if err != nil || rec.Name == "" {
				t.Fatalf("%+v: %v", rec, err)
			}
			text = append(append(text, line...), '\n')
		}
		again, err := runs.ReadStats(fstest.MapFS{runs.StatsFile: {Data: text}})
		if err != nil || len(again) != len(records) {
			t.Fatalf("found %d records, %v, expected %d", len(again), err, len(records))
		}
	})
}
