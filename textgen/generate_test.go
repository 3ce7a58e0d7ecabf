package textgen

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

func testTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(os.DirFS("../textenc/tokenizer/testdata"), "qwen2-5")
	if err != nil {
		t.Skip(err)
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

// A script is a language model that writes known tokens after a prompt. It notes what it has seen.
type script struct {
	tokens []int32
	vocab  int
	seen   []int32
	calls  int
}

func (s *script) forward(ids *mlx.Array) *mlx.Array {
	s.seen = append(s.seen, ids.Int32s()...)
	row := make([]float32, s.vocab)
	if s.calls < len(s.tokens) {
		if s.tokens[s.calls] < 0 {
			row[0] = float32(math.NaN())
		} else {
			row[s.tokens[s.calls]] = 10
		}
	}
	s.calls++
	return mlx.FromFloat32(row, 1, s.vocab)
}

func TestGenerate(t *testing.T) {
	tok := testTokenizer(t)
	id := func(token string) int32 {
		id, ok := tok.ID(token)
		if !ok {
			t.Fatalf("no %s", token)
		}
		return id
	}
	end, think, thought := id("<|im_end|>"), id("<think>"), id("</think>")
	prompt := encode(t, tok, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
	of := func(parts ...any) (ids []int32) {
		for _, p := range parts {
			switch p := p.(type) {
			case string:
				ids = append(ids, encode(t, tok, p)...)
			case int32:
				ids = append(ids, p)
			}
		}
		return ids
	}
	fox := encode(t, tok, "\n a fox 🦊 日本\n")
	half, letters, deep := slices.Index(fox, of("🦊")[0])+1, of("abcdefgh"), of(think, "xyzxyzxyz")
	for name, c := range map[string]struct {
		prompt  []int32
		tokens  []int32
		o       Options
		want    Text
		seenEnd []int32 // the last tokens that the model must see
	}{
		"stop": {tokens: of("\n a fox 🦊 日本\n", end, "more"), o: Options{MaxTokens: 99},
			want: Text{Text: "a fox 🦊 日本", Tokens: len(fox), Whole: true}},
		"limit": {tokens: letters, o: Options{MaxTokens: 2}, want: Text{Text: spelled(t, tok, letters[:2]), Tokens: 2}},
		"nothing but a stop text": {tokens: of(".more"), o: Options{MaxTokens: 99, StopTexts: []string{"."}},
			want: Text{Tokens: len(of(".")), Whole: true}},
		"stop text": {tokens: of("a fox. And more"), o: Options{MaxTokens: 99, StopTexts: []string{"x.", "more"}},
			want: Text{Text: "a fo", Tokens: len(of("a fox.")), Whole: true}},
		"beginning of a stop text": {tokens: of("a fox\n\n.", end), o: Options{MaxTokens: 99, StopTexts: []string{"\n\nmore", "fox\n\n!"}},
			want: Text{Text: "a fox\n\n.", Tokens: len(of("a fox\n\n.")), Whole: true}},
		"beginning of a stop text at the end": {tokens: of("a fox", end), o: Options{MaxTokens: 99, StopTexts: []string{"fox!"}},
			want: Text{Text: "a fox", Tokens: len(of("a fox")), Whole: true}},
		"half character": {tokens: fox[:half], o: Options{MaxTokens: half}, want: Text{Text: "a fox �", Tokens: half}},
		"thinking": {tokens: of(think, "\nhm\n", thought, "\n\nyes", end), o: Options{MaxTokens: 99},
			want: Text{Text: "yes", Thinking: "hm", Tokens: len(of(think, "\nhm\n", thought, "\n\nyes")), Whole: true}},
		"thinking began in the prompt": {prompt: append(slices.Clone(prompt), of(think, "\n")...), tokens: of("hm", thought, "yes", end),
			o: Options{MaxTokens: 99}, want: Text{Text: "yes", Thinking: "hm", Tokens: len(of("hm", thought, "yes")), Whole: true}},
		"thinking that was ended": {prompt: append(slices.Clone(prompt), of(think, "\n\n", thought, "\n\n")...), tokens: of("yes", end),
			o: Options{MaxTokens: 99}, want: Text{Text: "yes", Tokens: len(of("yes")), Whole: true}},
		"budget": {tokens: deep[:5], o: Options{MaxTokens: 5, ThinkingBudget: 4},
			want:    Text{Text: spelled(t, tok, deep[4:5]), Thinking: spelled(t, tok, deep[1:4]), Tokens: 5},
			seenEnd: of("\n", thought, "\n\n")},
	} {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				if c.prompt == nil {
					c.prompt = prompt
				}
				s := &script{tokens: c.tokens, vocab: tok.VocabSize()}
				c.o.Stop = []int32{end}
				var streamed Text
				got, err := Generate(s.forward, tok, c.prompt, c.o, func(p Piece) {
					if p.Thinking {
						streamed.Thinking += p.Text
					} else {
						streamed.Text += p.Text
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				c.want.Prompt = len(c.prompt)
				if got != c.want {
					t.Errorf("found %+q, expected %+q", got.Text, c.want.Text)
					t.Errorf("found %+v, expected %+v", got, c.want)
				}
				if strings.TrimSpace(streamed.Text) != got.Text || strings.TrimSpace(streamed.Thinking) != got.Thinking {
					t.Errorf("streamed %+v", streamed)
				}
				if !slices.Equal(s.seen[:len(c.prompt)], c.prompt) {
					t.Errorf("the model saw %v first", s.seen)
				}
				if n := len(c.seenEnd); n > 0 && !slices.Equal(s.seen[len(s.seen)-n:], c.seenEnd) {
					t.Errorf("the model saw %v last, expected %v", s.seen, c.seenEnd)
				}
			})
		})
	}
}

func spelled(t *testing.T, tok *tokenizer.Tokenizer, ids []int32) (text string) {
	t.Helper()
	for _, id := range ids {
		b, err := tok.Bytes(id)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	return text
}

func TestGenerateErrors(t *testing.T) {
	tok := testTokenizer(t)
	prompt := encode(t, tok, "hello there")
	mlxtest.Do(t, func() {
		loop := make([]int32, 300)
		for i := range loop {
			loop[i] = prompt[0]
		}
		_, err := Generate((&script{tokens: loop, vocab: tok.VocabSize()}).forward, tok, prompt, Options{MaxTokens: 300}, nil)
		if !errors.Is(err, ErrLoop) {
			t.Errorf("a loop: %v", err)
		}
		_, err = Generate((&script{tokens: loop[:90], vocab: tok.VocabSize()}).forward, tok, prompt, Options{MaxTokens: 90}, nil)
		if err != nil {
			t.Errorf("90 times the same token: %v", err)
		}
		_, err = Generate((&script{tokens: []int32{-1}, vocab: tok.VocabSize()}).forward, tok, prompt, Options{MaxTokens: 9}, nil)
		mlxtest.Contains(t, err.Error(), "NaN")
		think, _ := tok.ID("<think>")
		for want, ids := range map[string][]int32{
			"the language model wrote nothing":                           encode(t, tok, " \n\u3000"),
			"the language model wrote nothing but thoughts, of 3 tokens": {think, prompt[0], prompt[1]},
		} {
			_, err = Generate((&script{tokens: ids, vocab: tok.VocabSize()}).forward, tok, prompt, Options{MaxTokens: len(ids)}, nil)
			if !errors.Is(err, ErrNothing) || err.Error() != want {
				t.Errorf("%v, expected %s", err, want)
			}
		}
		_, err = Generate(nil, tok, nil, Options{MaxTokens: 9}, nil)
		mlxtest.Contains(t, err.Error(), "no tokens")
		_, err = Generate(nil, tok, prompt, Options{MaxTokens: 9, Sampling: Sampling{TopP: 2}}, nil)
		mlxtest.Contains(t, err.Error(), "top_p")
	})
}

// TestGenerateSeeds checks that a seed gives the same text, and that others do not.
func TestGenerateSeeds(t *testing.T) {
	tok := testTokenizer(t)
	prompt := encode(t, tok, "hello")
	write := func(seed uint64) (text string) {
		mlxtest.Do(t, func() {
			flat := func(*mlx.Array) *mlx.Array { return mlx.Zeros(mlx.Float32, 1, 300) }
			got, err := Generate(flat, tok, prompt, Options{MaxTokens: 20, Sampling: Sampling{Temperature: 1}, Seed: seed}, nil)
			if err != nil {
				t.Fatal(err)
			}
			text = got.Text
		})
		return text
	}
	if a, b, c := write(1), write(1), write(2); a != b || a == c {
		t.Errorf("seeds 1, 1 and 2 write %q, %q and %q", a, b, c)
	}
}

// TestGenerateStops ends with its context, and frees everything.
func TestGenerateStops(t *testing.T) {
	tok := testTokenizer(t)
	prompt := encode(t, tok, "hello")
	ctx, cancel := context.WithCancel(t.Context())
	steps := 0
	o := Options{MaxTokens: 1000, Sampling: Sampling{Temperature: 1, RepetitionPenalty: 1.1, FrequencyPenalty: 0.1}}
	err := mlx.Do(ctx, func() error {
		_, err := Generate(func(*mlx.Array) *mlx.Array {
			if steps++; steps == 5 {
				cancel()
			}
			return mlx.Zeros(mlx.Float32, 1, 300)
		}, tok, prompt, o, nil)
		return err
	})
	if !errors.Is(err, context.Canceled) || steps > 6 {
		t.Errorf("%v after %d steps", err, steps)
	}
}

// TestGenerateMemory checks that no memory grows with the number of tokens.
func TestGenerateMemory(t *testing.T) {
	tok := testTokenizer(t)
	prompt := encode(t, tok, "hello")
	mlxtest.Do(t, func() {
		const vocab = 1000
		var after [2]int
		o := Options{MaxTokens: 40, Sampling: Sampling{Temperature: 1, TopP: 0.9, RepetitionPenalty: 1.1, PresencePenalty: 0.1}}
		steps := 0
		_, err := Generate(func(*mlx.Array) *mlx.Array {
			if steps++; steps == 10 || steps == 40 {
				mlx.Eval(mlx.Scalar(1, mlx.Float32).Plus(1)) // after the counts, whose evaluation is not waited for
				after[steps/40] = mlx.ActiveMemory()
			}
			return mlx.Zeros(mlx.Float32, 1, vocab)
		}, tok, prompt, o, nil)
		if err != nil || after[1] > after[0]+vocab {
			t.Errorf("%v, memory grows from %d to %d bytes", err, after[0], after[1])
		}
	})
}
