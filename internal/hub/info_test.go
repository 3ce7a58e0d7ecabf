package hub

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/randtest"
)

const (
	aCommit = "0123456789abcdef0123456789abcdef01234567"
	aSHA256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func TestParseInfo(t *testing.T) {
	info, err := parseInfo([]byte(`{"id": "me/mine", "sha": "` + aCommit +
		`", "gated": "manual", "private": false, "cardData": {"license": "other", "license_name": "my-own"}, "siblings": [
		{"rfilename": "a/b.json", "size": 3, "blobId": "` + aCommit + `"},
		{"rfilename": "a/c.safetensors", "size": 134, "blobId": "` + aCommit + `", "lfs": {"sha256": "` + aSHA256 +
		`", "size": 5, "pointerSize": 134}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []File{{Path: "a/b.json", Size: 3, Hash: aCommit}, {Path: "a/c.safetensors", Size: 5, Hash: aSHA256, LFS: true}}
	if info.Commit != aCommit || !info.Gated || info.Licence != "my-own" || !slices.Equal(info.Files, want) {
		t.Errorf("parsed %+v", info)
	}
	for _, gated := range []string{"", `"gated": false,`, `"gated": null,`} {
		info, err := parseInfo([]byte(`{` + gated + `"cardData": {"license": ["mit", "x"]}, "sha": "` + aCommit + `"}`))
		if err != nil || info.Gated || info.Licence != "" || len(info.Files) > 0 {
			t.Errorf("%s: %+v, %v", gated, info, err)
		}
	}

	file := func(name, rest string) string {
		return fmt.Sprintf(`{"sha": %q, "siblings": [{"rfilename": %q, %s}]}`, aCommit, name, rest)
	}
	good := `"size": 1, "blobId": "` + aCommit + `"`
	for _, name := range []string{"x\u202e", "x\n", "\U0001f469\u200d\U0001f3a8.png", "a\u00a0b"} { // leave the others as they are
		info, err := parseInfo([]byte(file(name, good+`}, {"rfilename": "é +.json", `+good)))
		if err != nil || len(info.Files) != 1 || info.Files[0].Path != "é +.json" {
			t.Errorf("%q: %+v, %v", name, info, err)
		}
	}
	for text, want := range map[string]string{
		`<html>`:                  "not the expected JSON",
		`{}`:                      "expected 40 hexadecimal digits",
		`{"sha": "../../../x"}`:   "expected 40 hexadecimal digits",
		file("../x", good):        "unsafe name",
		file("/x", good):          "unsafe name",
		file("a/../../x", good):   "unsafe name",
		file(`a\..\x`, good):      "unsafe name",
		file("a//x", good):        "unsafe name",
		file("", good):            "unsafe name",
		file(".", good):           "unsafe name",
		file("x", `"size": 1`):    "without size or hash",
		file("x", `"blobId": ""`): "without size or hash",
		file("x", `"size": -1, "blobId": "`+aCommit+`"`):                                             "size of -1",
		file("x", `"size": 1, "blobId": "../x"`):                                                     "hash",
		file("x", `"size": 1, "blobId": "`+aSHA256+`"`):                                              "hash",
		file("x", `"size": 1, "lfs": {"sha256": "`+aCommit+`"}`):                                     "hash",
		file("x", good+`}, {"rfilename": "x", `+good):                                                "twice",
		file("x", good+`}, {"rfilename": "y", "size": 9223372036854775807, "blobId": "`+aCommit+`"`): "size of 9223372036854775807",
		file("x", `"size": 1e30, "blobId": "`+aCommit+`"`):                                           "not the expected JSON",
	} {
		if _, err := parseInfo([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, expected %q", text, err, want)
		}
	}
}

func FuzzInfo(f *testing.F) {
	f.Add([]byte(`{"sha": "`+aCommit+`", "gated": "auto", "cardData": {"license": "mit"}, "siblings": [{"rfilename": `+
		`"a/b", "size": 1, "blobId": "`+aCommit+`", "lfs": {"sha256": "`+aSHA256+`", "size": 2}}]}`),
		[]byte(`{"a": ["x", "y"], "_b": 1, "c": [null, null]}`))
	f.Add([]byte(`{"sha": "`+aCommit+`", "siblings": [{"rfilename": "t/model-00001-of-00002.fp16.safetensors", "size": 1, "blobId": "`+
		aCommit+`"}, {"rfilename": "t/config.json", "size": 1, "blobId": "`+aCommit+`"}]}`), []byte(`{"t": ["x", "y"]}`))
	f.Fuzz(func(t *testing.T, answer, index []byte) {
		info, err := parseInfo(answer)
		if err != nil {
			return
		}
		for _, index := range [][]byte{nil, index} {
			chosen, err := needed(info.Files, index)
			if err != nil {
				continue
			}
			seen := map[string]bool{}
			for _, f := range chosen {
				if !slices.Contains(info.Files, f) || seen[f.Path] {
					t.Errorf("chose %+v, of %+v", f, info.Files)
				}
				seen[f.Path] = true
				if !filepath.IsLocal(filepath.FromSlash(f.Path)) || !sha1Hex.MatchString(f.Hash) && !sha256Hex.MatchString(f.Hash) ||
					f.Size < 0 {
					t.Errorf("accepted %+v", f)
				}
			}
		}
	})
}

func TestNamed(t *testing.T) {
	var files []File
	for _, name := range strings.Fields("README.md LICENSE.md model_index.json a.safetensors adapter_config.json " +
		"loras/b.safetensors loras/c.safetensors loras/config.json loras/b.ckpt vae/config.json") {
		files = append(files, File{Path: name, Hash: aCommit})
	}
	for names, want := range map[string]string{
		"a.safetensors":                     "LICENSE.md README.md a.safetensors adapter_config.json",
		"loras/b.safetensors":               "LICENSE.md README.md loras/b.safetensors loras/config.json",
		"loras/c.safetensors a.safetensors": "LICENSE.md README.md a.safetensors adapter_config.json loras/c.safetensors loras/config.json",
		"vae/config.json":                   "LICENSE.md README.md vae/config.json",
		"b.safetensors": "!no file b.safetensors (the repository has a.safetensors, " +
			"loras/b.safetensors, loras/c.safetensors)",
		"a.safetensors loras": "!no file loras (",
		"loras/b.ckpt":        "!not supported: loras/b.ckpt is not a .safetensors file, and gomflux reads no other weights",
	} {
		chosen, err := named(files, strings.Fields(names))
		var got []string
		for _, f := range chosen {
			got = append(got, f.Path)
		}
		if text, wrong := strings.CutPrefix(want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q, error %v, expected %q", names, got, err, text)
			}
		} else if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: chose %q, %v, expected %q", names, got, err, want)
		}
	}
}

func TestNeeded(t *testing.T) {
	const index = `{"_class_name": "X", "transformer": ["d", "T"], "vae": ["d", "V"], "tokenizer": ["t", "Q"], ` +
		`"safety_checker": [null, null]}`
	tests := []struct {
		name, index string
		files       string // those that are not needed begin with -
		err         string
	}{
		{name: "a pipeline", index: index, files: `
			.-gitattributes README.md LICENSE.md NOTICE model_index.json -teaser.png -flux1-dev.safetensors
			-ae.safetensors -comfy/x.safetensors -config.json
			transformer/config.json transformer/diffusion_pytorch_model.safetensors.index.json
			transformer/diffusion_pytorch_model-00001-of-00002.safetensors transformer/diffusion_pytorch_model-00002-of-00002.safetensors
			-transformer/diffusion_pytorch_model.bin -transformer/README.md -transformer/sub/model.safetensors
			tokenizer/vocab.json tokenizer/merges.txt tokenizer/tokenizer.model tokenizer/chat_template.jinja
			vae/config.json vae/diffusion_pytorch_model.safetensors -vae/diffusion_flax_model.msgpack
			-safety_checker/config.json -safety_checker/model.safetensors`},
		{name: "a modular pipeline", files: `
			modular_model_index.json -ae.safetensors transformer/diffusion_pytorch_model.safetensors
			text_encoder/model.safetensors text_encoder/tokenizer.json -other/model.safetensors`, index: `{
			"transformer": ["d", "T", {"pretrained_model_name_or_path": "a/b", "subfolder": "transformer"}],
			"tokenizer": [null, null, {"pretrained_model_name_or_path": "a/b", "subfolder": "text_encoder"}],
			"vae": [null, null, {"pretrained_model_name_or_path": "c/d", "subfolder": "vae"}], "guider": [null, null]}`},
		{name: "variants beside", index: index, files: `
			model_index.json transformer/config.json transformer/diffusion_pytorch_model.safetensors
			-transformer/diffusion_pytorch_model.fp16.safetensors
			-transformer/diffusion_pytorch_model.non_ema.safetensors -transformer/diffusion_pytorch_model.safetensors.index.fp16.json
			-transformer/diffusion_pytorch_model-00001-of-00001.fp16.safetensors
			-transformer/diffusion_pytorch_model.fp16-00001-of-00001.safetensors`},
		{name: "a variant alone", index: index, files: `
			model_index.json transformer/diffusion_pytorch_model.safetensors.index.fp16.json
			transformer/diffusion_pytorch_model-00001-of-00002.fp16.safetensors
			transformer/diffusion_pytorch_model.fp16-00002-of-00002.safetensors`},
		{name: "several variants", index: index, files: `
			model_index.json -transformer/diffusion_pytorch_model.fp16.safetensors
			transformer/diffusion_pytorch_model.bf16.safetensors -transformer/diffusion_pytorch_model.a.safetensors`},
		{name: "shards and a single file", index: index, files: `
			model_index.json -transformer/model.safetensors transformer/model.safetensors.index.json
			transformer/model-00001-of-00001.safetensors`},
		{name: "names of its own", index: index, files: `model_index.json transformer/consolidated.safetensors`},
		{name: "a name of its own beside the library's", index: index,
			files: `model_index.json transformer/model.safetensors -transformer/consolidated.safetensors`},
		{name: "hidden", index: index, files: `model_index.json transformer/model.safetensors -transformer/._model.safetensors`},
		{name: "pickles only", index: index, files: `-model_index.json -transformer/config.json ` +
			`-transformer/diffusion_pytorch_model.bin -vae/model.safetensors`,
			err: "no .safetensors files in transformer, only diffusion_pytorch_model.bin"},
		{name: "nothing", index: index, files: `-model_index.json -other/x.safetensors`, err: "no .safetensors files"},
		{name: "no component", index: `{"_class_name": "X"}`, files: `-a.safetensors`, err: "no components"},
		{name: "a component elsewhere", index: `{"../x": ["a", "b"]}`, files: `-a.safetensors`, err: "is not a valid name of a component"},
		{name: "no JSON", index: `[]`, files: `-a.safetensors`, err: "model_index.json: "},
		{name: "no index", files: `README.md lora.safetensors -lora.png -lora.ckpt other.safetensors ` +
			`sub/model.safetensors -sub/model.fp16.safetensors config.json`},
		{name: "a LoRA of diffusers", files: `README.md LICENSE pytorch_lora_weights.safetensors -other.safetensors ` +
			`-sub/x.safetensors -optimizer.bin -tokenizer.json`},
		{name: "a LoRA of PEFT", files: `README.md adapter_model.safetensors adapter_config.json -other.safetensors ` +
			`-tokenizer.json -sub/adapter_config.json`},
		{name: "one file", files: `README.md anything.safetensors -anything.png`},
		{name: "several models", files: `-a.safetensors -b.safetensors -README.md`,
			err: "the repository has several models: choose one of a.safetensors, b.safetensors"},
		{name: "several in folders", files: `-split/a/1.safetensors -split/a/2.safetensors -split/b/3.safetensors`,
			err: "choose one of split/a/1.safetensors, split/a/2.safetensors, split/b/3.safetensors"},
		{name: "shards alone", files: `model-00001-of-00002.safetensors model-00002-of-00002.safetensors`},
		{name: "a folder that mflux saved", files: `
			README.md mflux_model.json transformer/0.safetensors transformer/1.safetensors transformer/model.safetensors.index.json
			text_encoder/0.safetensors text_encoder/model.safetensors.index.json vae/0.safetensors vae/model.safetensors.index.json
			tokenizer/tokenizer.json tokenizer/chat_template.jinja`},
	}
	random := randtest.New(t)
	for _, test := range tests {
		var files []File
		var want []string
		for _, name := range strings.Fields(test.files) {
			plain, not := strings.CutPrefix(name, "-")
			files = append(files, File{Path: plain, Hash: aCommit})
			if !not && !strings.HasPrefix(name, ".-") {
				want = append(want, name)
			}
		}
		random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		var index []byte
		if test.index != "" {
			index = []byte(test.index)
		}
		chosen, err := needed(files, index)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v, expected %q", test.name, err, test.err)
			}
			continue
		}
		var got []string
		for _, f := range chosen {
			got = append(got, f.Path)
		}
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v\nchose    %q\nexpected %q", test.name, err, got, want)
		}
	}
}

