package tokenizer_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// tokenizerFiles reads a folder of the goldens.
func tokenizerFiles(t testing.TB, folder string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	dir := os.DirFS(path.Join(tokenizerGoldens, folder))
	names, err := fs.Glob(dir, "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := fs.ReadFile(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		files["tok/"+name] = &fstest.MapFile{Data: data}
	}
	return files
}

// edit changes a JSON file of a tokenizer by its top-level keys; a nil value
// removes one.
func edit(t *testing.T, files fstest.MapFS, name string, changes map[string]any) {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(files["tok/"+name].Data, &all); err != nil {
		t.Fatal(err)
	}
	for key, value := range changes {
		if all[key] = value; value == nil {
			delete(all, key)
		}
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	files["tok/"+name] = &fstest.MapFile{Data: data}
}

// TestTokenizerFilesRefused: each fault is one line that names the file.
func TestTokenizerFilesRefused(t *testing.T) {
	const config, whole, vocab, merges, tekken = "tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt", "tekken.json"
	var mistral struct{ Config struct{ Pattern string } }
	readTokenizerGolden(t, "tekken-3/tekken.json", &mistral)
	mistralSplit := mistral.Config.Pattern
	object := func(s string) map[string]any {
		var v map[string]any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	charsmap := func(units []uint32, replacements string) map[string]any {
		data := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
		for _, u := range units {
			data = binary.LittleEndian.AppendUint32(data, u)
		}
		text := base64.StdEncoding.EncodeToString(append(data, replacements...))
		return map[string]any{"normalizer": map[string]any{"type": "Precompiled", "precompiled_charsmap": text}}
	}
	leaf := make([]uint32, 512)
	leaf[0], leaf[256] = 1<<10|1<<8|1<<9, 1<<31|9

	for _, c := range []struct {
		name, folder string
		file         string         // that is changed,
		changes      map[string]any // by key,
		text         string         // or as a whole; "-" removes it
		in, says     string
	}{
		{"no vocabulary", "clip-vocab", vocab, nil, "-", "tok", "neither tokenizer.json nor vocab.json"},
		{"no merges", "clip-vocab", merges, nil, "-", merges, "not exist"},
		{"no class", "qwen2-vocab", config, map[string]any{"tokenizer_class": nil}, "", config, "tokenizer_class is missing"},
		{"no config", "qwen2-vocab", config, nil, "-", config, "tokenizer_class is missing"},
		{"broken tekken.json", "tekken-3", tekken, nil, "[", tekken, "unexpected end"},
		{"another pattern", "tekken-3", tekken, map[string]any{"config": object(`{"pattern":"\\w+"}`)}, "", tekken,
			`pattern "\\w+" is not supported`},
		{"no sizes", "tekken-3", tekken, map[string]any{"config": map[string]any{"pattern": mistralSplit}}, "", tekken,
			"expected 256 to 359 tokens"},
		{"too few tokens", "tekken-3", tekken, map[string]any{"vocab": []any{}}, "", tekken, "expected 256 to 0 tokens"},
		{"no bytes", "tekken-3", tekken, map[string]any{"vocab": make([]struct{}, 400)}, "", tekken, `token 0 is ""`},
		{"a special token twice", "tekken-13", tekken, map[string]any{"special_tokens": []any{object(`{"rank":1,"token_str":"<a>"}`),
			object(`{"rank":1,"token_str":"<b>"}`)}}, "", tekken, `"<b>" has rank 1`},
		{"a short special token", "tekken-13", tekken, map[string]any{"special_tokens": []any{object(`{"rank":1,"token_str":"x"}`)}}, "",
			tekken, `"x" is a token already`},
		{"a special token that is a word", "tekken-13", tekken, map[string]any{"special_tokens": []any{
			object(`{"rank":1,"token_str":"Ġviolin"}`)}}, "", tekken, `"Ġviolin" is a token already`},
		{"another class", "qwen2-vocab", config, map[string]any{"tokenizer_class": "GPT2TokenizerFast"}, "", config,
			`"GPT2TokenizerFast" is not supported, expected one of CLIPTokenizer,`},
		{"T5 of vocab.json", "qwen2-vocab", config, map[string]any{"tokenizer_class": "T5Tokenizer"}, "", config, "no vocab.json"},
		{"T5 of BPE", "qwen2-5", config, map[string]any{"tokenizer_class": "T5Tokenizer"}, "", whole,
			"model type BPE: expected Unigram for T5Tokenizer"},
		{"CLIP of Unigram", "t5-5", config, map[string]any{"tokenizer_class": "CLIPTokenizer"}, "", whole, "model type Unigram"},
		{"CLIP of Qwen's", "qwen2-5", config, map[string]any{"tokenizer_class": "CLIPTokenizer"}, "", whole, "end_of_word_suffix"},
		{"broken config", "clip-vocab", config, nil, "{", config, "line 1"},
		{"config of another type", "clip-vocab", config, map[string]any{"model_max_length": "77"}, "", config, "model_max_length"},
		{"split_special_tokens", "clip-vocab", config, map[string]any{"split_special_tokens": true}, "", config, "split_special_tokens"},
		{"add_prefix_space", "qwen2-vocab", config, map[string]any{"add_prefix_space": true}, "", config, "add_prefix_space"},
		{"many extra_ids", "t5-5", config, map[string]any{"extra_ids": 1e7}, "", config, "extra_ids"},
		{"a key that is no id", "clip-vocab", config, map[string]any{"added_tokens_decoder": object(`{"x":{"content":"y"}}`)}, "",
			config, `"x" is not an id`},
		{"another id", "clip-vocab", config, map[string]any{"added_tokens_decoder": object(`{"7":{"content":"<|endoftext|>"}}`)}, "",
			config, `"<|endoftext|>": expected id 613, found 7`},
		{"a gap of ids", "clip-vocab", config, map[string]any{"added_tokens_decoder": object(`{"700":{"content":"<new>"}}`)}, "",
			config, `"<new>": expected id 614, found 700`},
		{"a token of its own name", "clip-vocab", config, map[string]any{"image_token": "<image>"}, "", config, `image_token "<image>"`},
		{"tokens of another type", "clip-vocab", config, map[string]any{"extra_special_tokens": 1}, "", config, "extra_special_tokens"},
		{"unknown token", "clip-vocab", config, map[string]any{"unk_token": "<unk>"}, "", vocab, `unknown token "<unk>"`},
		{"broken vocabulary", "clip-vocab", vocab, nil, `{"a":`, vocab, "unexpected end"},
		{"vocabulary not UTF-8", "clip-vocab", vocab, nil, "{\"\xff\":1}", vocab, "not UTF-8"},
		{"negative id", "clip-vocab", vocab, nil, `{"a":-1}`, vocab, "-1"},
		{"large id", "clip-vocab", vocab, nil, `{"a":4294967295}`, vocab, "id 4294967295"},
		{"no comma", "clip-vocab", vocab, nil, `{"a":0 "b":1}`, vocab, `expected a comma or }, found "b"`},
		{"comma at the end", "clip-vocab", vocab, nil, `{"a":0,}`, vocab, `expected a token and its id, found "}"`},
		{"two commas", "clip-vocab", vocab, nil, `{"a":0,,"b":1}`, vocab, `expected a token and its id, found ","`},
		{"a name as id", "clip-vocab", vocab, nil, `{"a":"0":,"b":1}`, vocab, `an integer of 32 bits, found "0"`},
		{"no comma in tokenizer.json", "clip-5", whole, nil, `{"model":{"type":"BPE","vocab":{"a":0 "b":1},"merges":[]}}`, whole,
			`vocab: expected a comma or }, found "b"`},
		{"no comma between merges", "clip-5", whole, nil, `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a" "a b"]}}`, whole,
			`merges: expected a comma or ], found "a b"`},
		{"no comma between pairs", "clip-5", whole, nil, `{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a"]["a","b"]]}}`, whole,
			`merges: expected a comma or ], found "["`},
		{"no comma in a pair", "clip-5", whole, nil, `{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a" "a"]]}}`, whole,
			"merges: merge 1: expected two tokens"},
		{"no comma between pieces", "t5-5", whole, nil, `{"model":{"type":"Unigram","vocab":[["a",0]["b",0]]}}`, whole,
			`vocab: expected a comma or ], found "["`},
		{"no comma in a piece", "t5-5", whole, nil, `{"model":{"type":"Unigram","vocab":[["a" 0]]}}`, whole,
			"vocab: expected a piece and its score"},
		{"a score that is not JSON", "t5-5", whole, nil, `{"model":{"type":"Unigram","vocab":[["a",inf]]}}`, whole,
			"vocab: expected a piece and its score"},
		{"empty vocabulary", "qwen2-vocab", vocab, nil, `{}`, vocab, "is empty"},
		{"a word as merge", "clip-vocab", merges, nil, "#version: 0.2\na b\nabc\n", merges, `line 3: expected two tokens`},
		{"three tokens", "clip-vocab", merges, nil, "a b c", merges, `line 1: expected two tokens`},
		{"merge of unknown tokens", "clip-vocab", merges, nil, "a b\nz q", merges, `merge 2 ("z", "q"): the vocabulary does not have "zq"`},
		{"merges not UTF-8", "clip-vocab", merges, nil, "a \xff", merges, "not UTF-8"},
		{"broken special tokens", "clip-vocab", "special_tokens_map.json", nil, "[", "special_tokens_map.json", "line 1"},
		{"special token of another type", "clip-vocab", "special_tokens_map.json", nil, `{"pad_token":{"content":3}}`,
			"special_tokens_map.json", "pad_token"},
		{"broken added tokens", "qwen2-vocab", "added_tokens.json", nil, `{"a":"b"}`, "added_tokens.json", "expected uint32"},
		{"twins", "qwen2-vocab", "added_tokens.json", nil, `{"a":3,"b":3}`, "added_tokens.json", `"a" and "b" have id 3`},
		{"broken tokenizer.json", "clip-5", whole, nil, `{"model":`, whole, "unexpected end"},
		{"tokenizer.json not UTF-8", "clip-5", whole, nil, "\"\xff\"", whole, "not UTF-8"},
		{"WordPiece", "clip-5", whole, map[string]any{"model": object(`{"type":"WordPiece","vocab":{"a":0}}`)}, "", whole,
			`model type "WordPiece"`},
		{"merges of three", "clip-5", whole, map[string]any{"model": object(`{"type":"BPE","vocab":{"a":0},"merges":[["a","a","a"]]}`)},
			"", whole, "merge 1: expected two tokens"},
		{"strings of three", "clip-5", whole, map[string]any{"model": object(`{"type":"BPE","vocab":{"a":0},"merges":["a a a"]}`)}, "",
			whole, "merge 1: expected two tokens"},
		{"merges of another type", "clip-5", whole, map[string]any{"model": object(`{"type":"BPE","vocab":{"a":0},"merges":7}`)}, "",
			whole, "merges:"},
		{"pieces of another type", "t5-5", whole, map[string]any{"model": object(`{"type":"Unigram","unk_id":2,"vocab":["a","b","c"]}`)},
			"", whole, "vocab:"},
		{"pieces without scores", "t5-5", whole,
			map[string]any{"model": object(`{"type":"Unigram","unk_id":2,"vocab":[["a"],["b"],["c"]]}`)}, "", whole,
			"expected a piece and its score"},
		{"few pieces", "t5-5", whole, map[string]any{"model": object(`{"type":"Unigram","unk_id":2,"vocab":[["a",0]]}`)}, "", whole,
			"1 pieces"},
		{"an empty piece", "t5-5", whole,
			map[string]any{"model": object(`{"type":"Unigram","unk_id":2,"vocab":[["a",0],["",0],["c",0]]}`)}, "", whole,
			"piece 1 is empty"},
		{"another unk_id", "t5-5", whole, map[string]any{"model": object(`{"type":"Unigram","unk_id":0,"vocab":[["a",0]]}`)}, "", whole,
			"unk_id"},
		{"charsmap not base64", "t5-5", whole, map[string]any{"normalizer": object(`{"precompiled_charsmap":"*"}`)}, "", whole,
			"precompiled_charsmap: illegal base64"},
		{"short charsmap", "t5-5", whole, map[string]any{"normalizer": object(`{"precompiled_charsmap":"AAA="}`)}, "", whole,
			"precompiled_charsmap: cut off"},
		{"charsmap without a trie", "t5-5", whole, charsmap(nil, "a"), "", whole, "trie has 0 bytes"},
		{"charsmap of a long trie", "t5-5", whole, map[string]any{"normalizer": object(`{"precompiled_charsmap":"CAAAAAAAAAA="}`)}, "",
			whole, "trie has 8 bytes"},
		{"charsmap that leads out", "t5-5", whole, charsmap(make([]uint32, 255), ""), "", whole, "unit 0 leads out"},
		{"charsmap without the replacement", "t5-5", whole, charsmap(leaf, "a"), "", whole, "unit 0 leads to no replacement, 9"},
		{"charsmap not UTF-8", "t5-5", whole, charsmap(make([]uint32, 256), "\xff"), "", whole, "not UTF-8"},
		{"unknown processor", "qwen2-5", whole, map[string]any{"post_processor": object(`{"type":"BertProcessing"}`)}, "", whole,
			`post_processor: type "BertProcessing"`},
		{"template without the text", "qwen2-5", whole,
			map[string]any{"post_processor": object(`{"type":"TemplateProcessing","single":[]}`)}, "", whole, "exactly once"},
		{"template without ids", "qwen2-5", whole,
			map[string]any{"post_processor": object(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]}`)}, "", whole,
			`"x" has no ids`},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := tokenizerFiles(t, c.folder)
			if err := tokenizer.Check(files, "tok"); err != nil { // which is remembered, until a file changes
				t.Fatal(err)
			}
			switch {
			case c.changes != nil:
				edit(t, files, c.file, c.changes)
			case c.text == "-":
				delete(files, "tok/"+c.file)
			default:
				files["tok/"+c.file] = &fstest.MapFile{Data: []byte(c.text)}
			}
			if c.in == "special_tokens_map.json" || c.in == "added_tokens.json" {
				edit(t, files, config, map[string]any{"added_tokens_decoder": nil})
			}
			checked := tokenizer.Check(files, "tok")
			tok, err := tokenizer.Load(files, "tok")
			if err == nil {
				tok.Close()
				t.Fatal("no error")
			}
			if checked == nil || checked.Error() != err.Error() {
				t.Errorf("Check: %v, and Load: %v", checked, err)
			}
			in := "tok/" + c.in
			if c.in == "tok" {
				in = c.in
			}
			if text := err.Error(); !strings.HasPrefix(text, in+": ") || !strings.Contains(text, c.says) || strings.Contains(text, "\n") {
				t.Errorf("error %q, expected %s: ... %s", text, in, c.says)
			}
		})
	}
}

// TestCheckLink: a link to no file is not the same as no file.
func TestCheckLink(t *testing.T) {
	dir := t.TempDir()
	err := os.CopyFS(dir, os.DirFS(path.Join(tokenizerGoldens, "qwen2-5")))
	if config := filepath.Join(dir, "tokenizer_config.json"); err == nil {
		if err = os.Remove(config); err == nil {
			err = tokenizer.Check(os.DirFS(dir), ".")
		}
		if err == nil {
			err = os.Symlink("gone", config)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := tokenizer.Check(os.DirFS(dir), "."); err == nil {
		t.Error("no error")
	}
}

// TestTokenizerVariants holds ids against those of transformers where the files
// say more or less than they do in the other goldens.
func TestTokenizerVariants(t *testing.T) {
	needTokenizer(t)
	var texts []string
	readTokenizerGolden(t, "texts.json", &texts)
	var variants []struct {
		Folder  string
		Changes map[string]map[string]any
		Size    int
		Long    struct {
			Tokens int
			SHA256 string
		}
	}
	readTokenizerGolden(t, "variants.json", &variants)
	for i, v := range variants {
		files := tokenizerFiles(t, v.Folder)
		for name, changes := range v.Changes {
			if len(changes) == 0 {
				delete(files, "tok/"+name)
				continue
			}
			edit(t, files, name, changes)
		}
		tok, err := tokenizer.Load(files, "tok")
		if err != nil {
			t.Errorf("variant %d: %v", i, err)
			continue
		}
		defer tok.Close()
		ids, err := tok.EncodeSpecial(longText(texts))
		if err != nil || tok.VocabSize() != v.Size || len(ids) != v.Long.Tokens || hashIDs(ids) != v.Long.SHA256 {
			t.Errorf("variant %d of %s, %v: %d other tokens of %d, %v, expected %d of %d", i, v.Folder, v.Changes, len(ids),
				tok.VocabSize(), err, v.Long.Tokens, v.Size)
		}
	}
}

func TestTokenizerOfSentencePieceAlone(t *testing.T) {
	files := fstest.MapFS{"tok/spiece.model": {}}
	if _, err := tokenizer.Load(files, "tok"); err == nil || !strings.Contains(err.Error(),
		"tok/spiece.model: ") || !strings.Contains(err.Error(), "save_pretrained") {
		t.Errorf("error %v", err)
	}
}

// TestTokenizerUnfinished: a link to a file that is not there is not the same as
// no file.
func TestTokenizerUnfinished(t *testing.T) {
	for _, name := range []string{"tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "vocab.json"} {
		dir := t.TempDir()
		for file, f := range tokenizerFiles(t, "clip-vocab") {
			if err := os.WriteFile(filepath.Join(dir, path.Base(file)), f.Data, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if name == "special_tokens_map.json" {
			if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"tokenizer_class":"CLIPTokenizer"}`),
				0o666); err != nil {
				t.Fatal(err)
			}
		}
		os.Remove(filepath.Join(dir, name))
		if err := os.Symlink("blob", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := tokenizer.Load(os.DirFS(dir), "."); err == nil || !strings.HasPrefix(err.Error(), name+": is a link to blob") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestTokenizerClassUnnamed: what splits text, or the vocabulary, tells the
// class where no file names it.
func TestTokenizerClassUnnamed(t *testing.T) {
	needTokenizer(t)
	for _, folder := range []string{"clip-5", "clip-4", "qwen2-5", "t5-4"} {
		files := tokenizerFiles(t, folder)
		want, err := tokenizer.Load(files, "tok")
		if err != nil {
			t.Fatal(err)
		}
		defer want.Close()
		for name, class := range map[string]any{"unnamed": nil, "fast": "PreTrainedTokenizerFast", "backend": "TokenizersBackend"} {
			edit(t, files, "tokenizer_config.json", map[string]any{"tokenizer_class": class})
			tok, err := tokenizer.Load(files, "tok")
			if err != nil {
				t.Errorf("%s %s: %v", name, folder, err)
				continue
			}
			defer tok.Close()
			const text = "A CAT's  2 ﬁne\tcats <|endoftext|></s>"
			if a, b := encode(t, tok, text), encode(t, want, text); !slices.Equal(a, b) {
				t.Errorf("%s %s: %v, expected %v", name, folder, a, b)
			}
		}
	}
	files := tokenizerFiles(t, "qwen2-5")
	edit(t, files, "tokenizer_config.json", map[string]any{"tokenizer_class": nil})
	edit(t, files, "tokenizer.json", map[string]any{"pre_tokenizer": nil})
	if _, err := tokenizer.Load(files, "tok"); err == nil || !strings.Contains(err.Error(), "identifies the class in transformers") {
		t.Errorf("another pattern: error %v", err)
	}
}

// TestTokenizerPostProcessor: a Qwen tokenizer.json may have special tokens
// around a text.
func TestTokenizerPostProcessor(t *testing.T) {
	needTokenizer(t)
	files := tokenizerFiles(t, "qwen2-5")
	var post any
	if err := json.Unmarshal([]byte(`{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
		"single":[{"SpecialToken":{"id":"a"}},{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"b"}}],
		"special_tokens":{"a":{"ids":[358]},"b":{"ids":[357,356]}}},{"type":"TemplateProcessing",
		"single":[{"SpecialToken":{"id":"c"}},{"Sequence":{"id":"A"}}],"special_tokens":{"c":{"ids":[359]}}}]}`), &post); err != nil {
		t.Fatal(err)
	}
	edit(t, files, "tokenizer.json", map[string]any{"post_processor": post})
	tok, err := tokenizer.Load(files, "tok")
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	plain := encode(t, tok, "two cats")
	want := slices.Concat([]int32{359, 358}, plain, []int32{357, 356})
	if got, err := tok.EncodeSpecial("two cats"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, expected %v", got, err, want)
	}
	want = slices.Concat([]int32{359, 358}, plain[:2], []int32{357, 356})
	if got, err := tok.EncodePadded("two cats", 6); err != nil || !slices.Equal(got.IDs, want) || got.Tokens != 6 || !got.Truncated {
		t.Errorf("%+v, %v, expected %v", got, err, want)
	}
}

func TestEncodePaddedRefuses(t *testing.T) {
	needTokenizer(t)
	for name, c := range map[string]struct {
		folder, file string
		changes      map[string]any
		n            int
		says         string
	}{
		"no room":         {"clip-5", "tokenizer_config.json", nil, 1, "2 special ones"},
		"no pad token":    {"qwen2-5", "tokenizer_config.json", map[string]any{"pad_token": "null"}, 5, "no pad token"},
		"padding_side":    {"qwen2-5", "tokenizer_config.json", map[string]any{"padding_side": "left"}, 5, "padding_side left"},
		"truncation_side": {"qwen2-5", "tokenizer_config.json", map[string]any{"truncation_side": "left"}, 0, "truncation_side left"},
		"padding": {"qwen2-5", "tokenizer.json", map[string]any{"padding": map[string]any{"direction": "Left"}}, 5,
			"padding_side left"},
	} {
		files := tokenizerFiles(t, c.folder)
		edit(t, files, c.file, c.changes)
		data := files["tok/"+c.file].Data
		files["tok/"+c.file].Data = []byte(strings.Replace(string(data), `"null"`, "null", 1))
		tok, err := tokenizer.Load(files, "tok")
		if err != nil {
			t.Fatal(err)
		}
		defer tok.Close()
		if p, err := tok.EncodePadded("a", c.n); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, error %v", name, p, err)
		}
	}
	tok, err := tokenizer.Load(tokenizerFiles(t, "t5-5"), "tok")
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	if _, err := tok.Encode(strings.Repeat(" ", 1<<20)); err != nil {
		t.Error(err)
	}
	if _, err := tok.EncodePadded(strings.Repeat(" ", 1<<20+1), 9); err == nil || !strings.Contains(err.Error(), "1048577 bytes") {
		t.Errorf("a text of more than a mebibyte: error %v", err)
	}
}

func TestEncodePaddedConcurrent(t *testing.T) {
	needTokenizer(t)
	tok, err := tokenizer.Load(tokenizerFiles(t, "clip-vocab"), "tok")
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	var texts []string
	readTokenizerGolden(t, "texts.json", &texts)
	want := make([]tokenizer.Padded, len(texts))
	for i, text := range texts {
		if want[i], err = tok.EncodePadded(text, 77); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i, text := range texts {
				if got, err := tok.EncodePadded(text, 77); err != nil || !slices.Equal(got.IDs,
					want[i].IDs) || got.Tokens != want[i].Tokens {
					t.Errorf("%+q: %+v, %v, expected %+v", text, got, err, want[i])
					return
				}
			}
		})
	}
	wg.Wait()
}

