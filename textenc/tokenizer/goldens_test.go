package tokenizer_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// tokenizerGoldens has what python -m gomflux_reference.tokenizer (in
// scripts/reference) makes of its texts.json, which is written by hand.
const tokenizerGoldens = "testdata"

// hashIDs is the SHA-256 of ids as little-endian 32-bit integers.
func hashIDs(ids []int32) string {
	data := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint32(data, uint32(id))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// longText joins texts in the order of a linear congruential generator until
// there are 100,000 bytes.
func longText(texts []string) string {
	var b strings.Builder
	state := uint64(1)
	for b.Len() < 100_000 {
		state = state*6364136223846793005 + 1442695040888963407
		b.WriteString(texts[(state>>33)%uint64(len(texts))])
	}
	return b.String()
}

func readTokenizerGolden(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tokenizerGoldens, name))
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTokenizerIDs holds ids against those of transformers, for each class and
// layout of files.
func TestTokenizerIDs(t *testing.T) {
	needTokenizer(t)
	var texts []string
	readTokenizerGolden(t, "texts.json", &texts)
	var goldens []struct {
		Folders []string
		Size    int
		Pad     int32
		Max     int `json:"model_max_length"`
		IDs     [][]int32
		Plain   string
		Padded  map[string]struct {
			Tokens []int
			SHA256 string
		}
		Long struct {
			Tokens int
			SHA256 string
		}
	}
	readTokenizerGolden(t, "ids.json", &goldens)
	for _, g := range goldens {
		for _, folder := range g.Folders {
			t.Run(folder, func(t *testing.T) {
				tok, err := tokenizer.Load(os.DirFS(tokenizerGoldens), folder)
				if err != nil {
					t.Fatal(err)
				}
				defer tok.Close()
				if pad, ok := tok.PadID(); tok.VocabSize() != g.Size || pad != g.Pad || !ok || tok.MaxLength() != g.Max {
					t.Errorf("%d ids, pad %d, at most %d, expected %d, %d, %d", tok.VocabSize(), pad, tok.MaxLength(), g.Size, g.Pad, g.Max)
				}
				var plain []int32
				for i, text := range texts {
					ids, err := tok.EncodeSpecial(text)
					if err != nil || !slices.Equal(ids, g.IDs[i]) {
						t.Errorf("%+q is %v, %v, expected %v", text, ids, err, g.IDs[i])
					}
					plain = append(plain, encode(t, tok, text)...)
				}
				if hashIDs(plain) != g.Plain {
					t.Error("other ids without special tokens")
				}
				for length, want := range g.Padded {
					n, err := strconv.Atoi(length)
					if err != nil {
						t.Fatal(err)
					}
					var all []int32
					for i, text := range texts {
						p, err := tok.EncodePadded(text, n)
						if err != nil || len(p.IDs) != n || p.Tokens != want.Tokens[i] || p.Truncated != (len(g.IDs[i]) > n) {
							t.Errorf("%+q as %d tokens is %+v, %v, expected %d tokens", text, n, p, err, want.Tokens[i])
						}
						all = append(all, p.IDs...)
					}
					if hashIDs(all) != want.SHA256 {
						t.Errorf("other ids of %d tokens", n)
					}
				}
				long, err := tok.EncodeSpecial(longText(texts))
				if err != nil || len(long) != g.Long.Tokens || hashIDs(long) != g.Long.SHA256 {
					t.Errorf("100 kB are %d other tokens, %v, expected %d", len(long), err, g.Long.Tokens)
				}
			})
		}
	}
}

// TestTokenizerPublished holds the ids of published tokenizers, also of runs of dashes, against those
// of transformers.
func TestTokenizerPublished(t *testing.T) {
	needTokenizer(t)
	root := cmp.Or(os.Getenv("GOMFLUX_REAL"), "../../../shared/real")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("the small files of published models are not there (GOMFLUX_REAL names their folder): %v", err)
	}
	var texts []string
	readTokenizerGolden(t, "texts.json", &texts)
	for _, dash := range []string{"-", "_"} {
		for n := range 60 {
			texts = append(texts, strings.Repeat(dash, n+1))
		}
	}
	var goldens []struct {
		Folder string
		Size   int
		SHA256 string
	}
	readTokenizerGolden(t, "published.json", &goldens)
	for _, g := range goldens {
		if _, err := os.Stat(filepath.Join(root, g.Folder)); err != nil {
			t.Logf("%s is not there", g.Folder)
			continue
		}
		tok, err := tokenizer.Load(os.DirFS(root), g.Folder)
		if err != nil {
			t.Fatal(err)
		}
		var all []int32
		for _, text := range texts {
			ids, err := tok.EncodeSpecial(text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ids...)
		}
		if hashIDs(all) != g.SHA256 || tok.VocabSize() != g.Size {
			t.Errorf("%s: other ids than in transformers, of %d tokens, expected %d", g.Folder, tok.VocabSize(), g.Size)
		}
		tok.Close()
	}
}
