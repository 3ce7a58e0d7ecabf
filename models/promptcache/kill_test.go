package promptcache

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/randtest"
)

// envHelper has the folder of the cache to which TestMain writes until it is killed.
const envHelper = "GOMFLUX_TEST_HELPER"

// killKeys is the number of prompts that are written again and again.
const killKeys = 8

func killValue(i int) (key []byte, numbers int) {
	return fmt.Appendf(nil, "prompt %d", i), 100_000 + 8*i
}

func TestMain(m *testing.M) {
	dir := os.Getenv(envHelper)
	if dir == "" {
		os.Exit(m.Run())
	}
	c := New(dir, DefaultSize, func(message string) { fmt.Fprintln(os.Stderr, message); os.Exit(1) })
	fmt.Print(".") // started
	for i := 0; ; i = (i + 1) % killKeys {
		key, n := killValue(i)
		if i%5 == 4 { // so that the folder and its secret are made again too
			c.Clear()
		}
		c.Put(key, embeds(i, n), "")
	}
}

// TestKill kills a process while it writes, at random moments. The cache works after each.
func TestKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	interrupted := 0
	random, times := randtest.New(t), randtest.Times(30, 100)
	for range times {
		helper := exec.Command(os.Args[0])
		helper.Env = append(os.Environ(), envHelper+"="+dir)
		helper.Stderr = os.Stderr
		started, err := helper.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := helper.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := started.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
		if err := helper.Process.Kill(); err != nil {
			t.Fatal("the helper has ended by itself: ", err)
		}
		helper.Wait()
		interrupted += checkKilled(t, dir, random)
	}
	t.Logf("%d of %d kills left a temporary file", interrupted, times)
	if interrupted == 0 {
		t.Error("no kill was in the middle of writing")
	}
}

// checkKilled checks a cache whose writer was killed, and returns the number of its temporary
// files.
func checkKilled(t *testing.T, dir string, random *rand.Rand) (temporaries int) {
	t.Helper()
	names, _ := os.ReadDir(dir)
	for _, e := range names {
		if atomicfile.IsTemporary(e.Name()) {
			temporaries++
		}
	}
	c, warned := open(dir, DefaultSize)
	for i := range killKeys {
		key, n := killValue(i)
		if got := c.Get(key); got != nil && !same(got, embeds(i, n)) {
			t.Errorf("prompt %d: other embeddings", i)
		}
	}
	next := random.IntN(killKeys)
	key, n := killValue(next)
	c.Put(key, embeds(next, n), "")
	if !same(c.Get(key), embeds(next, n)) {
		t.Error("the cache does not work any more")
	}
	if _, left, err := c.entries(); err != nil || len(left) > 0 {
		t.Errorf("temporary files %v, %v", left, err)
	}
	if len(warned.list) > 0 {
		t.Errorf("warnings %q", warned.list)
	}
	if random.IntN(2) == 0 {
		if _, err := c.Clear(); err != nil {
			t.Error(err)
		}
	}
	return temporaries
}
