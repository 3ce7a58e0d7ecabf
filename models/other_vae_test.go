package models

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
)

// TestOtherVAE checks that a vae of another model is an error with the keys and values of both
// configs.
func TestOtherVAE(t *testing.T) {
	tests := []struct {
		model, file string
		edits       []string // pairs of what was there and what is
		want        string
	}{
		{"zimage-ordinary", "vae/config.json", []string{`"latent_channels": 4`, `"latent_channels": 8`},
			"the vae's latent_channels is 8, but the transformer's in_channels is 4: "},
		{"flux1-dev-small", "vae/config.json", []string{`"latent_channels": 6`, `"latent_channels": 8`},
			"4 times the vae's latent_channels, 8, is 32, but the transformer's in_channels is 24: "},
		{"flux2-klein", "vae/config.json", []string{`"latent_channels": 4`, `"latent_channels": 8`},
			"4 times the vae's latent_channels, 8, is 32, but the transformer's in_channels is 16: "},
		{"qwen-image-ordinary", "transformer/config.json", []string{`"in_channels": 16`, `"in_channels": 32`,
			`"out_channels": 4`, `"out_channels": 8`}, "4 times the vae's z_dim, 4, is 16, but the transformer's in_channels is 32: "},
		{"krea-2", "transformer/config.json", []string{`"in_channels": 16`, `"in_channels": 32`},
			"4 times the vae's z_dim, 4, is 16, but the transformer's in_channels is 32: "},
		{"krea-2", "text_encoder/config.json", []string{`"hidden_size": 24`, `"hidden_size": 32`,
			`"out_hidden_size": 24`, `"out_hidden_size": 32`},
			"the text encoder's hidden_size is 32, but the transformer's text_hidden_dim is 24: "},
		{"krea-2", "model_index.json", []string{"    1,\n    2,\n    3", "    1,\n    2"},
			"the number of text_encoder_select_layers is 2, but the transformer's num_text_layers is 3: "},
	}
	for _, test := range tests {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("testdata/"+test.model+"/model")); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, test.file)
		config, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		edited := strings.NewReplacer(test.edits...).Replace(string(config))
		if edited == string(config) {
			t.Fatalf("%s: none of %s in %s", test.model, test.edits, config)
		}
		if err := os.WriteFile(name, []byte(edited), 0o666); err != nil {
			t.Fatal(err)
		}
		mlxtest.Do(t, func() {
			_, err := Load(os.DirFS(dir), LoadOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want+"the components belong to different models") {
				t.Errorf("%s: error %v, expected %q", test.model, err, test.want)
			}
		})
	}
}
