package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"io/fs"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// A LoadedModel describes the parameters of a model in memory.
type LoadedModel struct {
	Class      string // the pipeline class
	Device     mlx.Device
	Components []*LoadedComponent
	// NotRun is the reason why no forward pass was run; nil if one was.
	NotRun error
}

// A LoadedComponent lists the parameters of a component, in the order of the model's
// fields.
type LoadedComponent struct {
	Name       string
	Parameters []*LoadedParameter
}

// A LoadedParameter is one parameter in memory.
type LoadedParameter struct {
	Name      string            // in the module tree; the name in the file may have a prefix
	Tensor    checkpoint.Tensor // the tensor in the file
	Field     string            // the path of the field in Go's structs
	Transform string            // the conversion from the file to memory, "" if there is no conversion
	Dtype     mlx.Dtype         // in memory
	Shape     []int             // in memory
	First     []float32         // the first elements in memory
	// SHA256 is the hash of dtype, shape and elements in memory, Again that of the second
	// load.
	SHA256, Again string
	// Used reports whether the forward pass, if there was one, used the parameter.
	Used bool
}

// firstValues is the number of elements in LoadedParameter.First.
const firstValues = 4

// Loaded loads every component of a model twice, or one component if only is its name,
// and hashes the parameters each time. The first time, each component is freed before
// the next one is loaded. The second time, all are loaded as for generating images, and
// the smallest image is generated in a single image-to-image step to find out which
// parameters are used. Of the options it uses Device, Dtype and Progress. Loaded must run on the MLX thread.
func Loaded(fsys fs.FS, only string, o models.LoadOptions) (*LoadedModel, error) {
	s, err := newSession(fsys, o)
	if err != nil {
		return nil, err
	}
	if only != "" {
		i, err := findComponent(s.components, only, func(c component.Component) string { return c.Dir })
		if err != nil {
			return nil, err
		}
		s.components = s.components[i : i+1]
		s.out.NotRun = errors.New("only one component was asked for")
	} else {
		s.out.NotRun = s.checkTokenizers()
	}
	for _, c := range s.components {
		if err := s.loadFirst(c); err != nil {
			return nil, err
		}
	}
	if s.out.NotRun == nil {
		if err := s.run(o); err != nil {
			return nil, err
		}
		return s.out, nil
	}
	for i, c := range s.components {
		if err := s.loadAgain(i, c); err != nil {
			return nil, err
		}
	}
	return s.out, nil
}

// A session loads the components of one model.
type session struct {
	loader     component.Loader
	pipeline   family.Pipeline
	components []component.Component
	out        *LoadedModel
}

// newSession selects the device and declares the components of a model.
func newSession(fsys fs.FS, o models.LoadOptions) (*session, error) {
	x, err := index.Read(fsys)
	if err != nil {
		return nil, err
	}
	if _, err := family.Of(fsys, x); err != nil {
		return nil, err
	}
	if err := index.MissingError(fsys, x.Missing(fsys, true)); err != nil {
		return nil, err
	}
	s := &session{out: &LoadedModel{Class: x.Class, Device: mlx.CurrentDevice()}}
	if o.Device != nil {
		if err := mlx.Use(*o.Device); err != nil {
			return nil, err
		}
		s.out.Device = *o.Device
	}
	dtype := s.out.Device.ComputeDtype()
	if o.Dtype != nil {
		dtype = *o.Dtype
	}
	s.loader = component.Loader{
		Folder: component.Folder{FS: fsys, Points: &hooks.Points{}, Dtype: dtype}, Report: models.LoadReport(o.Progress),
	}
	d, err := family.Declare(&s.loader.Folder, x)
	if err != nil {
		return nil, err
	}
	s.pipeline, s.components = d.Pipeline, d.Components
	return s, nil
}

// checkTokenizers checks that all tokenizers can be read.
func (s *session) checkTokenizers() error {
	for _, text := range s.pipeline.PromptEncodings(nil) {
		if err := tokenizer.Check(s.loader.FS, text.Tokenizer); err != nil {
			return err
		}
	}
	return nil
}

// load loads a component, calls f with each parameter and its tensor in the file, and
// frees the component.
func (s *session) load(c component.Component, f func(i int, p nn.Parameter, t checkpoint.Tensor)) error {
	ck, err := c.Open(s.loader.FS)
	if err != nil {
		return err
	}
	defer ck.Close()
	defer c.Unload()
	if err := s.loader.Load(c, ck); err != nil {
		return err
	}
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return mismatch
	}
	for i, p := range nn.Parameters(c.Model) {
		f(i, p, found[i].Tensor)
		mlx.StopPoint()
	}
	return nil
}

