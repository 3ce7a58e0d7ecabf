package modeltest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// Testdata returns the path of models/testdata, from any folder of the module.
func Testdata() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "models", "testdata"), nil
		}
	}
	return "", errors.New("the working directory is not in the module")
}

// Folder is the folder of one of the small models that the goldens are made with
// (models/testdata), from any package of the module.
func Folder(t testing.TB, name string) string {
	t.Helper()
	dir, err := Testdata()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name, "model")
}

// Components is [Declared] for tests.
func Components(t testing.TB, fsys fs.FS) []component.Component {
	t.Helper()
	list, err := Declared(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Declared returns the components of a model folder that have weights, by their configs.
func Declared(fsys fs.FS) ([]component.Component, error) {
	x, err := index.Read(fsys)
	if err != nil {
		return nil, err
	}
	d, err := family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x)
	if err != nil {
		return nil, err
	}
	return d.Components, nil
}