// FuzzTokenizerFiles: whatever the files have, it is an error of one line or a
// tokenizer that works. A panic in the library would end the process.
func FuzzTokenizerFiles(f *testing.F) {
	names := []string{"tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json",
		"tekken.json"}
	for _, folder := range []string{"clip-5", "clip-vocab", "qwen2-vocab", "t5-4", "tekken-3", "tekken-13"} {
		files := tokenizerFiles(f, folder)
		data := make([][]byte, len(names))
		for i, name := range names {
			if file := files["tok/"+name]; file != nil {
				data[i] = file.Data
			}
		}
		f.Add(data[0], data[1], data[2], data[3], data[4], data[5], data[6], "A ﬁne cat <|endoftext|></s> \x01猫")
	}
	small := []byte(`{"tokenizer_class":"CLIPTokenizer"}`)
	f.Add(small, []byte(nil), []byte(`{"a":0,"b</w>":1,"ab</w>":2,"<|endoftext|>":3}`), []byte("#version: 0.2\na b</w>\n"),
		[]byte(`{"pad_token":"a"}`), []byte(`{"x":4}`), []byte(nil), "ab AB x\ny")
	f.Add([]byte(`{"extra_ids":1,"added_tokens_decoder":{"0":{"content":"a","lstrip":true,"normalized":true}}}`),
		[]byte(`{"normalizer":null,"model":{"type":"Unigram","unk_id":2,"vocab":[["a",-1],["▁",-2],["b",0]]}}`), []byte(nil),
		[]byte(nil), []byte(nil), []byte(nil), []byte(nil), "a b  a")
	// Names of one id, in some of which a NUL is.
	f.Add([]byte(`{"tokenizer_class":"Qwen2Tokenizer"}`), []byte(nil),
		[]byte(`{"a":0,"\u0000":0,"\u0000a":0,"\u0000b":0,"<|endoftext|>":1}`), []byte("\n"), []byte(nil), []byte(nil), []byte(nil),
		"aa a")
	f.Fuzz(func(t *testing.T, config, whole, vocab, merges, special, added, tekken []byte, text string) {
		files := fstest.MapFS{}
		for i, data := range [][]byte{config, whole, vocab, merges, special, added, tekken} {
			if len(data) > 0 {
				files["tok/"+names[i]] = &fstest.MapFile{Data: data}
			}
		}
		tok, err := tokenizer.Load(files, "tok")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "tok") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q", err)
			}
			return
		}
		defer tok.Close()
		if p, err := tok.EncodePadded(text, 9); err == nil && (len(p.IDs) != 9 || p.Tokens > 9) {
			t.Errorf("%+v of 9 tokens", p)
		}
		if ids, err := tok.EncodeParts([]tokenizer.Part{{Text: text}, {Text: text, Plain: true}}); err == nil {
			for _, id := range ids {
				if _, err := tok.Bytes(id); err != nil {
					t.Errorf("id %d: %v", id, err)
				}
			}
		}
	})
}
