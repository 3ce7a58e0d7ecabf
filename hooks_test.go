package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
)

func TestHook(t *testing.T) {
	m := open(t, nil)
	stop := errors.New("seen enough")
	o := options(1)
	o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
		if tap.Name == "transformer.layers.1.attention.to_out.0" && tap.Step == 1 {
			return nil, stop
		}
		return nil, nil
	}
	if _, err := m.Generate(context.Background(), o); !errors.Is(err, stop) {
		t.Errorf("error %v, expected %v", err, stop)
	}

	o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
		if tap.Name == "vae.decode.out" {
			return constant(tap.Output, 1), nil
		}
		return nil, nil
	}
	r, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range r.Image.Pix {
		if v != 255 {
			t.Fatalf("value %d of the picture is %d, expected the replacement's white", i, v)
		}
	}
}

// constant is a tensor like another one, with one value everywhere.
func constant(like gomflux.Tensor, value float32) gomflux.Tensor {
	return gomflux.NewTensor(like.Dtype(), like.Shape(), slices.Repeat([]float32{value}, size(like.Shape())))
}

// copied is a tensor that stays good when the hook has returned.
func copied(t gomflux.Tensor) gomflux.Tensor {
	return gomflux.NewTensor(t.Dtype(), slices.Clone(t.Shape()), t.Float32s())
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// TestHookSees checks that a hook that reads every tap changes nothing, and that taps are
// as documented.
func TestHookSees(t *testing.T) {
	for _, dtype := range []gomflux.Dtype{gomflux.Float32, gomflux.BFloat16} {
		t.Run(string(dtype), func(t *testing.T) {
			m := open(t, &gomflux.OpenOptions{Dtype: dtype})
			o := options(1)
			o.Guidance, o.NegativePrompt = ptr(2.0), "blurry"
			plain, err := m.Generate(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]gomflux.Tap{}
			o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
				if _, ok := seen[tap.FullName]; ok {
					t.Errorf("%s is seen again", tap.FullName)
				}
				if !strings.HasPrefix(tap.FullName, tap.Name) || tap.Kind != gomflux.OutputTap && tap.Kind != gomflux.InnerTap {
					t.Errorf("%s: %+v", tap.FullName, tap)
				}
				for _, tensor := range append([]gomflux.TapInput{{Tensor: tap.Output}}, tap.Inputs...) {
					if n := len(tensor.Float32s()); n != size(tensor.Shape()) || tensor.Dtype() == "" {
						t.Errorf("%s %s: %d elements of shape %v, %q", tap.FullName, tensor.Key, n, tensor.Shape(), tensor.Dtype())
					}
				}
				own, out := copied(tap.Output), tap.Output
				tap.Output = own
				seen[tap.FullName] = tap
				switch {
				case tap.Name == "transformer.layers.0.attention.to_q":
					return own, nil // with the same elements
				case strings.HasSuffix(tap.Name, ".to_k"):
					return out, nil // itself
				}
				return nil, nil
			}
			hooked, err := m.Generate(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			if !sameWithHook(plain.Image.Pix, hooked.Image.Pix) {
				t.Error("a hook that changes nothing changes the picture")
			}

			const layer = "transformer.layers.1.attention.to_out.0"
			var positive, negative []gomflux.Tap
			for _, tap := range seen {
				switch {
				case tap.Name != layer || tap.Kind != gomflux.OutputTap:
				case tap.Negative:
					negative = append(negative, tap)
				default:
					positive = append(positive, tap)
				}
			}
			if len(positive) != o.Steps || len(negative) != o.Steps {
				t.Errorf("%s is seen %d times for the prompt and %d for the negative one, expected %d", layer, len(positive),
					len(negative), o.Steps)
			}
			for _, tap := range append(positive, negative...) {
				if tap.Step < 0 || tap.Step >= o.Steps || (tap.Call > 0) != tap.Negative || len(tap.Inputs) != 1 ||
					tap.Inputs[0].Key != "0" {
					t.Errorf("%+v", tap)
				}
			}
			inner := 0
			for _, tap := range seen {
				if tap.Kind == gomflux.InnerTap && tap.Key == "q" && strings.HasPrefix(tap.Name, "transformer.layers.0.attention") {
					inner++
				}
			}
			if inner != 2*o.Steps {
				t.Errorf("the queries of a layer are seen %d times, expected %d", inner, 2*o.Steps)
			}
			for name, want := range map[string]gomflux.Dtype{"latents.init": gomflux.Float32, "sigmas": gomflux.Float32,
				"prompt.input_ids": gomflux.Int32, "prompt.embeds": dtype} {
				tap, ok := seen[name]
				if !ok || tap.Step != -1 || tap.Output.Dtype() != want {
					t.Errorf("%s: %+v, expected it before all steps, as %s", name, tap, want)
				}
			}
		})
	}
}

// TestHookReplaces: what takes the place of an output must be like it.
func TestHookReplaces(t *testing.T) {
	m := open(t, nil)
	for name, test := range map[string]struct {
		replace func(gomflux.Tensor) gomflux.Tensor
		want    string
	}{
		"another shape": {func(out gomflux.Tensor) gomflux.Tensor {
			return gomflux.NewTensor(out.Dtype(), []int{1}, []float32{1})
		}, "[1]"},
		"another dtype": {func(out gomflux.Tensor) gomflux.Tensor {
			return gomflux.NewTensor(gomflux.Float16, out.Shape(), out.Float32s())
		}, "float16"},
		"no dtype": {func(out gomflux.Tensor) gomflux.Tensor {
			return gomflux.NewTensor("float8", out.Shape(), out.Float32s())
		}, `dtype "float8"`},
		"too few elements": {func(out gomflux.Tensor) gomflux.Tensor {
			return gomflux.NewTensor(out.Dtype(), out.Shape(), out.Float32s()[1:])
		}, "expected 2048 elements, found 2047"},
	} {
		o := options(1)
		o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
			if tap.Name == "transformer.layers.1.attention.to_out.0" {
				return test.replace(tap.Output), nil
			}
			return nil, nil
		}
		if _, err := m.Generate(context.Background(), o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, expected %q", name, err, test.want)
		}
	}
	if _, err := m.Generate(context.Background(), options(1)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// values are some of a run, by their names.
type values map[string]gomflux.Tensor

func (v values) Has(name string, step int) bool { return step == -1 && v[name] != nil }

func (v values) Tensor(name string, step int) (gomflux.Tensor, error) {
	if t, ok := v[name].(failing); ok {
		return nil, t.err
	}
	return v[name], nil
}

// failing is a value that cannot be had.
type failing struct {
	gomflux.Tensor
	err error
}

// recorded are all values of a run that come before its steps.
func recorded(t *testing.T, m *gomflux.Model, o gomflux.Options) (values, *gomflux.Result) {
	t.Helper()
	all := values{}
	o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
		if tap.Step == -1 && !strings.HasPrefix(tap.Name, "vae.") {
			all[tap.FullName] = copied(tap.Output)
		}
		return nil, nil
	}
	r, err := m.Generate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return all, r
}

// TestValues: values of a run take the place of those that another one would compute.
func TestValues(t *testing.T) {
	ctx := context.Background()
	m := open(t, nil)
	of, first := recorded(t, m, options(1))

	o := options(2)
	other, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Values = values{"latents.init": of["latents.init"]}
	same, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(same.Image.Pix, first.Image.Pix) || bytes.Equal(same.Image.Pix, other.Image.Pix) {
		t.Error("the noise that is given is not that of the picture")
	}

	// a schedule of one's own, which the steps tell of
	sigmas := []float32{1, 0.875, 0.25, 0}
	o.Values = values{"sigmas": gomflux.NewTensor(gomflux.Float32, []int{4}, sigmas)}
	var left []float32
	o.OnStep = func(s gomflux.Step) error { left = append(left, float32(s.Sigma)); return nil }
	if _, err := m.Generate(ctx, o); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(left, sigmas[1:]) {
		t.Errorf("the steps lead to %v, expected %v", left, sigmas[1:])
	}
	o.OnStep = nil

	stop := errors.New("not to be had")
	short := gomflux.NewTensor(gomflux.Float32, []int{2}, []float32{1, 0})
	for name, test := range map[string]struct {
		v    values
		want string
		is   error
	}{
		"an error": {values{"latents.init": failing{err: stop}}, stop.Error(), stop},
		"a shape":  {values{"latents.init": short}, "latents.init has shape [2], expected [1 4 6 10]", gomflux.ErrRequest},
		"a dtype": {values{"latents.init": gomflux.NewTensor(gomflux.BFloat16, []int{1, 4, 6, 10},
			make([]float32, 240))}, "latents.init has dtype bfloat16, expected float32", gomflux.ErrRequest},
		"too few elements": {values{"latents.init": gomflux.NewTensor(gomflux.Float32, []int{1, 4, 6, 10}, make([]float32, 9))},
			"tensor of shape [1 4 6 10]: expected 240 elements, found 9", nil},
		"too few sigmas": {values{"sigmas": short}, "sigmas", gomflux.ErrRequest},
	} {
		o.Values = test.v
		if _, err := m.Generate(ctx, o); err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil &&
			!errors.Is(err, test.is) {
			t.Errorf("%s: error %v, expected %q", name, err, test.want)
		}
	}
	o.Values = values{"latents.init": of["latents.init"]}
	if _, err := m.GenerateBatch(ctx, o, []uint64{1, 2}); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("values for a batch: error %v", err)
	}
}

