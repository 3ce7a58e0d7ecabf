package component_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/component"
)

const models = "../testdata"

// TestOriginal holds the tables against lists of what diffusers' own converters
// take (scripts/reference, original): names, shapes and hashes. Of what the tables
// make of a tiny model's tensors they give back the same bytes.
func TestOriginal(t *testing.T) {
	lists, err := filepath.Glob("testdata/original/*.json")
	if err != nil || len(lists) != 6 {
		t.Fatalf("found %d lists, expected 6 (%v)", len(lists), err)
	}
	for _, list := range lists {
		model := strings.TrimSuffix(filepath.Base(list), ".json")
		if model == "wan-vae" {
			continue
		}
		var golden map[string]struct {
			Class   string            `json:"class"`
			Tensors map[string]string `json:"tensors"`
		}
		readJSON(t, list, &golden)
		for folder, want := range golden {
			t.Run(model+"/"+folder, func(t *testing.T) {
				class := component.Find(want.Class)
				source := modeltest.Read(t, filepath.Join(models, model, "model", folder))
				var table *layout.Table
				for _, table = range modeltest.Renaming(class.Original) {
					if !slices.ContainsFunc(table.Signature, func(name string) bool { return want.Tensors[name] == "" }) {
						break
					}
				}
				made := modeltest.Stored(t, table, source)
				got := map[string]string{}
				for name, tensor := range made {
					sum := sha256.Sum256(tensor.Data)
					shape := strings.Trim(strings.ReplaceAll(fmt.Sprint(tensor.Shape), " ", "x"), "[]")
					got[name] = shape + " " + hex.EncodeToString(sum[:])[:16]
				}
				for _, name := range slices.Sorted(maps.Keys(want.Tensors)) {
					if got[name] != want.Tensors[name] {
						t.Errorf("%s: %q, expected %q", name, got[name], want.Tensors[name])
					}
				}
				if len(got) != len(want.Tensors) {
					t.Errorf("%d tensors, expected %d", len(got), len(want.Tensors))
				}
				for _, prefix := range append([]string{""}, table.Prefixes...) {
					back(t, class, prefix, made, source)
				}
			})
		}
	}
}

// back writes a file, views it, and compares the bytes with the source's.
func back(t *testing.T, class *component.Class, prefix string, made, source map[string]*checkpoint.Array) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	more := made[slices.Sorted(maps.Keys(made))[0]]
	files := map[string]map[string]*checkpoint.Array{prefix: maps.Clone(made)}
	files[prefix]["scaled_fp8"] = more
	if prefix != "" {
		files[""] = map[string]*checkpoint.Array{"another.model.weight": more}
	}
	modeltest.Write(t, path, nil, files)
	ck := open(t, path)
	shapes := map[string][]int{}
	for name, tensor := range source {
		shapes[name] = tensor.Shape
	}
	view, table, err := layout.View(ck, class.Tables(), shapes)
	if err != nil {
		t.Fatal(err)
	}
	if table == nil || len(view.Tensors) != len(source) {
		t.Fatalf("prefix %q: table %v, %d tensors, expected %d", prefix, table, len(view.Tensors), len(source))
	}
	for name, want := range source {
		got, ok := view.Tensors[name]
		if !ok {
			t.Errorf("prefix %q: no %s", prefix, name)
			continue
		}
		if data := read(t, ck, got); !slices.Equal(got.Shape, want.Shape) || !bytes.Equal(data, want.Data) {
			t.Errorf("prefix %q: %s (%s, %v) of shape %v is not what it was, of shape %v", prefix, name, got.Name, got.Transforms,
				got.Shape, want.Shape)
		}
	}
	parts, err := component.Detect(ck, "")
	if err != nil || len(parts) != 1 || parts[0].Class != class || parts[0].Prefix != prefix {
		t.Errorf("prefix %q: detected %+v, %v, expected a %s", prefix, parts, err, class.Name)
	}
}

