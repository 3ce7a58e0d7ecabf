package nn

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx/hooks"
)

// Bind sets the paths of a model's modules, which begin with name, and their hook.
func Bind(model any, name string, points *hooks.Points) {
	walk(reflect.ValueOf(model), at{path: name}, visitor{
		module: func(id hooks.Module, m *Module, tag reflect.StructTag) { m.bind(id, points, tag) },
	})
}

// Parameters lists the parameters of a model (a pointer to a struct) in the order of
// its fields.
func Parameters(model any) (params []Parameter) {
	walk(reflect.ValueOf(model), at{}, visitor{param: func(a at, p *Param, options []string) {
		if p.frames != "" {
			options = append([]string{p.frames}, options...)
		}
		if p.shape != nil {
			params = append(params, Parameter{p, a.path, a.field, options})
		}
	}})
	return params
}

// Modules lists the modules of a model whose component has a name, outermost first.
func Modules(model any, name string) (all []hooks.Module) {
	walk(reflect.ValueOf(model), at{path: name}, visitor{
		module: func(id hooks.Module, _ *Module, _ reflect.StructTag) { all = append(all, id) },
	})
	return all
}

// Linears returns a model's linear layers by their paths, without the component's
// name.
func Linears(model any) map[string]*Linear {
	found := map[string]*Linear{}
	walk(reflect.ValueOf(model), at{}, visitor{linear: func(a at, d *Linear) { found[a.path] = d }})
	return found
}

var (
	moduleType = reflect.TypeFor[Module]()
	paramType  = reflect.TypeFor[Param]()
	stackType  = reflect.TypeFor[Stack]()
)

// at is a position in a model: its path in checkpoints, and in Go.
type at struct{ path, field string }

// element returns the position of an element of a slice or a map.
func (a at) element(name, index string) at {
	return at{join(a.path, name), a.field + "[" + index + "]"}
}

// A visitor has functions that are called for the parts of a model. They may be nil.
type visitor struct {
	module func(hooks.Module, *Module, reflect.StructTag)
	linear func(at, *Linear)
	param  func(at, *Param, []string)
	stack  func(*Stack)
}

// walk visits everything below v, depth first.
func walk(v reflect.Value, a at, to visitor) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		if d, ok := v.Interface().(*Linear); ok && v.Kind() == reflect.Pointer && to.linear != nil {
			to.linear(a, d)
		}
		walk(v.Elem(), a, to)
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), a.element(strconv.Itoa(i), strconv.Itoa(i)), to)
		}
	case reflect.Map: // torch.nn.ModuleDict
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			walk(v.MapIndex(key), a.element(key.String(), strconv.Quote(key.String())), to)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Type == moduleType && to.module != nil {
				id := hooks.Module{Name: a.path, Class: v.Type().String()}
				to.module(id, v.Field(i).Addr().Interface().(*Module), field.Tag)
			}
			if field.Type == stackType && to.stack != nil {
				to.stack(v.Field(i).Addr().Interface().(*Stack))
			}
			tag, ok := field.Tag.Lookup("w")
			if !ok {
				continue
			}
			options := strings.Split(tag, ",")
			child := at{a.path, join(a.field, field.Name)}
			if field.Anonymous { // its fields are named without it
				child.field = a.field
			}
			name := options[0]
			if module, ok := field.Tag.Lookup("module"); ok && to.module != nil {
				name = module
			}
			if name != "." {
				child.path = join(a.path, name)
			}
			if field.Type != paramType {
				walk(v.Field(i), child, to)
			} else if to.param != nil {
				to.param(child, v.Field(i).Addr().Interface().(*Param), options[1:])
			}
		}
	default:
		panic(fmt.Sprintf("nn: %s: field of type %v in a model", a.path, v.Type()))
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
