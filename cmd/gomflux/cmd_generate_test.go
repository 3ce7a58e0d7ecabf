package main

import (
	"context"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestAutoSeeds: any number of pictures can be asked for.
func TestAutoSeeds(t *testing.T) {
	o := &generateOptions{modelFlags: newModelFlags(), autoSeeds: count("count"), prompt: "x", promptGiven: true, output: filepath.Join(t.TempDir(), "x.png")}
	if err := o.autoSeeds.Set("50000000"); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g, err := o.prepare(context.Background(), strings.NewReader(""), &printer{stdout: io.Discard, stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 10e6 {
		t.Errorf("it takes %d bytes", taken)
	}
	if g.pictures != 50_000_000 {
		t.Errorf("%d pictures", g.pictures)
	}
	if g.seed(0) != g.seed(0) {
		t.Error("the first picture has two seeds")
	}
	if a, b, c := g.seed(0), g.seed(1), g.seed(2); a == b && b == c {
		t.Errorf("the first three seeds are all %d", a)
	}
}
