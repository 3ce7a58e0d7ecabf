package generate

import (
	"context"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// TestAutoSeeds: any number of images is allowed.
func TestAutoSeeds(t *testing.T) {
	o := newGenerateOptions()
	o.prompts, o.promptGiven, o.Output = []string{"x"}, true, filepath.Join(t.TempDir(), "x.png")
	if err := o.autoSeeds.Set("50000000"); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g := newGeneration(o, &ui.Output{Stdout: io.Discard, Stderr: io.Discard})
	if err := g.prepare(context.Background(), strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 10e6 {
		t.Errorf("it takes %d bytes", taken)
	}
	if g.total != 50_000_000 {
		t.Errorf("%d images", g.total)
	}
	first := g.seed(0)
	if again := g.seed(0); again != first {
		t.Errorf("the first image has the seeds %d and %d", first, again)
	}
	if second, third := g.seed(1), g.seed(2); first == second && second == third {
		t.Errorf("the first three seeds are all %d", first)
	}
}

// TestPromptsAndSeeds: each prompt has every seed, one prompt after the other.
func TestPromptsAndSeeds(t *testing.T) {
	for _, seeds := range [][]uint64{{3, 4}, nil} {
		o := newGenerateOptions()
		o.prompts, o.promptGiven, o.seeds, o.Output = []string{"a", "b", "c"}, true, seeds, filepath.Join(t.TempDir(), "x.png")
		if seeds == nil {
			if err := o.autoSeeds.Set("2"); err != nil {
				t.Fatal(err)
			}
		}
		g := newGeneration(o, &ui.Output{Stdout: io.Discard, Stderr: io.Discard})
		if err := g.prepare(context.Background(), strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
		var made string
		for i := range g.total {
			made += g.prompt(i)
			if g.seed(i) != g.seed(i%2) || seeds != nil && g.seed(i) != seeds[i%2] {
				t.Errorf("image %d has the seed %d, the one of the first prompt %d", i, g.seed(i), g.seed(i%2))
			}
		}
		if made != "aabbcc" {
			t.Errorf("prompts %s, expected aabbcc", made)
		}
	}
}

// TestChooseTyped: Ctrl-C shortly after the last word is for the last prompt, and only until images are made.
func TestChooseTyped(t *testing.T) {
	for _, asked := range []bool{false, true} {
		ended := 0
		g := &generation{rewritten: []rewritten{{"a", "m"}, {"b", "m"}}, typed: &typedPrompt{end: func() { ended++ }}}
		g.allPrompts = []string{"A", "B"}
		g.out = &ui.Output{Stderr: io.Discard}
		g.typed.asked.Store(asked)
		g.chooseTyped()
		g.chooseTyped()
		want := "A B"
		if asked {
			want = "A b"
		}
		if got := strings.Join(g.allPrompts, " "); got != want || (g.rewritten[1].By == "") != asked || ended != 1 {
			t.Errorf("asked %v: prompts %s, %+v, ended %d times", asked, got, g.rewritten, ended)
		}
	}
}
