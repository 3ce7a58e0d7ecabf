package modeltest

import (
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// TestModels checks that every pipeline class that is supported has a model in the list.
func TestModels(t *testing.T) {
	var have []string
	for _, m := range Models {
		x, err := index.Read(os.DirFS(Folder(t, m.Name)))
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, x.Class)
	}
	for _, class := range family.Classes() {
		if !slices.Contains(have, class) {
			t.Errorf("no model of modeltest.Models has the class %s", class)
		}
	}
}
