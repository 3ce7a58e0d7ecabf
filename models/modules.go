package models

import (
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Modules lists the modules of all components, whose tensors hooks see.
func (p *Pipeline) Modules() (all []hooks.Module) {
	for _, c := range p.Components() {
		all = append(all, nn.Modules(c.Model, c.Name)...)
	}
	return all
}

// parameters lists the parameters of a module and of the modules inside it, in the layout of
// diffusers.
func (p *Pipeline) parameters(module string) (all []hooks.Parameter) {
	for _, c := range p.Components() {
		inside, ok := strings.CutPrefix(module+".", c.Name+".")
		if !ok {
			continue
		}
		for _, param := range nn.Parameters(c.Model) {
			path, ok := strings.CutPrefix(param.Name, inside)
			if !ok {
				continue
			}
			found := hooks.Parameter{Path: path, Shape: param.Shape(), Quantization: param.Quantization()}
			if loaded := param.Param.Array; loaded != nil {
				found.Dtype = loaded.Dtype()
				if found.Quantization != nil {
					found.Dtype = p.dtype
				}
				found.Array = func() *mlx.Array { return param.Original(found.Dtype) }
			}
			all = append(all, found)
		}
	}
	return all
}
