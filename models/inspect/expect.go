package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// An expectation describes the tensors that a component should have by its config.
type expectation struct {
	component.Component       // without Model if only the folder is known
	unknown             error // the reason why only the folder is known
	damaged             bool  // whether that is because of damaged files
}

// unknown returns the expectation for a component of which only the folder is known.
func unknown(dir string, why error) expectation {
	return expectation{Component: component.Component{Dir: dir}, unknown: why}
}

// declare declares the pipeline of an index by the configs. With an error it may return the components
// too.
func declare(fsys fs.FS, x index.Index) (d *family.Declared, components []component.Component, err error) {
	if d, err = family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x); d != nil {
		components = d.Components
	}
	return d, components, err
}

// expect declares the components with weights that an index names, in the order of
// their folders.
func expect(fsys fs.FS, x index.Index) []expectation {
	_, components, err := declare(fsys, x)
	var list []expectation
	for _, dir := range x.Models() {
		i := slices.IndexFunc(components, func(c component.Component) bool { return c.Dir == dir })
		switch {
		case i >= 0:
			list = append(list, expectation{Component: components[i]})
		case family.Find(x.Class) == nil && isAutoencoder(x.Components[dir]):
			list = append(list, expectAutoencoder(fsys, dir))
		case family.Find(x.Class) == nil:
			list = append(list, unknown(dir, fmt.Errorf("pipeline class %q is not supported by this version", x.Class)))
		case err == nil:
			list = append(list, unknown(dir, fmt.Errorf("pipeline class %s has no such component", x.Class)))
		default:
			list = append(list, expected(dir, component.Component{}, err))
		}
	}
	return list
}

// expectLone declares a component without a model_index.json. Only autoencoders and upscalers can be
// declared by their config alone.
func expectLone(fsys fs.FS, dir string) expectation {
	name, err := component.ClassName(fsys, dir)
	if class := component.Find(name); err == nil && class != nil && class.Role == component.Upscaler {
		_, c, err := component.DeclareUpscaler(&component.Folder{FS: fsys, Points: &hooks.Points{}}, dir)
		return expected(dir, c, err)
	}
	if err != nil || !isAutoencoder(name) {
		return unknown(dir, errors.New("the component is unknown without a model_index.json"))
	}
	return expectAutoencoder(fsys, dir)
}

func expectAutoencoder(fsys fs.FS, dir string) expectation {
	_, c, err := component.DeclareAutoencoder(&component.Folder{FS: fsys, Points: &hooks.Points{}}, dir)
	return expected(dir, c, err)
}

// expected returns the expectation for a component that was declared, or could not be.
func expected(dir string, c component.Component, err error) expectation {
	if err != nil {
		e := unknown(dir, err)
		e.damaged = !errors.Is(err, errs.ErrUnsupported)
		return e
	}
	return expectation{Component: c}
}

// isAutoencoder reports whether a component class is an autoencoder, supported or not.
func isAutoencoder(class string) bool { return strings.Contains(class, "Autoencoder") }
