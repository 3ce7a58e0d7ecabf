package nn

import (
	"fmt"
	"reflect"
	"strconv"
)

// Limits of configs. Published models stay far below them; a damaged config must not
// make a program declare a model larger than memory.
const (
	MaxLayers = 1000
	MaxDim    = 1 << 20
)

// CheckConfig returns an error for the first field of a config, a pointer to a struct, whose number is not in the range of its
// tags. size and layers are the least value, and the largest is [MaxDim] or [MaxLayers]; with multiple it must be a multiple.
// number is positive, nonnegative or nonzero, for numbers with a fraction.
//
//	NumLayers        int     `json:"num_layers" layers:"1"`
//	TimestepChannels int     `json:"timestep_channels" size:"2" multiple:"2"`
//	Eps              float64 `json:"eps" number:"nonnegative"`
func CheckConfig(config any) error { return checkFields(reflect.ValueOf(config).Elem()) }

func checkFields(v reflect.Value) error {
	for i := range v.NumField() {
		field, x := v.Type().Field(i), v.Field(i)
		name, number := field.Tag.Get("json"), field.Tag.Get("number")
		switch {
		case field.Anonymous:
			if err := checkFields(x); err != nil {
				return err
			}
		case number == "positive" && !(x.Float() > 0):
			return fmt.Errorf("%s %g: must be positive", name, x.Float())
		case number == "nonnegative" && !(x.Float() >= 0):
			return fmt.Errorf("%s %g: must not be negative", name, x.Float())
		case number == "nonzero" && x.Float() == 0:
			return fmt.Errorf("%s 0: must not be zero", name)
		}
		for tag, most := range map[string]int64{"size": MaxDim, "layers": MaxLayers} {
			least, ok := tagged(field, tag)
			if ok && (x.Int() < least || x.Int() > most) {
				return fmt.Errorf("%s %d: expected %d to %d", name, x.Int(), least, most)
			}
		}
		if n, ok := tagged(field, "multiple"); ok && x.Int()%n != 0 {
			return fmt.Errorf("%s %d: expected a multiple of %d", name, x.Int(), n)
		}
	}
	return nil
}

// tagged returns the number in a tag of a field, and reports whether it has the tag.
func tagged(field reflect.StructField, tag string) (n int64, ok bool) {
	text, ok := field.Tag.Lookup(tag)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("nn: tag %s of %s: %v", tag, field.Name, err))
	}
	return n, true
}