// loadFirst loads a component for the first time.
func (s *session) loadFirst(c component.Component) error {
	loaded := &LoadedComponent{Name: c.Dir}
	s.out.Components = append(s.out.Components, loaded)
	return s.load(c, func(_ int, p nn.Parameter, t checkpoint.Tensor) {
		loaded.Parameters = append(loaded.Parameters, &LoadedParameter{
			Name: p.Name, Tensor: t, Field: p.Field, Transform: p.Transform(),
			Dtype: p.Dtype(), Shape: p.Array.Shape(), First: firstElements(p.Array), SHA256: hash(p.Arrays()),
		})
	})
}

// loadAgain loads a component, given with its number, for the second time.
func (s *session) loadAgain(number int, c component.Component) error {
	return s.load(c, func(i int, p nn.Parameter, _ checkpoint.Tensor) {
		s.out.Components[number].Parameters[i].Again = hash(p.Arrays())
	})
}

// run loads the model for the second time, as for generating images, and generates the
// smallest image.
func (s *session) run(o models.LoadOptions) error {
	o.Requests = func(p *models.Pipeline) []models.Request { return []models.Request{smallestRequest(p)} }
	p, err := models.Load(s.loader.FS, o)
	if err != nil {
		return err
	}
	defer p.Close()
	for number, c := range p.Components() {
		parameters := nn.Parameters(c.Model)
		if parameters[0].Array == nil { // not loaded, because memory is too short for all components at once
			if err := s.loadAgain(number, c); err != nil {
				return err
			}
			continue
		}
		for i, parameter := range parameters {
			s.out.Components[number].Parameters[i].Again = hash(parameter.Arrays())
			mlx.StopPoint()
		}
	}
	defer nn.Watch(s.watcher(p.Components()))()
	if _, err := p.Generate(smallestRequest(p)); err != nil {
		return fmt.Errorf("forward pass: %w", err)
	}
	return nil
}

// watcher returns a function that marks the parameter of an array as used. Components
// may be loaded again in between.
func (s *session) watcher(components []component.Component) func(*mlx.Array) {
	byArray := map[*mlx.Array]*LoadedParameter{}
	return func(a *mlx.Array) {
		if byArray[a] == nil {
			for number, c := range components {
				for i, p := range nn.Parameters(c.Model) {
					if p.Array != nil {
						byArray[p.Array] = s.out.Components[number].Parameters[i]
					}
				}
			}
		}
		if used := byArray[a]; used != nil {
			used.Used = true
		}
	}
}

// smallestRequest is a request for the smallest image in one step. It is image-to-image,
// so that the autoencoder's encoder runs too.
func smallestRequest(p *models.Pipeline) models.Request {
	side := p.Multiple()
	grey := image.NewRGBA(image.Rect(0, 0, side, side))
	for i := range grey.Pix {
		grey.Pix[i] = 128
	}
	r := models.Request{
		Prompt: "a red circle", Height: side, Width: side, Steps: 2, MaxSequenceLength: p.Defaults.MaxSequenceLength,
		Image: picture.Opaque(grey), ImageStrength: 0.5, Inpaint: p.LeastInpaint(grey),
	}
	for range p.LeastReferences() {
		r.References = append(r.References, grey)
	}
	if p.DefaultLayers() > 0 { // it splits the reference image, and starts from no other
		r.Image, r.Inpaint = nil, nil
	}
	return r
}

// firstElements returns the first elements of an array.
func firstElements(a *mlx.Array) (values []float32) {
	mlx.WithScope(func() {
		values = a.Reshape(-1).Slice(0, 0, min(firstValues, a.Size())).Floats()
	})
	return values
}

// hash returns the SHA-256 of the dtypes, shapes and elements of arrays, whose elements
// are copied to the host in parts.
func hash(arrays []*mlx.Array) string {
	sum := sha256.New()
	for _, a := range arrays {
		fmt.Fprint(sum, a)
		for at := 0; at < a.Size(); at += checkpoint.PartLen {
			mlx.WithScope(func() {
				sum.Write(a.Reshape(-1).Slice(0, at, min(at+checkpoint.PartLen, a.Size())).Bytes())
			})
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
