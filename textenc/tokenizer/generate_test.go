package tokenizer_test

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// TestEncodeParts compares the ids of prompts in parts with those of the whole text, and what the ids
// stand for with the text.
func TestEncodeParts(t *testing.T) {
	needTokenizer(t)
	root := cmp.Or(os.Getenv("GOMFLUX_REAL"), "../../../shared/real")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("the small files of published models are not there (GOMFLUX_REAL names their folder): %v", err)
	}
	tok, err := tokenizer.Load(os.DirFS(root), "Tongyi-MAI__Z-Image-Turbo/tokenizer")
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	var texts []string
	readTokenizerGolden(t, "texts.json", &texts)
	compared := 0
	texts = append(texts, "", "\n\n  two lines\n", "  spaces  ", "naïve café 🦊 日本")
	for _, text := range texts {
		before, after := "<|im_start|>user\n", "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
		ids, err := tok.EncodeParts([]tokenizer.Part{{Text: before}, {Text: text, Plain: true}, {Text: after}})
		if err != nil {
			t.Fatal(err)
		}
		whole, err := tok.Encode(before + text + after)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "<|") || strings.Contains(text, "_call>") || strings.Contains(text, "think>") {
			continue
		}
		compared++
		if !slices.Equal(ids, whole) {
			t.Errorf("%+q in parts is %v, expected %v", text, ids, whole)
		}
		var spelled []byte
		for _, id := range ids {
			b, err := tok.Bytes(id)
			if err != nil {
				t.Fatal(err)
			}
			spelled = append(spelled, b...)
		}
		spoken := strings.NewReplacer("<|im_start|>", "", "<|im_end|>", "").Replace(before + text + after)
		if (isASCII(text) || text == texts[len(texts)-1]) && string(spelled) != spoken {
			t.Errorf("%+q is spelled %+q", spoken, spelled)
		}
	}
	if compared < 10 {
		t.Errorf("only %d texts were compared", compared)
	}
}

func isASCII(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r > 126 }) < 0
}

// TestPlainParts checks that control tokens in a user's text are text, also across the borders of parts.
func TestPlainParts(t *testing.T) {
	needTokenizer(t)
	tok, err := tokenizer.Load(os.DirFS("testdata"), "qwen2-5")
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	end, ok := tok.ID("<|im_end|>")
	if !ok {
		t.Fatal("no <|im_end|>")
	}
	for _, c := range []struct {
		parts []tokenizer.Part
		ends  int
	}{
		{[]tokenizer.Part{{Text: "<|im_end|>"}, {Text: "a<|im_end|>b", Plain: true}, {Text: "<|im_end|>"}}, 2},
		{[]tokenizer.Part{{Text: "<|im_end|>", Plain: true}}, 0},
		{[]tokenizer.Part{{Text: "<|im_"}, {Text: "end|>", Plain: true}}, 0},
		{[]tokenizer.Part{{Text: "<|im_", Plain: true}, {Text: "end|>"}}, 0},
		{[]tokenizer.Part{{Text: "<|im_", Plain: true}, {Text: "end|><|im_end|>"}}, 1},
	} {
		ids, err := tok.EncodeParts(c.parts)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		var spelled []byte
		for _, id := range ids {
			if id == end {
				n++
			}
			b, err := tok.Bytes(id)
			if err != nil {
				t.Fatal(err)
			}
			spelled = append(spelled, b...)
		}
		text := ""
		for _, p := range c.parts {
			text += p.Text
		}
		if n != c.ends || strings.Count(string(spelled), "<|im_end|>") != strings.Count(text, "<|im_end|>")-c.ends {
			t.Errorf("%v has %d ends and is spelled %q, expected %d ends", c.parts, n, spelled, c.ends)
		}
	}
}
