package main

import (
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"

	gobytes "bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"image"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/picture"
)

const goldens = "../../models/testdata/"

// runProgram runs the command in a folder.
func runProgram(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command("gomflux", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+filepath.Join(dir, "cache"))
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.String(), errs.String(), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), 0
}

// golden reads the bytes of a tensor of the goldens.
func golden(t *testing.T, file, name string) ([]byte, checkpoint.Tensor) {
	t.Helper()
	f, err := checkpoint.Open(os.DirFS(goldens), file)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	tensor, ok := f.Header.Tensors[name]
	if !ok {
		t.Fatalf("%s has no %s", file, name)
	}
	data, err := os.ReadFile(goldens + file)
	if err != nil {
		t.Fatal(err)
	}
	data = data[f.Header.DataOffset:]
	return data[tensor.Begin:tensor.End], tensor
}

// checkPixels compares an image with a golden, uint8 [H, W, 3].
func checkPixels(t *testing.T, name, file string) {
	t.Helper()
	want, tensor := golden(t, file, "image")
	p, err := picture.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if p.Image.Rect != image.Rect(0, 0, tensor.Shape[1], tensor.Shape[0]) {
		t.Fatalf("%s is of %v, expected %v", name, p.Image.Rect, tensor.Shape)
	}
	for i, v := range want {
		// diffusers rounds with other last bits
		if got := int(p.Image.Pix[i/3*4+i%3]); max(got-int(v), int(v)-got) > 1 {
			t.Fatalf("%s: value %d is %d, expected %d", name, i, got, v)
		}
	}
}

// TestDecodeGolden decodes diffusers' latents, with nothing but the vae.
func TestDecodeGolden(t *testing.T) {
	dir := t.TempDir()
	alone := filepath.Join(dir, "alone")
	if err := os.CopyFS(filepath.Join(alone, "vae"), os.DirFS(filepath.Join(tinyModel, "vae"))); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ latents, image, flag, tensor string }{
		"pipeline": {"zimage-ordinary/dump/tensors-2.safetensors", "zimage-ordinary/dump/tensors-3.safetensors",
			"--unscaled=false", "latents@1"},
		"vae.decode": {"zimage-ordinary/roundtrip/tensors.safetensors",
			"zimage-ordinary/roundtrip/tensors.safetensors", "--unscaled", "vae.decode.in"},
	}
	for name, test := range tests {
		for _, model := range []string{absolute(tinyModel), alone, filepath.Join(alone, "vae")} {
			stdout, stderr, code := runProgram(t, dir, "decode", absolute(goldens+test.latents)+":"+test.tensor, "-m",
				model, "-o", name+".png", "--overwrite", test.flag)
			if code != 0 || stdout != name+".png\n" {
				t.Fatalf("%s of %s: exit code %d, %q, %s", name, model, code, stdout, stderr)
			}
			checkPixels(t, filepath.Join(dir, name+".png"), test.image)
		}
	}
}

// A tensor to write.
type tensor struct {
	name, dtype string
	shape       []int
	data        []byte
}

