package report

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

func TestDiffArrays(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	array := func(d checkpoint.Dtype, values ...float32) *checkpoint.Array {
		a, err := checkpoint.FromFloat32("x", []int{len(values)}, values)
		if err == nil {
			a, err = a.Cast(d)
		}
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	const f32, f64, bf16, i64 = checkpoint.F32, checkpoint.F64, checkpoint.BF16, checkpoint.I64
	exact := &Limits{}
	for name, c := range map[string]struct {
		got, want *checkpoint.Array
		limits    *Limits
		ok        bool
		reason    string
	}{
		"equal":                {array(f32, 1, 2, -4), array(f32, 1, 2, -4), nil, true, ""},
		"rounded":              {array(f32, 1, 2.00001, -4), array(f32, 1, 2, -4), nil, true, ""},
		"off":                  {array(f32, 1, 2.0002, -4), array(f32, 1, 2, -4), nil, false, ""},
		"off by a given limit": {array(f32, 1, 2.0002, -4), array(f32, 1, 2, -4), &Limits{RTol: 2e-4}, true, ""},
		"off by less":          {array(f32, 1, 2.0002, -4), array(f32, 1, 2, -4), &Limits{ATol: 1e-4}, false, ""},
		"float64":              {array(f64, 1, 2, -4), array(f32, 1, 2, -4), nil, true, ""},
		"bfloat16":             {array(bf16, 1, 2.01, -4), array(f32, 1, 2.01, -4), nil, true, ""},
		"bfloat16's reference": {array(f32, 1, 2.01, -4), array(bf16, 1, 2.01, -4), nil, true, ""},
		"whole numbers":        {array(i64, 1, 2, 3), array(i64, 1, 2, 4), nil, false, ""},
		"dtypes of whole":      {array(checkpoint.Bool, 1, 0, 1), array(i64, 1, 0, 1), nil, true, ""},
		"kinds": {array(i64, 1, 2, 3), array(f32, 1, 2, 3), nil, false,
			"int64 and float32 are numbers of two kinds (append @float32 to compare them)"},
		"shapes": {array(f32, 1, 2), array(f32, 1, 2, 3, 4), nil, false,
			"shape [2], the reference's [4] (half as many values: one of two batch rows, or one of two joined halves)"},
		"infinite":               {array(f32, 1, inf), array(f32, 1, inf), nil, false, ""},
		"infinite with limits":   {array(f32, 1, inf), array(f32, 1, inf), exact, true, ""},
		"other infinity":         {array(f32, 1, inf), array(f32, 1, -inf), exact, false, ""},
		"NaN":                    {array(f32, 1, nan), array(f32, 1, nan), &Limits{ATol: 1}, false, ""},
		"nothing":                {array(f32), array(f32), nil, true, ""},
		"denormal for a number":  {array(f32, math.SmallestNonzeroFloat32, 2), array(f32, 1, 2), nil, false, ""},
		"denormal beside others": {array(f32, math.SmallestNonzeroFloat32, 2), array(f32, 0, 2), exact, false, ""},
	} {
		d := DiffArrays(c.got, c.want, c.limits)
		if d.OK() != c.ok || d.Reason != c.reason {
			t.Errorf("%s: %v, %q, %+v; expected %v, %q", name, d.OK(), d.Reason, d.Difference, c.ok, c.reason)
		}
	}
}
