package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestOpenCheckpointRealShards(t *testing.T) {
	for source, fsys := range sources(t) {
		t.Run(source, func(t *testing.T) {
			c, err := OpenCheckpoint(fsys, "sharded")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if len(c.Files) != 3 {
				t.Errorf("%d files, want 3", len(c.Files))
			}
			for i := range 5 {
				name := fmt.Sprintf("layers.%d.weight", i)
				tensor := c.Tensors[name]
				shard := fmt.Sprintf("diffusion_pytorch_model-%05d-of-00003.safetensors", i/2+1)
				if tensor.Dtype != "F32" || fmt.Sprint(tensor.Shape) != "[4 8]" || filepath.Base(tensor.File) != shard {
					t.Errorf("%s: %+v, want F32 [4 8] in %s", name, tensor, shard)
				}
			}
			if len(c.Tensors) != 5 {
				t.Errorf("%d tensors, want 5", len(c.Tensors))
			}
		})
	}
}

// The folders of the Hugging Face cache hold links to files of other names.
func TestOpenCheckpointLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "blobs/0a1b", blob(`{`+u8("a", 0, 1)+`}`, 1))
	write(t, dir, "blobs/2c3d", blob(`{`+u8("b", 0, 1)+`}`, 1))
	write(t, dir, "blobs/4e5f", []byte(`{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`))
	snapshot := filepath.Join(dir, "snapshots/main/text_encoder")
	link(t, "../../../blobs/0a1b", filepath.Join(snapshot, "model-00001-of-00002.safetensors"))
	link(t, "../../../blobs/2c3d", filepath.Join(snapshot, "model-00002-of-00002.safetensors"))
	link(t, "../../../blobs/4e5f", filepath.Join(snapshot, "model.safetensors.index.json"))
	link(t, "snapshots/main", filepath.Join(dir, "latest"))
	folder, err := OpenFolder(filepath.Join(dir, "latest"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := OpenCheckpoint(folder, "text_encoder")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := fmt.Sprint(slices.Sorted(maps.Keys(c.Tensors))); got != "[a b]" {
		t.Errorf("tensors %s", got)
	}
}

func TestChoose(t *testing.T) {
	const (
		model, diff           = "model.safetensors", "diffusion_pytorch_model.safetensors"
		modelIndex, diffIndex = model + ".index.json", diff + ".index.json"
	)
	for _, test := range []struct {
		names     string
		want, err string
	}{
		{names: "config.json " + model, want: model},
		{names: "config.json " + diff, want: diff},
		{names: modelIndex + " model-00001-of-00001.safetensors", want: modelIndex},
		{names: diffIndex + " diffusion_pytorch_model-00001-of-00002.safetensors", want: diffIndex},
		{names: diffIndex + " " + diff, want: diffIndex},
		// variants
		{names: model + " model.fp16.safetensors", want: model},
		{names: diff + " diffusion_pytorch_model.fp16.safetensors diffusion_pytorch_model.bin", want: diff},
		{names: modelIndex + " model.safetensors.index.fp16.json", want: modelIndex},
		{names: model + " model.safetensors.index.fp16.json model.fp16-00001-of-00002.safetensors", want: model},
		{names: "model.fp16.safetensors", want: "model.fp16.safetensors"},
		{names: "model.safetensors.index.fp16.json model.fp16-00001-of-00002.safetensors", want: "model.safetensors.index.fp16.json"},
		{names: "diffusion_pytorch_model.fp16.safetensors.index.json", want: "diffusion_pytorch_model.fp16.safetensors.index.json"},
		{names: "model.fp16.safetensors model.bf16.safetensors",
			err: "expected one checkpoint, found model.fp16.safetensors, model.bf16.safetensors"},
		{names: "model.fp16.safetensors model.safetensors.index.bf16.json", err: "expected one"},
		{names: model + " " + diff, err: "expected one checkpoint, found " + diff + ", " + model},
		{names: model + " " + diffIndex, err: "expected one"},
		// other names
		{names: "flux.safetensors README.md", want: "flux.safetensors"},
		{names: "flux.safetensors.index.json flux-part1.safetensors flux-part2.safetensors", want: "flux.safetensors.index.json"},
		{names: "a.safetensors b.safetensors", err: "expected one checkpoint, found a.safetensors, b.safetensors"},
		{names: "a.safetensors.index.json b.safetensors.index.json", err: "expected one"},
		{names: "._model.safetensors model.safetensors", want: model},
		{names: "._flux.safetensors flux.safetensors", want: "flux.safetensors"},
		// nothing to read
		{names: "", err: "the folder is empty"},
		{names: "config.json model.safetensors.index",
			err: "expected diffusion_pytorch_model.safetensors or model.safetensors), only config.json, model.safetensors.index"},
		{names: "model-00001-of-00002.safetensors model-00002-of-00002.safetensors", err: "shards but not their index"},
		{names: "config.json pytorch_model.bin",
			err: "only pytorch_model.bin: a pickle file, which can run arbitrary code (use a safetensors file"},
		{names: "model.PT", err: "save_pretrained(folder, safe_serialization=True)"},
		{names: "model.ckpt", err: "pickle"},
		{names: "z-image-Q4_K.gguf", err: "GGUF"},
	} {
		got, err := choose(strings.Fields(test.names))
		if test.err != "" {
			wantError(t, err, test.err)
		} else if err != nil || got != test.want {
			t.Errorf("%s: chose %q, error %v, want %q", test.names, got, err, test.want)
		}
	}
}

func index(weightMap string) []byte {
	return []byte(`{"metadata":{"total_size":1},"weight_map":` + weightMap + `}`)
}

// many maps n tensors to the first shard.
func many(n int) string {
	m := make(map[string]string)
	for i := range n {
		m[fmt.Sprint("layers.", i)] = "1.safetensors"
	}
	m["same"] = "2.safetensors"
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestOpenCheckpointIndex(t *testing.T) {
	one := blob(`{`+u8("a", 0, 1)+`,`+u8("b", 1, 2)+`}`, 2)
	two := blob(`{`+u8("c", 0, 1)+`}`, 1)
	const good = `{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}`
	for _, test := range []struct {
		name  string
		index []byte
		err   []string // none: accepted
	}{
		{"good", index(good), nil},
		{"only a map", []byte(`{"weight_map":` + good + `}`), nil},
		{"total_size is not trusted", []byte(`{"weight_map":` + good + `,"metadata":{"total_size":-1e300}}`), nil},
		{"unknown keys", []byte(`{"x":[{"y":null}],"weight_map":` + good + `}`), nil},

		{"empty", nil, []string{"line 1: unexpected end of JSON input"}},
		{"null", []byte(`null`), []string{"expected an object, found null"}},
		{"array", []byte(`[]`), []string{"expected an object, found an array"}},
		{"no map", []byte(`{"metadata":{}}`), []string{"weight_map is missing or empty"}},
		{"empty map", index(`{}`), []string{"weight_map is missing or empty"}},
		{"map is null", index(`null`), []string{"expected an object, found null"}},
		{"map is an array", index(`["a"]`), []string{"expected an object, found an array"}},
		{"map twice", []byte(`{"weight_map":` + good + ",\n" + `"weight_map":` + good + `}`),
			[]string{`line 2: duplicate key "weight_map"`}},
		{"metadata twice", []byte(`{"metadata":{},"metadata":{}}`), []string{`duplicate key "metadata"`}},
		{"tensor twice", index("{\"a\":\"1.safetensors\",\n\"a\":\"1.safetensors\"}"), []string{`line 2: duplicate key "a"`}},
		{"shard is a number", index(`{"a":1}`), []string{"expected a string, found a number"}},
		{"text after", append(index(good), "x"...), []string{"invalid character 'x' after top-level value"}},
		{"deep", []byte(`{"metadata":` + strings.Repeat("[", 100_000)), []string{"exceeded max depth"}},
		{"not UTF-8", []byte("{\"a\":\"\xff\"}"), []string{"not UTF-8"}},

		{"parent folder", index(`{"a":"../1.safetensors"}`), []string{`tensor "a": shard name "../1.safetensors": must be the name`}},
		{"absolute", index(`{"a":"/etc/1.safetensors"}`), []string{`"/etc/1.safetensors": must be the name`}},
		{"folder", index(`{"a":"sub/1.safetensors"}`), []string{"must be the name of a .safetensors file in the same folder"}},
		{"backslash", index(`{"a":"..\\1.safetensors"}`), []string{"must be the name of a .safetensors file in the same folder"}},
		{"NUL", index(`{"a":"1.bin\u0000.safetensors"}`), []string{"must be the name of a .safetensors file in the same folder"}},
		{"dots", index(`{"a":".."}`), []string{"must be the name of a .safetensors file in the same folder"}},
		{"no name", index(`{"a":""}`), []string{"must be the name of a .safetensors file in the same folder"}},
		{"only a suffix", index(`{"a":".safetensors"}`), []string{"must be the name of a .safetensors file in the same folder"}},
		{"pickle", index(`{"a":"1.bin"}`), []string{"must be the name of a .safetensors file in the same folder"}},

		{"missing shards", index(`{"a":"1.safetensors","b":"8.safetensors","c":"9.safetensors"}`),
			[]string{"2 of 3 shards are missing", "8.safetensors, 9.safetensors"}},
		{"tensor missing in its shard", index(`{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors","d":"2.safetensors"}`),
			[]string{`the index does not match the shards: "d" is not in 2.safetensors`}},
		{"tensor not in the map", index(`{"a":"1.safetensors","c":"2.safetensors"}`),
			[]string{`"b" is in 1.safetensors but not in the index`}},
		{"tensor in another shard", index(`{"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"}`),
			[]string{`"b" is in 1.safetensors, the index has 2.safetensors`}},
		{"tensor in two shards", index(`{"a":"1.safetensors","b":"1.safetensors","c":"same.safetensors","d":"2.safetensors"}`),
			[]string{`tensor "c" is in two shards: `, "2.safetensors and ", "same.safetensors"}},
		{"many tensors missing", index(many(50)), []string{`"a" is in 1.safetensors but not in the index`,
			`"layers.1" is not in 1.safetensors`, " and 44 more"}},
		{"damaged shard", index(`{"a":"1.safetensors","b":"1.safetensors","c":"damaged.safetensors"}`),
			[]string{"damaged.safetensors: ", `tensor "c": ends at byte 9`}},
		{"shard is a folder", index(`{"a":"1.safetensors","b":"1.safetensors","c":"folder.safetensors"}`),
			[]string{"folder.safetensors: expected a file, found a folder"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "m/1.safetensors", one)
			write(t, dir, "m/2.safetensors", two)
			write(t, dir, "m/same.safetensors", two)
			write(t, dir, "m/damaged.safetensors", blob(`{`+u8("c", 0, 9)+`}`, 8))
			write(t, dir, "m/folder.safetensors/x", nil)
			write(t, dir, "m/model.safetensors.index.json", test.index)
			folder, err := OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			c, err := OpenCheckpoint(folder, "m")
			if test.err != nil {
				wantError(t, err, append(test.err, filepath.Join(dir, "m"))...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := fmt.Sprint(slices.Sorted(maps.Keys(c.Tensors))); got != "[a b c]" || c.Dir != filepath.Join(dir, "m") {
				t.Errorf("tensors %s in %s", got, c.Dir)
			}
		})
	}
}

func TestOpenCheckpointErrors(t *testing.T) {
	good := &fstest.MapFile{Data: blob(`{}`, 0)}
	for _, test := range []struct {
		files fstest.MapFS
		want  []string
	}{
		{fstest.MapFS{"m/pytorch_model.bin": good}, []string{"model folder built-in/m: ", "pytorch_model.bin"}},
		{fstest.MapFS{"m/model.safetensors/x": good}, []string{"built-in/m/model.safetensors: expected a file, found a folder"}},
		{fstest.MapFS{"m": good}, []string{"model folder built-in/m: "}},
		{fstest.MapFS{}, []string{"model folder built-in/m: file does not exist"}},
	} {
		_, err := OpenCheckpoint(Folder{test.files, "built-in"}, "m")
		wantError(t, err, test.want...)
	}
}

func FuzzIndex(f *testing.F) {
	for _, weightMap := range []string{
		`{}`, `null`, `{"a":"1.safetensors","b":"2.safetensors"}`, `{"a":"1.safetensors","a":"2.safetensors"}`,
		`{"a":"../1.safetensors"}`, `{"a":"/1.safetensors"}`, `{"a":"\u002e./1.safetensors"}`, `{"a":"1.bin"}`, `{"a":1}`,
	} {
		f.Add(index(weightMap))
	}
	f.Add([]byte(`{"weight_map":{"a":"1.safetensors"},"weight_map":{"a":"2.safetensors"}}`))
	f.Add([]byte("{\"weight_map\" : {\"\\ud83d\\ude00\":\"é.safetensors\"}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseIndex(data)
		if err != nil {
			return
		}
		var want map[string]string
		var all map[string]json.RawMessage
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		if err := json.Unmarshal(all["weight_map"], &want); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want) {
			t.Errorf("read %v, encoding/json %v", got, want)
		}
		for tensor, shard := range got {
			if filepath.Base(shard) != shard || !filepath.IsLocal(shard) || filepath.Ext(shard) != ".safetensors" {
				t.Errorf("tensor %q: shard %q leaves the folder", tensor, shard)
			}
		}
	})
}
