package checkpoint_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// golden is what testdata/arrays/make.py puts into its files, and safetensors alone
// holds bf16.
var golden = []struct {
	name   string
	dtype  checkpoint.Dtype
	shape  []int
	values []float64
}{
	{"f8", checkpoint.F64, []int{2, 3}, []float64{1.5, -2.25, math.Pi, math.Inf(1), math.Copysign(0, -1), 1e300}},
	{"f4", checkpoint.F32, []int{2, 3, 4}, sevenths()},
	{"f2", checkpoint.F16, []int{7}, []float64{1, -2.5, 65504, math.Ldexp(1, -24), 0.333251953125, math.Inf(1), math.NaN()}},
	{"i8", checkpoint.I64, []int{2}, []float64{-1<<62 - 1, 1<<62 + 1}},
	{"i4", checkpoint.I32, []int{2, 1}, []float64{-5, 7}},
	{"i2", checkpoint.I16, []int{2}, []float64{-300, 300}},
	{"i1", checkpoint.I8, []int{2}, []float64{-128, 127}},
	{"u8", checkpoint.U64, []int{1}, []float64{1<<64 - 1}},
	{"u4", checkpoint.U32, []int{1}, []float64{1<<32 - 1}},
	{"u2", checkpoint.U16, []int{1}, []float64{65535}},
	{"u1", checkpoint.U8, []int{2}, []float64{0, 255}},
	{"b1", checkpoint.Bool, []int{3}, []float64{1, 0, 1}},
	{"scalar", checkpoint.F32, []int{}, []float64{3.5}},
	{"empty", checkpoint.F32, []int{2, 0, 3}, []float64{}},
	{"bf16", checkpoint.BF16, []int{4}, []float64{1, -0.333984375, 3.00405527047391e+38, math.NaN()}},
}

func sevenths() (out []float64) {
	for i := range 24 {
		out = append(out, float64(float32(i)/7))
	}
	return out
}

// same compares bit patterns, except that all NaNs are one.
func same(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool {
		return math.IsNaN(x) && math.IsNaN(y) || math.Float64bits(x) == math.Float64bits(y)
	})
}