func open(t testing.TB, path string) *checkpoint.Checkpoint {
	t.Helper()
	f, err := checkpoint.Open(os.DirFS(filepath.Dir(path)), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &checkpoint.Checkpoint{Dir: path, Files: []*checkpoint.File{f}, Tensors: f.Header.Tensors}
}

// read reads a tensor in its form.
func read(t *testing.T, ck *checkpoint.Checkpoint, tensor checkpoint.Tensor) []byte {
	t.Helper()
	path, err := ck.Files[0].Path()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, ck.Files[0].Header.DataOffset+tensor.Begin, tensor.End-tensor.Begin))
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range tensor.Transforms {
		switch form.Op {
		case checkpoint.TransformRows:
			row := len(data) / tensor.Stored[0]
			data = data[form.From*row : form.To*row]
		case checkpoint.TransformSwap:
			data = slices.Concat(data[len(data)/2:], data[:len(data)/2])
		case checkpoint.TransformSqueeze, checkpoint.TransformSixRows:
		default:
			t.Fatalf("%s: unexpected form %s", tensor.Name, form.Op)
		}
	}
	return data
}

// TestWan compares the names of Wan's autoencoder with diffusers'.
func TestWan(t *testing.T) {
	var names map[string]string // there, and diffusers'
	readJSON(t, "testdata/original/wan-vae.json", &names)
	ck := named(slices.Sorted(maps.Keys(names)))
	view, table, err := layout.View(ck, component.AutoencoderKLQwenImage.Tables(), nil)
	if err != nil || table == nil {
		t.Fatalf("%v, %v", table, err)
	}
	if len(names) < 100 || len(view.Tensors) != len(names) {
		t.Errorf("%d of %d tensors", len(view.Tensors), len(names))
	}
	for other, name := range names {
		if got := view.Tensors[name].Name; got != other {
			t.Errorf("%s: %q, expected %s", name, got, other)
		}
	}
	// other numbers of levels and of blocks: what the rules make is taken back by the same ones
	for _, table := range modeltest.Renaming(component.AutoencoderKLQwenImage.Original) {
		ck := named(table.Signature)
		view, found, err := layout.View(ck, component.AutoencoderKLQwenImage.Tables(), nil)
		if err != nil || found != table {
			t.Errorf("signature %q: table of %q, %v", table.Signature, found.Signature, err)
		}
		for name, tensor := range view.Tensors {
			if other, _, _ := table.Other(name); other != tensor.Name {
				t.Errorf("%s: %s, expected %s", name, other, tensor.Name)
			}
		}
	}
}