// TestValuesInstead: what only leads to values that are given need not be there.
func TestValuesInstead(t *testing.T) {
	ctx := context.Background()
	of, want := recorded(t, open(t, nil), options(1))
	without := edited(t, func(dir string) {
		for _, part := range []string{"text_encoder", "tokenizer"} {
			if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
				t.Fatal(err)
			}
		}
	})
	if _, err := gomflux.Open(ctx, without, nil); err == nil {
		t.Error("a model without a text encoder was opened")
	}
	o := options(1)
	o.Values = values{"prompt.embeds": of["prompt.embeds"]}
	m, err := gomflux.Open(ctx, without, onCPU(&gomflux.OpenOptions{For: []gomflux.Options{o}}))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
		t.Error("another picture")
	}
}

// TestNotFinite checks that values that are not finite are an error, which names the
// weights that are the cause.
func TestNotFinite(t *testing.T) {
	const file, name = "vae/diffusion_pytorch_model.safetensors", "decoder.conv_in.bias"
	folder := edited(t, func(dir string) {
		modeltest.Edit(t, filepath.Join(dir, file), func(all map[string]*checkpoint.Array) {
			modeltest.Fill(all[name], func(i int, v float32) float32 {
				if i == 2 {
					return float32(math.NaN())
				}
				return v
			})
		})
	})
	m, err := gomflux.Open(context.Background(), folder, onCPU(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	_, err = m.Generate(context.Background(), options(1))
	failed, ok := errors.AsType[*gomflux.NotFiniteError](err)
	if !ok {
		t.Fatalf("error %v", err)
	}
	want := gomflux.NotFiniteWeight{File: filepath.Join(folder, file), Name: name, Dtype: gomflux.BFloat16,
		Stored: failed.Weights[0].Stored}
	if failed.What != "pixels" || failed.Dtype != gomflux.Float32 || failed.Total != 1 || len(failed.Weights) != 1 ||
		failed.Weights[0] != want || !failed.Damaged() {
		t.Errorf("%s of %s, %d weights: %+v", failed.What, failed.Dtype, failed.Total, failed.Weights)
	}
	if !strings.HasPrefix(err.Error(), filepath.Join(folder, file)+": tensor "+name+": has 1 NaN and 0 infinite of ") {
		t.Errorf("error %q", err)
	}

	// computed by sound weights
	o := options(1)
	o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
		if tap.Name == "noise_pred" {
			return constant(tap.Output, float32(math.Inf(1))), nil
		}
		return nil, nil
	}
	_, err = open(t, nil).Generate(context.Background(), o)
	if failed, ok = errors.AsType[*gomflux.NotFiniteError](err); !ok || failed.What != "latents" || failed.Damaged() ||
		len(failed.Weights) > 0 {
		t.Errorf("error %v", err)
	}
}
