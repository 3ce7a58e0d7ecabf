package gomflux

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/models/save"
)

// TestConversions: the engine's structs have no field that is not in this package's,
// and the values of all of them arrive.
func TestConversions(t *testing.T) {
	var progress models.Progress
	fillIn(&progress)
	var step models.Step
	fillIn(&step)
	var gotProgress Progress
	var gotStep Step
	mlxtest.Do(t, func() {
		onCaller(func(p Progress) { gotProgress = p })(progress)
		onStep(func(s Step) error { gotStep = s; return nil })(step)
	})
	alike(t, "Progress", progress, gotProgress)
	alike(t, "Step", step, gotStep)

	var report save.Report
	fillIn(&report)
	alike(t, "SaveReport", report, *newSaveReport(&report))

	var found lora.Report
	fillIn(&found)
	alike(t, "LoRAReport", found, loraReports([]lora.Report{found})[0])

	var latents models.Latents
	fillIn(&latents)
	alike(t, "Latents", latents, Latents(latents))
	var cut models.Cut
	fillIn(&cut)
	alike(t, "Cut", cut, Cut(cut))
	var defaults family.Defaults
	fillIn(&defaults)
	alike(t, "Defaults", defaults, Defaults(defaults))
	d := Defaults(defaults)
	alike(t, "Defaults to the engine", d, family.Defaults(d))
	var weight models.NotFiniteWeight
	fillIn(&weight)
	alike(t, "NotFiniteWeight", weight,
		public(&models.NotFiniteError{Weights: []models.NotFiniteWeight{weight}}).(*NotFiniteError).Weights[0])
	alike(t, "NotFiniteError", models.NotFiniteError{What: "w", Dtype: mlx.BFloat16, Total: 3},
		*public(&models.NotFiniteError{What: "w", Dtype: mlx.BFloat16, Total: 3}).(*NotFiniteError))

	// every field of a request is an option, possibly under another name
	options := fields(reflect.TypeFor[Options]())
	options["Overrides"] = options["Values"]
	options["Conversions"] = options["Image"] // see PrepareImages
	options["Forked"] = options["Hook"]       // of comparisons, package parity
	options["Stopped"] = options["Image"]     // the context of Generate
	for name := range fields(reflect.TypeFor[models.Request]()) {
		if _, ok := options[name]; !ok {
			t.Errorf("Request.%s is not in Options", name)
		}
	}
}

// TestConversionsCompare: TestConversions notices a value that is lost, and a field.
func TestConversionsCompare(t *testing.T) {
	type a struct{ X, Y int }
	type b struct{ Y, X int8 }
	type c struct{ X int }
	for _, test := range []struct {
		from, to any
		want     int
	}{{a{1, 2}, b{2, 1}, 0}, {a{1, 2}, b{1, 2}, 2}, {a{1, 2}, c{1}, 1}, {[]a{{1, 2}}, []b{{2, 0}}, 1}, {[]a{{1, 2}}, []b{}, 1}} {
		if got := differences("", reflect.ValueOf(test.from), reflect.ValueOf(test.to)); len(got) != test.want {
			t.Errorf("%+v and %+v: %q, expected %d", test.from, test.to, got, test.want)
		}
	}
}

// fillIn sets every field of a struct to another value.
func fillIn(structure any) {
	n := 0
	var set func(v reflect.Value)
	set = func(v reflect.Value) {
		n++
		if v.Type() == reflect.TypeFor[mlx.Dtype]() {
			v.Set(reflect.ValueOf(mlx.BFloat16))
			return
		}
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(n))
		case reflect.Float32, reflect.Float64:
			v.SetFloat(float64(n) + 0.5)
		case reflect.String:
			v.SetString(fmt.Sprint("text ", n))
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			for i := range v.Len() {
				set(v.Index(i))
			}
		case reflect.Map:
			v.Set(reflect.MakeMap(v.Type()))
			value := reflect.New(v.Type().Elem()).Elem()
			set(value)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key ", n)), value)
		case reflect.Struct:
			for i := range v.NumField() {
				set(v.Field(i))
			}
		default:
			panic("no value for " + v.Type().String())
		}
	}
	set(reflect.ValueOf(structure).Elem())
}

