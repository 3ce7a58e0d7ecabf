package models

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"io/fs"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/picture"
)

// Loaded is what a model's parameters are in memory.
type Loaded struct {
	Class      string
	Device     mlx.Device
	Components []*LoadedComponent
	// NotRun says why no forward pass was tried; nil if one was.
	NotRun error
}

// LoadedComponent lists one component's parameters, in the order of the model's
// fields.
type LoadedComponent struct {
	Name       string
	Parameters []*LoadedParameter
}

// A LoadedParameter is one parameter in memory.
type LoadedParameter struct {
	Name      string            // in the module tree, which a file's may have a prefix to
	Tensor    checkpoint.Tensor // that it was loaded from
	Field     string            // of Go's structs
	Transform string            // from the file's form to that in memory, "" for none
	Dtype     mlx.Dtype         // in memory, as Shape and First
	Shape     []int
	First     []float32
	// SHA256 is over dtype, shape and elements in memory; Again is that of the
	// second load.
	SHA256, Again string
	// Used says whether the forward pass needed it, if one was tried.
	Used bool
}

// firstValues is how many elements a LoadedParameter shows.
const firstValues = 4

// InspectLoaded loads every component of a model twice, or only one by its
// name, and compares the two. A component is freed before the next one is
// loaded, until the second time, when all stay as they do for a picture: then
// the smallest one is made from a picture in a single step, to see which
// parameters are used. It must run on the MLX thread.
func InspectLoaded(fsys fs.FS, only string, o LoadOptions) (*Loaded, error) {
	index, err := readIndex(fsys)
	if err != nil {
		return nil, err
	}
	newFamily, err := index.family(fsys)
	if err != nil {
		return nil, err
	}
	if err := index.incomplete(fsys, index.missing(fsys)); err != nil {
		return nil, err
	}
	p := &Pipeline{Autoencoder: &Autoencoder{}, Class: index.class, family: newFamily()}
	defer p.Close()
	if err := p.place(o); err != nil {
		return nil, err
	}
	l := &loader{fsys: fsys, points: &p.points, dtype: p.dtype, report: o.Progress}
	components, err := p.declare(l)
	if err != nil {
		return nil, err
	}
	out := &Loaded{Class: index.class, Device: p.device}
	if only != "" {
		if components, err = onlyOne(components, only); err != nil {
			return nil, err
		}
		out.NotRun = errors.New("only one component was asked for")
	} else if err := p.loadTokenizers(l, func(string) bool { return true }); err != nil {
		out.NotRun = err
	}
	for _, c := range components {
		loaded := &LoadedComponent{Name: c.dir}
		out.Components = append(out.Components, loaded)
		if err := l.loadOnce(c, func(parameter nn.Parameter, t checkpoint.Tensor) {
			loaded.Parameters = append(loaded.Parameters, &LoadedParameter{
				Name: parameter.Name, Tensor: t, Field: parameter.Field, Transform: parameter.Transform(),
				Dtype: parameter.Dtype(), Shape: parameter.Array.Shape(), First: first(parameter.Array), SHA256: hash(parameter.Arrays()),
			})
		}); err != nil {
			return nil, err
		}
		unload(c)
	}
	byArray := map[*mlx.Array]*LoadedParameter{}
	for i, c := range components {
		n := 0
		if err := l.loadOnce(c, func(parameter nn.Parameter, _ checkpoint.Tensor) {
			loaded := out.Components[i].Parameters[n]
			loaded.Again = hash(parameter.Arrays())
			byArray[parameter.Array] = loaded
			n++
		}); err != nil {
			return nil, err
		}
		if out.NotRun != nil {
			unload(c)
		}
	}
	if out.NotRun != nil {
		return out, nil
	}
	defer nn.Watch(func(a *mlx.Array) {
		if used := byArray[a]; used != nil {
			used.Used = true
		}
	})()
	if err := p.runOnce(); err != nil {
		return nil, fmt.Errorf("forward pass: %w", err)
	}
	return out, nil
}

// onlyOne is the component of a folder.
func onlyOne(components []component, dir string) ([]component, error) {
	var names []string
	for i, c := range components {
		if c.dir == dir {
			return components[i : i+1], nil
		}
		names = append(names, c.dir)
	}
	return nil, noComponent(dir, names)
}

// loadOnce loads a component and calls f with each of its parameters and the
// tensor that it comes from.
func (l *loader) loadOnce(c component, f func(nn.Parameter, checkpoint.Tensor)) error {
	ck, err := c.open(l.fsys)
	if err != nil {
		return err
	}
	defer ck.Close()
	if err := l.weights(c, ck); err != nil {
		return err
	}
	found, mismatch := c.match(ck)
	if mismatch != nil {
		return mismatch
	}
	for i, parameter := range nn.Parameters(c.model) {
		f(parameter, found[i].Tensor)
		mlx.StopPoint()
	}
	return nil
}

// unload frees a component's parameters.
func unload(c component) {
	for _, p := range nn.Parameters(c.model) {
		p.Free()
	}
	mlx.ClearCache()
}

// runOnce makes the smallest picture in one step, from a picture, so that the
// autoencoder's encoder runs too.
func (p *Pipeline) runOnce() error {
	side := p.Multiple()
	grey := image.NewRGBA(image.Rect(0, 0, side, side))
	for i := range grey.Pix {
		grey.Pix[i] = 128
	}
	r := Request{
		Prompt: "a red circle", Height: side, Width: side, Steps: 2, MaxSequenceLength: p.Defaults.MaxSequenceLength,
		Image: picture.Opaque(grey), ImageStrength: 0.5,
	}
	if f, ok := p.family.(editor); ok && f.checkReferences(0) != nil {
		r.References = []image.Image{grey}
	}
	_, err := p.Generate(r)
	return err
}

// first are the first elements in memory.
func first(a *mlx.Array) (values []float32) {
	mlx.Scope(func() *mlx.Array {
		values = a.Reshape(-1).Slice(0, 0, min(firstValues, a.Size())).Floats()
		return nil
	})
	return values
}

// hash is the SHA-256 of the arrays' dtypes, shapes and elements, which are
// copied to the host a part at a time.
func hash(arrays []*mlx.Array) string {
	sum := sha256.New()
	for _, a := range arrays {
		fmt.Fprint(sum, a)
		for at := 0; at < a.Size(); at += checkpoint.PartLen {
			mlx.Scope(func() *mlx.Array {
				sum.Write(a.Reshape(-1).Slice(0, at, min(at+checkpoint.PartLen, a.Size())).Bytes())
				return nil
			})
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