func open(t *testing.T, name string) *checkpoint.ArrayFile {
	t.Helper()
	f, err := checkpoint.OpenArrays(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestGoldens(t *testing.T) {
	for _, name := range []string{"stored.npz", "deflated.npz", "all.safetensors"} {
		t.Run(name, func(t *testing.T) {
			f := open(t, filepath.Join("testdata/arrays", name))
			want := golden
			if f.Format == "npz" {
				want = golden[:len(golden)-1]
			} else if f.Metadata["made by"] != "make.py" {
				t.Errorf("metadata %v", f.Metadata)
			}
			if n := len(f.Tensors()); n != len(want) {
				t.Errorf("%d tensors, expected %d", n, len(want))
			}
			for _, g := range want {
				x, err := f.Read(g.name)
				if err != nil {
					t.Error(err)
					continue
				}
				if x.Dtype != g.dtype || !slices.Equal(x.Shape, g.shape) || !same(x.Float64s(), g.values) {
					t.Errorf("%s: found %v %v, expected %v %v %v", g.name, x, x.Float64s(), g.dtype, g.shape, g.values)
				}
				streamed, first, err := f.Stats(g.name, 3)
				if err != nil || !sameStats(streamed, x.Stats()) || !same(first, g.values[:min(3, len(g.values))]) {
					t.Errorf("%s: streamed %v %v %v, whole %v", g.name, streamed, first, err, x.Stats())
				}
			}
		})
	}
}

func sameStats(a, b checkpoint.Stats) bool {
	bits := func(s checkpoint.Stats) []float64 {
		return []float64{float64(s.Min), float64(s.Max), float64(s.Mean), float64(s.Std), float64(s.NaN), float64(s.Inf)}
	}
	return same(bits(a), bits(b))
}

func TestNPY(t *testing.T) {
	for _, name := range []string{"c", "fortran", "big-endian", "version2", "version3"} {
		f := open(t, filepath.Join("testdata/arrays", name+".npy"))
		if f.Tensors()[0].Name != name {
			t.Errorf("named %s, expected %s", f.Tensors()[0].Name, name)
		}
		x, err := f.Read(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if x.Dtype != checkpoint.F32 || !slices.Equal(x.Shape, []int{2, 3, 4}) || !same(x.Float64s(), sevenths()) {
			t.Errorf("%s: found %v %v", name, x, x.Float64s())
		}
		if s, first, err := f.Stats(name, 2); err != nil || !sameStats(s, x.Stats()) || !same(first, sevenths()[:2]) {
			t.Errorf("%s: %v %v %v", name, s, first, err)
		}
	}
}

// TestWriteAsNumPy compares with the very bytes that NumPy writes.
func TestWriteAsNumPy(t *testing.T) {
	x, err := checkpoint.FromFloat32("x", []int{2, 3, 4}, float32s(sevenths()))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.npy")
	if err := checkpoint.WriteFile(path, []*checkpoint.Array{x}, nil); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(path)
	want, _ := os.ReadFile("testdata/arrays/c.npy")
	if !bytes.Equal(got, want) {
		t.Errorf("found %q, expected %q", got, want)
	}
}

func float32s(values []float64) (out []float32) {
	for _, v := range values {
		out = append(out, float32(v))
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	f := open(t, "testdata/arrays/all.safetensors")
	var all []*checkpoint.Array
	for _, i := range f.Tensors() {
		x, err := f.Read(i.Name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	dir := t.TempDir()
	for _, c := range []struct {
		name     string
		tensors  []*checkpoint.Array
		metadata map[string]string
	}{
		{"x.safetensors", all, map[string]string{"a": "b", "quote": "\"\n\u2028"}},
		{"none.safetensors", nil, nil},
		{"x.npz", slices.DeleteFunc(slices.Clone(all), func(x *checkpoint.Array) bool { return x.Dtype == checkpoint.BF16 }), nil},
		{"none.npz", nil, nil},
	} {
		path := filepath.Join(dir, c.name)
		if err := checkpoint.WriteFile(path, c.tensors, c.metadata); err != nil {
			t.Error(err)
			continue
		}
		got := open(t, path)
		if len(got.Tensors()) != len(c.tensors) || len(got.Metadata) != len(c.metadata) {
			t.Errorf("%s: %d tensors, metadata %v", c.name, len(got.Tensors()), got.Metadata)
		}
		for key, value := range c.metadata {
			if got.Metadata[key] != value {
				t.Errorf("%s: metadata %q is %q, expected %q", c.name, key, got.Metadata[key], value)
			}
		}
		for _, want := range c.tensors {
			x, err := got.Read(want.Name)
			if err != nil || x.Dtype != want.Dtype || !slices.Equal(x.Shape, want.Shape) || !bytes.Equal(x.Data, want.Data) {
				t.Errorf("%s: found %v, %v, expected %v", c.name, x, err, want)
			}
		}
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 4 {
		t.Errorf("%d files are there, expected 4", len(entries))
	}
}

func TestWriteErrors(t *testing.T) {
	x := &checkpoint.Array{Name: "x", Dtype: checkpoint.BF16, Shape: []int{2}, Data: make([]byte, 4)}
	other := &checkpoint.Array{Name: "y", Dtype: checkpoint.F32, Shape: []int{1}, Data: make([]byte, 4)}
	dir := t.TempDir()
	for _, c := range []struct {
		file     string
		tensors  []*checkpoint.Array
		metadata map[string]string
		err      string
	}{
		{"a.npy", []*checkpoint.Array{x}, nil, "tensor x: NumPy has no dtype BF16 (write a .safetensors file"},
		{"a.npz", []*checkpoint.Array{x}, nil, "tensor x: NumPy has no dtype BF16"},
		{"a.npy", []*checkpoint.Array{other, x}, nil, "exactly one array, found 2"},
		{"a.npy", []*checkpoint.Array{other}, map[string]string{"k": "v"}, "cannot store the metadata k"},
		{"a.npz", []*checkpoint.Array{other}, map[string]string{"k": "v"}, "cannot store the metadata k"},
		{"a.pt", []*checkpoint.Array{other}, nil, `ends in ".pt"`},
		{"a.safetensors", []*checkpoint.Array{x, x}, nil, "duplicate tensor x"},
		{"a.safetensors", []*checkpoint.Array{{Name: "x", Dtype: checkpoint.F32, Shape: []int{2}, Data: make([]byte, 7)}},
			nil, "7 bytes for F32 [2], expected 8"},
		{"a.safetensors", []*checkpoint.Array{{Name: "x", Dtype: "F8_E4M3", Shape: []int{2}, Data: make([]byte, 2)}}, nil,
			"is not a supported number type"},
		{"a.safetensors", []*checkpoint.Array{{Name: "__metadata__", Dtype: checkpoint.U8}}, nil, "expected"},
		{"nowhere/a.safetensors", nil, nil, "no such file"},
	} {
		err := checkpoint.WriteFile(filepath.Join(dir, c.file), c.tensors, c.metadata)
		if err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(err.Error(), filepath.Join(dir, c.file)) {
			t.Errorf("%s: found %v, expected %q", c.file, err, c.err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("%d files are left behind", len(entries))
	}
}

func TestOpenErrors(t *testing.T) {
	good, err := os.ReadFile("testdata/arrays/c.npy")
	if err != nil {
		t.Fatal(err)
	}
	header := func(text string) []byte {
		return append(binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(text))), text...)
	}
	dir := t.TempDir()
	for name, c := range map[string]struct {
		data []byte
		err  string
	}{
		"empty":       {nil, "not a safetensors file"},
		"magic":       {[]byte("\x93NUMPY"), "read the header: unexpected EOF"},
		"version":     {[]byte("\x93NUMPY\x04\x00\x00\x00"), "version 4 of the .npy format"},
		"cut":         {good[:len(good)-1], "95 bytes follow the header, expected 96 for F32 [2 3 4]"},
		"longer":      {append(slices.Clone(good), 0), "97 bytes follow the header"},
		"long header": {append([]byte("\x93NUMPY\x02\x00"), 0xff, 0xff, 0xff, 0xff), "header of 4294967295 bytes"},
		"no key":      {header("{'descr': '<f4'}"), `no key "fortran_order"`},
		"twice":       {header("{'descr': '<f4', 'descr': '<f4'}"), `duplicate key "descr"`},
		"unknown key": {header("{'a': 1}"), `unknown key "a"`},
		"no dict":     {header("hello"), "expected {"},
		"trailing":    {header("{'descr': '<f4', 'fortran_order': False, 'shape': (), } x"), "expected {, entries and }"},
		"negative":    {header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "expected the size of an axis"},
		"overflow":    {header("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"), "overflows 63 bits"},
		"empty, huge": {header("{'descr': '<f4', 'fortran_order': True, 'shape': (0, 9223372036854775807, 9223372036854775807), }"),
			"overflows 63 bits"},
		"huge":         {header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"), "0 bytes follow the header"},
		"bfloat16":     {header("{'descr': '<V2', 'fortran_order': False, 'shape': (), }"), "may be bfloat16"},
		"unterminated": {header("{'descr': '<f4"), "expected {, entries and }"},
		"open string":  {header("{'descr': '<f4}"), `expected a key and its value, found "'descr': '<f4"`},
		"no comma":     {header("{'descr': '<f4' 'shape': ()}"), "expected a key and its value"},
		"no tuple":     {header("{'shape': 3}"), `expected a tuple, found "3"`},
		"no axis":      {header("{'shape': (,)}"), `expected the size of an axis, found ""`},
		"not a bool":   {header("{'fortran_order': 1}"), `expected True or False, found "1"`},
		"axes": {header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + strings.Repeat("1,", 65) + ")}"),
			"more than 64 axes"},
		"zip": {[]byte("PK\x03\x04 and nothing more"), "not a complete .npz file"},
	} {
		path := filepath.Join(dir, name)
		os.WriteFile(path, c.data, 0o666)
		_, err := checkpoint.OpenArrays(path)
		if err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: found %v, expected %q", name, err, c.err)
		}
	}
	var pickle bytes.Buffer
	z := zip.NewWriter(&pickle)
	z.Create("archive/data.pkl")
	z.Close()
	torch := filepath.Join(dir, "x.pt")
	os.WriteFile(torch, pickle.Bytes(), 0o666)
	for name, want := range map[string]string{
		torch:                            "it is a PyTorch checkpoint",
		"testdata/arrays/objects.npy":    "Python objects are not supported",
		"testdata/arrays/complex.npy":    `dtype "<c16" is not supported`,
		"testdata/arrays/structured.npy": "structured arrays are not supported",
		"testdata/arrays":                "expected a file, found a folder",
		"testdata/arrays/nowhere.npy":    "no such file or directory",
		"/dev/null":                      "expected a file, found a device",
	} {
		if _, err := checkpoint.OpenArrays(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: found %v, expected %q", name, err, want)
		}
	}
}

func TestStats(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, 100_000)
	var sum float64
	for i := range values {
		values[i] = float32(r.NormFloat64()*3 + 1000)
		sum += float64(values[i])
	}
	mean := sum / float64(len(values))
	var square float64
	for _, v := range values {
		square += (float64(v) - mean) * (float64(v) - mean)
	}
	x, _ := checkpoint.FromFloat32("x", []int{len(values)}, values)
	s := x.Stats()
	if std := math.Sqrt(square / float64(len(values))); math.Abs(float64(s.Mean)-mean) > 1e-9 || math.Abs(float64(s.Std)-std) > 1e-9 {
		t.Errorf("found %v, expected mean %v and std %v", s, mean, std)
	}
	if s.Min != checkpoint.Float(slices.Min(values)) || s.Max != checkpoint.Float(slices.Max(values)) || !s.Finite() {
		t.Errorf("found %v", s)
	}
	inf := float32(math.Inf(-1))
	for _, c := range []struct {
		values []float32
		want   string
	}{
		{[]float32{1, inf, 3, float32(math.NaN())}, "1 to 3, 1 NaN, 1 infinite"},
		{[]float32{inf}, "nothing finite, 1 infinite"},
		{nil, "nothing finite"},
	} {
		x, _ := checkpoint.FromFloat32("x", []int{len(c.values)}, c.values)
		if got := x.Stats().Range(); got != c.want {
			t.Errorf("found %q, expected %q", got, c.want)
		}
	}
}

func TestCast(t *testing.T) {
	x, _ := checkpoint.FromFloat32("x", []int{6}, []float32{1, -2.5, 1.0 / 3, 70000, 1e-7, float32(math.NaN())})
	for d, want := range map[checkpoint.Dtype][]float64{
		checkpoint.F16:  {1, -2.5, 0.333251953125, math.Inf(1), math.Ldexp(2, -24), math.NaN()},
		checkpoint.BF16: {1, -2.5, 0.333984375, 70144, 1.0011717677116394e-07, math.NaN()},
		checkpoint.F64:  {1, -2.5, float64(float32(1.0 / 3)), 70000, float64(float32(1e-7)), math.NaN()},
	} {
		y, err := x.Cast(d)
		if err != nil || y.Dtype != d || !same(y.Float64s(), want) {
			t.Errorf("%s: found %v %v, expected %v", d, y.Float64s(), err, want)
		}
	}
	whole, _ := checkpoint.FromFloat32("x", []int{2}, []float32{-3, 127})
	for _, d := range []checkpoint.Dtype{checkpoint.I64, checkpoint.I32, checkpoint.I16, checkpoint.I8} {
		if y, err := whole.Cast(d); err != nil || !same(y.Float64s(), []float64{-3, 127}) {
			t.Errorf("%s: %v", d, err)
		}
	}
	for _, c := range []struct {
		value float32
		to    checkpoint.Dtype
	}{{-1, checkpoint.U64}, {-1, checkpoint.U8}, {256, checkpoint.U8}, {128, checkpoint.I8}, {0.5, checkpoint.I32},
		{1e30, checkpoint.I64}, {float32(math.NaN()), checkpoint.I64}, {2, checkpoint.Bool}} {
		x, _ := checkpoint.FromFloat32("x", []int{1}, []float32{c.value})
		if _, err := x.Cast(c.to); err == nil || !strings.Contains(err.Error(), "element 0 cannot be cast") {
			t.Errorf("%v to %s: %v", c.value, c.to, err)
		}
	}
	f := open(t, "testdata/arrays/all.safetensors")
	big, _ := f.Read("u8")
	if _, err := big.Cast(checkpoint.I64); err == nil {
		t.Error("2^64-1 was cast to int64")
	}
	long, _ := f.Read("i8") // which float64 would round
	if y, err := long.Cast(checkpoint.I64); err != nil || y != long {
		t.Error("a cast to its own dtype changed it")
	}
	if _, err := long.Cast(checkpoint.I32); err == nil {
		t.Error("2^62+1 was cast to int32")
	}
}

// TestHalves takes every half to float32 and back.
func TestHalves(t *testing.T) {
	for _, d := range []checkpoint.Dtype{checkpoint.F16, checkpoint.BF16} {
		data := make([]byte, 2<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(i))
		}
		x, _ := checkpoint.NewArray("x", d, []int{1 << 16}, data)
		y, _ := x.Cast(checkpoint.F32)
		z, _ := y.Cast(d)
		a, b := x.Float64s(), z.Float64s()
		if !same(a, b) {
			t.Errorf("%s: not the same after float32", d)
		}
	}
}

func TestParseDtype(t *testing.T) {
	for name, want := range map[string]checkpoint.Dtype{"f32": checkpoint.F32, "FP16": checkpoint.F16, "float64": checkpoint.F64,
		"bf16": checkpoint.BF16, "bfloat16": checkpoint.BF16, "I32": checkpoint.I32, "uint8": checkpoint.U8, "bool": checkpoint.Bool} {
		if got, err := checkpoint.ParseDtype(name); err != nil || got != want {
			t.Errorf("%s: found %s, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "8", "float", "fp8", "fpF16", "int4"} {
		if got, err := checkpoint.ParseDtype(name); err == nil {
			t.Errorf("%q is %s", name, got)
		}
	}
}

func TestReference(t *testing.T) {
	for s, want := range map[string]checkpoint.Reference{
		"a.npy":                           {File: "a.npy"},
		"dir/a.safetensors:latents@8":     {File: "dir/a.safetensors", Key: "latents@8"},
		"a.safetensors:latents@8@f32":     {File: "a.safetensors", Key: "latents@8", Cast: checkpoint.F32},
		"a.npz:x:in.0@bfloat16":           {File: "a.npz", Key: "x:in.0", Cast: checkpoint.BF16},
		"a.npy@fp16":                      {File: "a.npy", Cast: checkpoint.F16},
		"c:/x.npy":                        {File: "c:/x.npy"},
		"a.safetensors.npz:b.safetensors": {File: "a.safetensors.npz", Key: "b.safetensors"},
		"testdata/arrays/make.py:key":     {File: "testdata/arrays/make.py", Key: "key"},
		"nowhere:key":                     {File: "nowhere:key"},
	} {
		got, err := checkpoint.ParseReference(s)
		if err != nil || got != want {
			t.Errorf("%s: found %+v, %v, expected %+v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "a.npy:", "@f32", ":x", "a\x00.npy"} {
		if got, err := checkpoint.ParseReference(s); err == nil && got.File != ":x" {
			t.Errorf("%q: found %+v", s, got)
		}
	}
}

func TestReferenceRead(t *testing.T) {
	for _, c := range []struct {
		ref    string
		prefer []string
		want   string
		err    string
	}{
		{"testdata/arrays/c.npy", nil, "F32 [2 3 4]", ""},
		{"testdata/arrays/c.npy@f64", nil, "F64 [2 3 4]", ""},
		{"testdata/arrays/all.safetensors:i4", nil, "I32 [2 1]", ""},
		{"testdata/arrays/all.safetensors", []string{"latents", "b1"}, "BOOL [3]", ""},
		{"testdata/arrays/stored.npz:f8@i32", nil, "", "testdata/arrays/stored.npz: tensor f8: element 0 cannot be cast from F64 to I32"},
		{"testdata/arrays/stored.npz:f9", nil, "", `testdata/arrays/stored.npz: has no tensor f9 (similar: f2, f4, f8`},
		{"testdata/arrays/stored.npz", []string{"latents"}, "",
			"the file has 14 tensors, but no latents: append :NAME to the file name, with one of f8 F64 [2 3], "},
		{"testdata/arrays/nowhere.npz:x", nil, "", "testdata/arrays/nowhere.npz: no such file or directory"},
	} {
		r, err := checkpoint.ParseReference(c.ref)
		if err != nil {
			t.Fatal(err)
		}
		x, err := r.Read(c.prefer...)
		switch {
		case c.err == "" && (err != nil || x.String() != c.want):
			t.Errorf("%s: found %v, %v, expected %s", c.ref, x, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: found %v, expected %q", c.ref, err, c.err)
		}
	}
}

func TestNear(t *testing.T) {
	names := []string{"latents@0", "latents@1", "prompt.embeds", "transformer.layers.3.attention.to_q@0",
		"transformer.layers.3.attention.to_k@0"}
	for name, want := range map[string]string{
		"latent@0":                              "latents@0 latents@1",
		"prompt.embed":                          "prompt.embeds",
		"to_q":                                  "transformer.layers.3.attention.to_q@0",
		"transformer.layers.3.attention.to_w@0": "transformer.layers.3.attention.to_k@0 transformer.layers.3.attention.to_q@0",
		"zzz":                                   "",
	} {
		if got := strings.Join(checkpoint.Similar(name, names, 5), " "); got != want {
			t.Errorf("%s: found %q, expected %q", name, got, want)
		}
	}
	if got := checkpoint.Hint("zzz", names); got != "there are latents@0, latents@1, prompt.embeds, "+
		"transformer.layers.3.attention.to_k@0, transformer.layers.3.attention.to_q@0" {
		t.Error(got)
	}
}