func TestCardLicence(t *testing.T) {
	for card, want := range map[string]string{
		"---\nlicense: apache-2.0\n---\n# X":                       "apache-2.0",
		"---\r\ntags:\r\n- a\r\nlicense: \"mit\" # yes\r\n---\r\n": "mit",
		"---\nlicense: other\nlicense_name: my-own\n---\n":         "my-own",
		"---\nlicense: other\n---\n":                               "other",
		"license: mit\n":                                           "",
		"---\nlicense: mit\n":                                      "",
		"---\ntitle: x\n---\nlicense: mit\n":                       "",
		"":                                                         "",
	} {
		if got := CardLicence([]byte(card)); got != want {
			t.Errorf("%q: %q, expected %q", card, got, want)
		}
	}
}

func FuzzCardLicence(f *testing.F) {
	f.Add([]byte("---\nlicense: mit\n---\n"))
	f.Fuzz(func(t *testing.T, card []byte) {
		if strings.Contains(CardLicence(card), "\n") {
			t.Error("a licence of several lines")
		}
	})
}

// TestSpans compares spans with a slice that has one bool per byte.
func TestSpans(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		const size = 40
		var s spans
		var table [size]bool
		for range random.IntN(12) {
			begin := random.Int64N(size)
			end := begin + random.Int64N(size-begin+1)
			s.add(begin, end)
			for i := begin; i < end; i++ {
				table[i] = true
			}
			checkSpans(t, s, table[:])
		}
		again, err := parseRecord(s.marshal(size), size)
		if err != nil || !slices.Equal(again, s) {
			t.Fatalf("%v comes back as %v, %v", s, again, err)
		}
	}
}