func writeSafetensors(t *testing.T, name string, tensors ...tensor) {
	t.Helper()
	header := map[string]any{}
	var data []byte
	for _, x := range tensors {
		header[x.name] = map[string]any{"dtype": x.dtype, "shape": x.shape, "data_offsets": []int{len(data), len(data) + len(x.data)}}
		data = append(data, x.data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(name, append(append(file, text...), data...), 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestDecodeDtypes decodes the same values in all dtypes and shapes, and from
// files that name them in different ways.
func TestDecodeDtypes(t *testing.T) {
	const n = 4 * 3 * 5
	var f32, f16, bf16, nan, inf []byte
	for i := range n {
		v := float32(i%7)/2 - 1.5 // exact in 16 bits
		bits := math.Float32bits(v)
		f32 = binary.LittleEndian.AppendUint32(f32, bits)
		bf16 = binary.LittleEndian.AppendUint16(bf16, uint16(bits>>16))
		half := uint16(bits >> 16 & 0x8000)
		if v != 0 {
			half |= uint16(int(bits>>23&0xff)-127+15)<<10 | uint16(bits>>13&0x3ff)
		}
		f16 = binary.LittleEndian.AppendUint16(f16, half)
	}
	nan = gobytes.Clone(f32)
	binary.LittleEndian.PutUint32(nan[8:], math.Float32bits(float32(math.NaN())))
	inf = gobytes.Clone(bf16)
	binary.LittleEndian.PutUint16(inf, 0x7f80)
	binary.LittleEndian.PutUint16(inf[2:], 0xff80)

	dir := t.TempDir()
	shape := []int{4, 3, 5}
	latents := tensor{"x", "F32", shape, f32}
	named := func(name string) tensor { return tensor{name, "F32", shape, f32} }
	good := map[string]struct {
		file, arg string
		tensors   []tensor
	}{
		"F32":           {"a.safetensors", "a.safetensors", []tensor{latents}},
		"batch of one":  {"a.safetensors", "a.safetensors", []tensor{{"x", "F32", []int{1, 4, 3, 5}, f32}}},
		"F16":           {"a.safetensors", "a.safetensors", []tensor{{"x", "F16", shape, f16}}},
		"BF16":          {"a.safetensors", "a.safetensors", []tensor{{"x", "BF16", shape, bf16}}},
		"named":         {"a.safetensors", "a.safetensors:x", []tensor{named("y"), latents}},
		"latents":       {"a.safetensors", "a.safetensors", []tensor{{"other", "U8", []int{2}, []byte{1, 2}}, named("latents")}},
		"colons":        {"a:b.safetensors", "a:b.safetensors:c:d", []tensor{latents, named("c:d")}},
		"colon in name": {"a.safetensors:x", "a.safetensors:x", []tensor{latents}},
		"no extension":  {"a", "./a:x", []tensor{latents, named("y")}},
	}
	var first []byte
	for name, test := range good {
		writeSafetensors(t, filepath.Join(dir, test.file), test.tensors...)
		stdout, stderr, code := runProgram(t, dir, "decode", test.arg, "-m", absolute(tinyModel), "-o", "out.png", "--overwrite")
		if code != 0 || stdout != "out.png\n" {
			t.Errorf("%s: exit code %d, %q, %s", name, code, stdout, stderr)
			continue
		}
		got, err := os.ReadFile(filepath.Join(dir, "out.png"))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !gobytes.Equal(got, first) {
			t.Errorf("%s: another picture", name)
		}
		os.Remove(filepath.Join(dir, test.file))
	}

	huge := tensor{"x", "BF16", []int{1, 2500, 2501}, make([]byte, 2*2500*2501)}
	bad := map[string]struct {
		tensors   []tensor
		key, want string
	}{
		"NaN":         {[]tensor{{"x", "F32", shape, nan}}, "", "tensor x: 1 of 60 values are NaN or infinite"},
		"infinite":    {[]tensor{{"x", "BF16", shape, inf}}, "", "tensor x: 2 of 60 values are NaN or infinite"},
		"no such key": {[]tensor{latents}, ":y", "a.safetensors: has no tensor y, only x F32 [4 3 5]"},
		"several": {[]tensor{latents, named("y")}, "",
			"the file has 2 tensors, but no latents: append :NAME to the file name, with one of x F32 [4 3 5], y F32 [4 3 5]"},
		"none": {nil, "", "has no tensors"},
		"channels": {[]tensor{{"x", "F32", []int{5, 3, 4}, f32}}, "",
			"tensor x: latents of shape [5 3 4]: expected [4, height/4, width/4]"},
		"two pictures": {[]tensor{{"x", "F32", []int{2, 4, 3, 5}, append(f32[:len(f32):len(f32)], f32...)}}, "",
			"shape [2 4 3 5], expected [C, h, w] or [1, C, h, w]"},
		"flat":      {[]tensor{{"x", "F32", []int{n}, f32}}, "", "shape [60], expected"},
		"empty":     {[]tensor{{"x", "F32", []int{4, 0, 5}, nil}}, "", "latents of shape [4 0 5]: expected [4, height/4, width/4]"},
		"too large": {[]tensor{huge}, "", "an image of 10004x10000 pixels is too large (the limit is 100 million pixels)"},
		"dtype":     {[]tensor{{"x", "U8", shape, make([]byte, n)}}, "", "tensor x has the dtype U8, expected F32, F16 or BF16"},
		"escapes":   {[]tensor{named("\x1b[31m"), named("y")}, "", `"\x1b[31m" F32`},
	}
	for name, test := range bad {
		writeSafetensors(t, filepath.Join(dir, "a.safetensors"), test.tensors...)
		stdout, stderr, code := runProgram(t, dir, "decode", "a.safetensors"+test.key, "-m", absolute(tinyModel), "-o", "bad.png")
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, test.want) || strings.Count(stderr,
			"gomflux: ") != 1 || strings.Contains(stderr, "\x1b") {
			t.Errorf("%s: exit code %d, %q, %q, expected %q", name, code, stdout, stderr, test.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "bad.png")); err == nil {
		t.Error("bad.png was written")
	}
}
