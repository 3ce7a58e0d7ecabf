package tokenizer_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

const goldens = "../../models/testdata/"

func load(t *testing.T, folder string) *tokenizer.Tokenizer {
	t.Helper()
	needTokenizer(t)
	tok, err := tokenizer.Load(os.DirFS(goldens+folder+"/model"), "tokenizer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tok.Close)
	return tok
}

func encode(t *testing.T, tok *tokenizer.Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(text)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// Ids of whole prompts are held against transformers' by the goldens in
// package models; here is what those do not show.
func TestTokenizer(t *testing.T) {
	for _, folder := range []string{"zimage-ordinary", "zimage-small"} { // merges as strings, as pairs
		tok := load(t, folder)
		special := encode(t, tok, "<|im_start|>")
		if len(special) != 1 || int(special[0]) >= tok.VocabSize() {
			t.Errorf("%s: a special token is %v of %d", folder, special, tok.VocabSize())
		}
		if plain := encode(t, tok, "im_start"); slices.Contains(plain, special[0]) {
			t.Errorf("%s: %v has the special token", folder, plain)
		}
		if ids := encode(t, tok, ""); len(ids) != 0 {
			t.Errorf("%s: no text is %v", folder, ids)
		}
		whole := encode(t, tok, "a red<|im_end|>\n")
		if last := whole[len(whole)-2]; last != encode(t, tok, "<|im_end|>")[0] {
			t.Errorf("%s: %v ends in %d", folder, whole, last)
		}
	}
}

func TestTokenizerRefuses(t *testing.T) {
	tok := load(t, "zimage-small")
	for _, text := range []string{"\xff\xfe", "a\x00b"} {
		if ids, err := tok.Encode(text); err == nil {
			t.Errorf("%q is %v", text, ids)
		}
	}
	for name, file := range map[string]string{"empty": "", "no JSON": "tokens", "no model": "{}", "a list": "[]"} {
		fsys := fstest.MapFS{"tokenizer/tokenizer.json": {Data: []byte(file)}}
		if _, err := tokenizer.Load(fsys, "tokenizer"); err == nil || !strings.Contains(err.Error(), "tokenizer/tokenizer.json") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := tokenizer.Load(fstest.MapFS{}, "tokenizer"); err == nil {
		t.Error("no tokenizer.json, no error")
	}
}

// TestTokenizerPads: a tokenizer.json may ask for padding and truncation, which
// the caller decides on.
func TestTokenizerPads(t *testing.T) {
	needTokenizer(t)
	text, err := os.ReadFile(goldens + "zimage-small/model/tokenizer/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	all["truncation"] = map[string]any{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
	all["padding"] = map[string]any{"strategy": map[string]any{"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": nil,
		"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"}
	if text, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(fstest.MapFS{"tokenizer/tokenizer.json": {Data: text}}, "tokenizer")
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	plain := load(t, "zimage-small")
	for _, prompt := range []string{"a", "a lighthouse at dusk, seen from the sea"} {
		if got, want := encode(t, tok, prompt), encode(t, plain, prompt); !slices.Equal(got, want) {
			t.Errorf("%q is %v, expected %v", prompt, got, want)
		}
	}
}

func TestTokenizerConcurrent(t *testing.T) {
	tok := load(t, "zimage-ordinary")
	want := encode(t, tok, "a red circle")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if ids, err := tok.Encode("a red circle"); err != nil || !slices.Equal(ids, want) {
					t.Errorf("%v, %v, expected %v", ids, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