// TestWan22 checks the names and shapes of an autoencoder in the layout of Wan 2.2, whose
// convolutions have an axis of one frame, and that one over several frames is refused.
func TestWan22(t *testing.T) {
	class := component.AutoencoderKLQwenImage21
	type tensor struct {
		other, name   string
		stored, shape []int
	}
	for blocks := 1; blocks <= 3; blocks++ {
		down, up := fmt.Sprint("encoder.downsamples.2.downsamples.", blocks), fmt.Sprint("decoder.upsamples.0.upsamples.", blocks+1)
		list := []tensor{
			{"conv1.weight", "quant_conv.weight", []int{8, 8, 1, 1, 1}, []int{8, 8, 1, 1}},
			{"conv2.bias", "post_quant_conv.bias", []int{4}, []int{4}},
			{"encoder.conv1.weight", "encoder.conv_in.weight", []int{6, 4, 1, 3, 3}, []int{6, 4, 3, 3}},
			{"encoder.downsamples.1.downsamples.0.residual.0.gamma", "encoder.down_blocks.1.resnets.0.norm1.gamma",
				[]int{6, 1, 1, 1}, []int{6, 1, 1, 1}},
			{"encoder.downsamples.1.downsamples.0.shortcut.weight", "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
				[]int{8, 6, 1, 1, 1}, []int{8, 6, 1, 1}},
			{down + ".resample.1.weight", "encoder.down_blocks.2.downsampler.resample.1.weight", []int{8, 8, 3, 3}, []int{8, 8, 3, 3}},
			{down + ".time_conv.weight", "encoder.down_blocks.2.downsampler.time_conv.weight", []int{8, 8, 1, 1, 1}, []int{8, 8, 1, 1}},
			{"encoder.middle.1.to_qkv.weight", "encoder.mid_block.attentions.0.to_qkv.weight", []int{24, 8, 1, 1}, []int{24, 8, 1, 1}},
			{"decoder.middle.0.residual.0.gamma", "decoder.mid_block.resnets.0.norm1.gamma", []int{8, 1, 1, 1}, []int{8, 1, 1, 1}},
			{"decoder.middle.2.residual.6.weight", "decoder.mid_block.resnets.1.conv2.weight", []int{8, 8, 1, 3, 3}, []int{8, 8, 3, 3}},
			{fmt.Sprintf("decoder.upsamples.3.upsamples.%d.residual.2.weight", blocks),
				fmt.Sprintf("decoder.up_blocks.3.resnets.%d.conv1.weight", blocks), []int{8, 8, 1, 3, 3}, []int{8, 8, 3, 3}},
			{up + ".resample.1.weight", "decoder.up_blocks.0.upsampler.resample.1.weight", []int{8, 8, 3, 3}, []int{8, 8, 3, 3}},
			{"decoder.head.0.gamma", "decoder.norm_out.gamma", []int{8, 1, 1, 1}, []int{8, 1, 1, 1}},
			{"decoder.head.2.weight", "decoder.conv_out.weight", []int{4, 8, 1, 3, 3}, []int{4, 8, 3, 3}},
		}
		ck := &checkpoint.Checkpoint{Dir: "a test", Tensors: map[string]checkpoint.Tensor{}}
		for _, x := range list {
			ck.Tensors["vae."+x.other] = checkpoint.Tensor{Name: x.other, Dtype: "F32", Shape: x.stored}
		}
		view, table, err := layout.View(ck, class.Tables(), nil)
		if err != nil || table == nil || len(view.Tensors) != len(list) {
			t.Fatalf("%d blocks: %v, %v, %v", blocks, table, err, view)
		}
		for _, x := range list {
			if got := view.Tensors[x.name]; got.Name != x.other || !slices.Equal(got.Shape, x.shape) {
				t.Errorf("%d blocks: %s: found %s of shape %v, expected %s of shape %v", blocks, x.name,
					got.Name, got.Shape, x.other, x.shape)
			}
			if other, _, _ := table.Other(x.name); other != x.other {
				t.Errorf("%d blocks: %s: %s, expected %s", blocks, x.name, other, x.other)
			}
		}
		shapes := layout.Shapes(ck, table, "vae.", func(name string) string { return name })
		if got := shapes["decoder.conv_out.weight"]; !slices.Equal(got, []int{4, 8, 3, 3}) {
			t.Errorf("%d blocks: shapes has %v for decoder.conv_out.weight", blocks, got)
		}
		const head = "decoder.head.2.weight"
		ck.Tensors["vae."+head] = checkpoint.Tensor{Name: head, Dtype: "F32", Shape: []int{12, 8, 3, 3, 3}}
		if _, _, err := layout.View(ck, class.Tables(), nil); err == nil ||
			!strings.Contains(err.Error(), "expected a convolution over one frame, found shape [12 8 3 3 3]") {
			t.Errorf("%d blocks: a video's autoencoder: %v", blocks, err)
		}
	}
}

// named is a checkpoint of tensors of one element.
func named(names []string) *checkpoint.Checkpoint {
	ck := &checkpoint.Checkpoint{Dir: "a test", Tensors: map[string]checkpoint.Tensor{}}
	for _, name := range names {
		ck.Tensors[name] = checkpoint.Tensor{Name: name, Dtype: "F32", Shape: []int{1}, End: 4}
	}
	return ck
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
