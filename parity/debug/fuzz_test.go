package debug_test

import (
	"testing"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/debug"
)

// FuzzReplacement: a replacement has a name that is one, and is from a file or
// from what was saved.
func FuzzReplacement(f *testing.F) {
	for _, s := range []string{"latents", "latents@f16", "latents@3=x.npy:y@bf16", "a.b:in.0=vae.encode.out", "x=", "=x", "x=a/b", "x=a@",
		"noise_pred@1=nan.npz:a@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := debug.ParseReplacement(s)
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
