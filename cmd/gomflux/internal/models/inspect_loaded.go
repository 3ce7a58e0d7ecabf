package models

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/inspect"
)

// What inspect --loaded prints.
type (
	loadedModel struct {
		Model      string        `json:"model"`
		Path       string        `json:"path,omitempty"`
		Class      string        `json:"class"`
		Device     string        `json:"device"`
		Identical  bool          `json:"identical"`
		Unused     int           `json:"unused"`
		NotRun     string        `json:"not_run,omitempty"`
		Components []*loadedPart `json:"components"`
	}
	loadedPart struct {
		Name       string            `json:"name"`
		Parameters []loadedParameter `json:"parameters"`
	}
	loadedParameter struct {
		Name      string             `json:"name"`
		Tensor    string             `json:"tensor"`
		File      string             `json:"file"`
		Field     string             `json:"field"`
		Transform string             `json:"transform,omitempty"`
		Stored    string             `json:"stored_dtype"`
		Dtype     string             `json:"dtype"`
		Shape     []int              `json:"shape"`
		First     []checkpoint.Float `json:"first"`
		SHA256    string             `json:"sha256"`
		Identical bool               `json:"identical"`
		Unused    bool               `json:"unused,omitempty"` // by the smallest image
	}
)

// inspectLoaded loads a model twice and prints its parameters.
func (o *inspectOptions) inspectLoaded(ctx context.Context, out *ui.Output, progress *ui.Progress, name string) error {
	source, err := gomflux.FindWith(name, o.Base)
	if err != nil {
		return cli.Coded(cli.ExitModel, err)
	}
	if _, err := o.CheckLibrary(ctx, out); err != nil {
		return err
	}
	var load models.LoadOptions
	if load.Device, load.Dtype, err = o.Place(); err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	load.Progress = func(p models.Progress) {
		mlx.Call(func() { progress.Loading(p.Component, p.Bytes, p.TotalBytes) })
	}
	var loaded *inspect.LoadedModel
	err = mlx.Do(ctx, func() (err error) {
		loaded, err = inspect.Loaded(source.FS(), o.component, load)
		return err
	})
	if err != nil {
		return cli.Coded(cli.ExitModel, cli.ModelError(err))
	}
	progress.Close()
	r := newLoadedModel(loaded, &openWeights{name: source.Name(), path: source.Path()})
	if err := out.Result(r); err != nil {
		return err
	}
	if !r.Identical {
		return fmt.Errorf("%s: two loads are not identical", quote.Printable(r.Model))
	}
	return nil
}

func newLoadedModel(l *inspect.LoadedModel, where *openWeights) *loadedModel {
	r := &loadedModel{
		Model: where.name, Path: where.path, Class: l.Class, Device: l.Device.String(),
		Identical: true, Components: []*loadedPart{},
	}
	if l.NotRun != nil {
		r.NotRun = l.NotRun.Error()
	}
	for _, c := range l.Components {
		part := &loadedPart{Name: c.Name, Parameters: []loadedParameter{}}
		for _, p := range c.Parameters {
			first := []checkpoint.Float{}
			for _, v := range p.First {
				first = append(first, checkpoint.Float(v))
			}
			identical, unused := p.SHA256 == p.Again, l.NotRun == nil && !p.Used
			part.Parameters = append(part.Parameters, loadedParameter{
				Name: p.Name, Tensor: p.Tensor.Name, File: where.relative(p.Tensor.File), Field: p.Field, Transform: p.Transform,
				Stored: string(p.Tensor.Dtype), Dtype: p.Dtype.String(), Shape: p.Shape, First: first, SHA256: p.SHA256,
				Identical: identical, Unused: unused,
			})
			r.Identical = r.Identical && identical
			if unused {
				r.Unused++
			}
		}
		r.Components = append(r.Components, part)
	}
	return r
}

func (r *loadedModel) Text(p *ui.Page) {
	for _, c := range r.Components {
		p.Table(c.table())
		p.Printf("\n")
	}
	parameters := 0
	for _, c := range r.Components {
		for _, param := range c.Parameters {
			if parameters++; !param.Identical {
				p.Printf("error: %s: not identical: %s: the second load gave other bytes\n", c.Name, param.Name)
			}
			if param.Unused {
				p.Printf("warning: %s: not used: %s\n", c.Name, param.Name)
			}
		}
	}
	if r.Identical {
		p.Printf("two loads are identical: the SHA-256 of %s\n", ui.Plural(parameters, "parameter"))
	}
	if r.NotRun != "" {
		p.Printf("no image was generated: %s\n", quote.Printable(r.NotRun))
	} else {
		p.Printf("%d of %s used by the smallest image on %s\n", parameters-r.Unused, ui.Plural(parameters, "parameter"), r.Device)
	}
}

// table returns the table of a component's parameters.
func (c *loadedPart) table() ui.Table {
	t := ui.Table{{c.Name, "field", "transform", "dtype", "shape", "first values"}}
	for _, p := range c.Parameters {
		var first []string
		for _, v := range p.First {
			first = append(first, fmt.Sprintf("%.4g", float64(v)))
		}
		dtype := p.Dtype
		if stored := checkpoint.Dtype(p.Stored).Long(); stored != dtype {
			dtype = stored + " as " + dtype
		}
		t.Row(p.Name, p.Field, cmp.Or(p.Transform, "-"), dtype, fmt.Sprint(p.Shape), strings.Join(first, " "))
	}
	return t
}