// alike fails if a struct does not have all values of another one.
func alike(t *testing.T, name string, from, to any) {
	t.Helper()
	for _, d := range differences(name, reflect.ValueOf(from), reflect.ValueOf(to)) {
		t.Error(d)
	}
}

// differences compares structs by the names of their fields, and other values by how they
// are printed.
func differences(at string, from, to reflect.Value) (list []string) {
	switch {
	case from.Kind() == reflect.Struct && to.Kind() == reflect.Struct:
		has := fields(to.Type())
		for name, field := range fields(from.Type()) {
			other, ok := has[name]
			if !ok {
				list = append(list, fmt.Sprintf("%s has no field %s of %s", at, name, from.Type()))
				continue
			}
			list = append(list, differences(at+"."+name, from.FieldByIndex(field), to.FieldByIndex(other))...)
		}
	case from.Kind() == reflect.Slice && to.Kind() == reflect.Slice && from.Len() == to.Len():
		for i := range from.Len() {
			list = append(list, differences(fmt.Sprintf("%s[%d]", at, i), from.Index(i), to.Index(i))...)
		}
	default:
		if f, t := fmt.Sprint(from), fmt.Sprint(to); f != t {
			list = append(list, fmt.Sprintf("%s is %s, expected %s", at, t, f))
		}
	}
	return list
}

// fields are the exported fields of a struct, with those of embedded structs instead
// of these.
func fields(t reflect.Type) map[string][]int {
	all := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		if f.IsExported() && !f.Anonymous {
			all[f.Name] = f.Index
		}
	}
	return all
}

// TestConstants: the names that constants stand for are those that the engine knows.
func TestConstants(t *testing.T) {
	var quantizations []string
	for _, q := range []Quantization{Bits3, Bits4, Bits5, Bits6, Bits8, MXFP4, MXFP8, NVFP4} {
		quantizations = append(quantizations, string(q))
		if got, err := q.internal(0); err != nil || component.QuantizationName(*got) != string(q) {
			t.Errorf("%s: %v, %v", q, got, err)
		}
	}
	mlxtest.Same(t, "quantizations", quantizations, component.Quantizations)
	for _, dtype := range []Dtype{Float32, BFloat16, Float16, Int32, Uint8} {
		if got, err := mlx.ParseDtype(string(dtype)); err != nil || got.String() != string(dtype) {
			t.Errorf("%s: %v, %v", dtype, got, err)
		}
		if _, err := dtype.compute(); (err == nil) != (dtype == Float32 || dtype == BFloat16 || dtype == Float16) {
			t.Errorf("%s: %v", dtype, err)
		}
	}
	for _, device := range []Device{CPU, GPU, Device(mlx.GPU.String())} {
		if got, err := device.device(); err != nil || (*got == mlx.CPU) != (device == CPU) {
			t.Errorf("%s: %v, %v", device, got, err)
		}
	}
	for kind, want := range map[hooks.Kind]TapKind{hooks.Output: OutputTap, hooks.Inner: InnerTap} {
		if got := newTap(hooks.Tap{Name: "a", Point: hooks.Point{Kind: kind, Key: "q"}}); got.Kind != want || got.Key != "q" {
			t.Errorf("%v: %+v", kind, got)
		}
	}
	mlxtest.Same(t, "layouts", []string{string(DiffusersLayout), string(MFluxLayout)}, []string{save.LayoutDiffusers, save.LayoutMFlux})
	mlxtest.Same(t, "phases", []string{string(PhaseLoad), string(PhaseEncode), string(PhaseStep), string(PhaseDecode)},
		[]string{string(models.PhaseLoad), string(models.PhaseEncode), string(models.PhaseStep), string(models.PhaseDecode)})
}
