package inspect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/catalog"
)

// TestSingleFile judges files in the layout of the models' makers, alone and with
// all components in one, with the rest taken from diffusers' folders.
func TestSingleFile(t *testing.T) {
	for _, model := range modeltest.Singles() {
		t.Run(model.Name, func(t *testing.T) {
			base := filepath.Join("..", "testdata", model.Name, "model")
			bare, comfy, all := modeltest.SingleFiles(t, base)
			for _, path := range []string{bare, comfy, all} {
				s, err := catalog.FindWith(path, base)
				if err != nil {
					t.Fatal(err)
				}
				info := Model(s.FS)
				if info.Incomplete != nil || info.Unsupported != nil || info.Class == "" {
					t.Errorf("%s: %+v", path, info)
				}
				if file, err := os.Stat(path); err != nil || path == all && info.Size > 2*file.Size()+1<<20 {
					t.Errorf("%s: %d bytes, of a file of %d (%v)", path, info.Size, file.Size(), err)
				}
				w, err := OpenWeights(s.FS)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range w.Components {
					if c.Err != nil || c.Unchecked != nil || c.mismatch != nil {
						t.Errorf("%s: %s: %v, %v, %v", path, c.Name, c.Err, c.Unchecked, c.mismatch)
					}
				}
				w.Close()
			}
		})
	}
}