func checkSpans(t *testing.T, s spans, table []bool) {
	t.Helper()
	n := int64(0)
	for _, there := range table {
		if there {
			n++
		}
	}
	if s.bytes() != n {
		t.Fatalf("%v has %d bytes, expected %d", s, s.bytes(), n)
	}
	got := make([]bool, len(table))
	last := int64(-1)
	for _, x := range s {
		if x.begin <= last {
			t.Fatalf("%v: touch", s)
		}
		last = x.end
		for i := x.begin; i < x.end; i++ {
			got[i] = true
		}
	}
	if !slices.Equal(got, table) {
		t.Fatalf("%v is %v, expected %v", s, got, table)
	}
	for _, x := range s.missing(int64(len(table)), 7) {
		if x.end-x.begin > 7 || x.end <= x.begin {
			t.Fatalf("missing %v", x)
		}
		for i := x.begin; i < x.end; i++ {
			if got[i] {
				t.Fatalf("%v: %d is missing twice, or there", s, i)
			}
			got[i] = true
		}
	}
	if slices.Contains(got, false) {
		t.Fatalf("%v: not all that is missing is told", s)
	}
}

func TestParseRecord(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"size": 10, "done": []}`:                true,
		`{"size": 10}`:                            true,
		`{"size": 10, "done": [[0, 10]]}`:         true,
		`{"size": 10, "done": [[0, 3], [4, 10]]}`: true,
		`{"size": 10, "done": [[0, 3], [3, 10]]}`: false,
		`{"size": 10, "done": [[4, 10], [0, 3]]}`: false,
		`{"size": 10, "done": [[0, 11]]}`:         false,
		`{"size": 10, "done": [[-1, 1]]}`:         false,
		`{"size": 10, "done": [[3, 3]]}`:          false,
		`{"size": 9, "done": []}`:                 false,
		`{"size": 10, "done": [[0, 3`:             false,
		``:                                        false,
	} {
		if s, err := parseRecord([]byte(text), 10); (err == nil) != ok {
			t.Errorf("%s: %v, %v", text, s, err)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"size": 10, "done": [[0, 3], [4, 10]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseRecord(data, 10)
		if err != nil {
			return
		}
		if n := s.bytes(); n < 0 || n > 10 || s.missing(10, 3).bytes() != 10-n {
			t.Errorf("%s: %v", data, s)
		}
		if !json.Valid(s.marshal(10)) {
			t.Error("not JSON")
		}
	})
}

func TestContentRange(t *testing.T) {
	for header, want := range map[string][3]int64{
		"bytes 0-0/1":     {0, 1, 1},
		"bytes 5-9/10":    {5, 10, 10},
		"bytes 5-9/*":     {5, 10, -1},
		"":                {},
		"bytes 5-9":       {},
		"bytes */10":      {},
		"bytes 9-5/10":    {},
		"bytes 5-10/10":   {},
		"bytes -5-9/10":   {},
		"bits 5-9/10":     {},
		"bytes 5-9/10, x": {},
		"bytes 0-9999999999999999999/99999999999999999999": {},
	} {
		begin, end, size, err := parseContentRange(header)
		if (err == nil) != (want[1] > 0) || err == nil && want != [3]int64{begin, end, size} {
			t.Errorf("%q: %d, %d, %d, %v", header, begin, end, size, err)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 5-9/10")
	f.Fuzz(func(t *testing.T, header string) {
		begin, end, size, err := parseContentRange(header)
		if err == nil && (begin < 0 || end <= begin || size >= 0 && end > size) {
			t.Errorf("%q: %d, %d, %d", header, begin, end, size)
		}
	})
}

func TestIsRevision(t *testing.T) {
	for name, want := range map[string]bool{
		"main": true, "v1.0": true, "refs/pr/1": true, aCommit: true, "_x": true, "a+b": true,
		"": false, ".": false, "..": false, "../x": false, "a/../b": false, "/a": false, "a/": false, "a//b": false,
		"-x": false, ".hidden": false, "a b": false, "a\n": false, `a\b`: false, "x.tmp": false,
	} {
		if IsRevision(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
