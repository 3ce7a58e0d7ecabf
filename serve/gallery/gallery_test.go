package gallery

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/picture"
)

func open(t *testing.T, dir string, size int64) *Gallery {
	t.Helper()
	g, err := Open(dir, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func add(t *testing.T, g *Gallery, owner string, seed uint64) *Entry {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 4, 4))
	for i := range 16 {
		img.Set(i%4, i/4, color.RGBA{uint8(seed), uint8(i), 7, 255})
	}
	e, err := g.Add(owner, img, settings(seed))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func settings(seed uint64) picture.Settings {
	return picture.Settings{
		Generator: "gomflux test", Model: "m", Prompt: "a cat", Seed: seed, Steps: 2, Height: 4, Width: 4,
		Created: time.Unix(1e9, 0), Seconds: 3,
	}
}

func names(t *testing.T, g *Gallery, owner string) (all []string) {
	t.Helper()
	p, err := g.List(t.Context(), owner, "", 100, Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range p.Entries {
		all = append(all, e.Name)
	}
	return all
}

func TestGallerySurvivesRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "pictures")
	g := open(t, dir, DefaultSize)
	first, second := add(t, g, "ann", 1), add(t, g, "bob", 2)
	if got := names(t, g, ""); !slices.Equal(got, []string{second.Name, first.Name}) {
		t.Errorf("listed %q, expected the newest first", got)
	}
	if first.owner == second.owner || first.Name[:50] == second.Name[:50] {
		t.Errorf("%s and %s", first.Name, second.Name)
	}
	g = open(t, dir, DefaultSize)
	if got := names(t, g, "ann"); !slices.Equal(got, []string{first.Name}) {
		t.Errorf("listed %q for ann, expected %s", got, first.Name)
	}
	f, e, err := g.Open("ann", first.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d := time.Since(e.Created); d < 0 || d > time.Minute {
		t.Errorf("created %v ago", d)
	}
	got, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	img, err := picture.Decode(bytes.NewReader(got))
	if err != nil {
		t.Fatal(err)
	}
	// as the command writes it: without times
	s := settings(1)
	s.Created, s.Seconds = time.Time{}, 0
	var want bytes.Buffer
	if err := picture.Encode(&want, picture.PNG, img.Image, &s); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("the file differs from the command's (%v)", err)
	}
	if found := g.Settings(t.Context(), e); found == nil || found.Settings.Prompt != "a cat" || found.Width != 4 {
		t.Errorf("settings %+v", found)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has the mode %v (%v)", info.Mode(), err)
	}
}

func TestGalleryIsBounded(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir, DefaultSize)
	var made []*Entry
	for i := range 5 {
		made = append(made, add(t, g, "", uint64(i)))
	}
	other := filepath.Join(dir, "gomflux-mine.png")
	link := filepath.Join(dir, strings.Replace(made[0].Name, "gomflux-2", "gomflux-1", 1))
	if err := errors.Join(os.WriteFile(other, make([]byte, 1<<20), 0o600), os.Symlink(other, link)); err != nil {
		t.Fatal(err)
	}
	g = open(t, dir, made[3].Bytes+made[4].Bytes)
	if got := names(t, g, ""); !slices.Equal(got, []string{made[4].Name, made[3].Name}) {
		t.Errorf("kept %q", got)
	}
	last := add(t, g, "", 7)
	if got := names(t, g, ""); !slices.Equal(got, []string{last.Name, made[4].Name}) {
		t.Errorf("kept %q", got)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Errorf("%d files remain (%v), expected two images, and the file and the link of the user", len(files), err)
	}
	// a single image that is too large is kept
	g = open(t, dir, 1)
	if last = add(t, g, "", 8); !slices.Equal(names(t, g, ""), []string{last.Name}) {
		t.Errorf("kept %q", names(t, g, ""))
	}
}

func TestGalleryPages(t *testing.T) {
	g := open(t, t.TempDir(), DefaultSize)
	var want, got []string
	for i := range 7 {
		want = append(want, add(t, g, "ann", uint64(i)).Name)
		add(t, g, "bob", uint64(i))
	}
	slices.Reverse(want)
	pages := 0
	for after := ""; pages == 0 || after != ""; pages++ {
		p, err := g.List(t.Context(), "ann", after, 3, Query{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Count != 7 || p.Bytes == 0 {
			t.Errorf("%d images, %d bytes", p.Count, p.Bytes)
		}
		for _, e := range p.Entries {
			got = append(got, e.Name)
		}
		after = p.Next
	}
	if !slices.Equal(got, want) || pages != 3 {
		t.Errorf("%d pages %q, expected 3 pages %q", pages, got, want)
	}
}

func TestGalleryRefusesOtherNames(t *testing.T) {
	dir := t.TempDir()
	g := open(t, filepath.Join(dir, "g"), DefaultSize)
	own := add(t, g, "ann", 1)
	if err := os.WriteFile(filepath.Join(dir, "g", "notes.png"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "notes.png", "../g/" + own.Name, "./" + own.Name, own.Name + "\x00", "/etc/passwd"} {
		if _, _, err := g.Open("", name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
		if err := g.Remove("", name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removing %q: %v", name, err)
		}
	}
	if err := g.Remove("bob", own.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bob removes ann's image: %v", err)
	}
	if _, _, err := g.Open("bob", own.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bob opens ann's image: %v", err)
	}
	if err := g.Remove("ann", own.Name); err != nil {
		t.Error(err)
	}
	if got := names(t, g, ""); len(got) != 0 {
		t.Errorf("%q remains", got)
	}
	// removed by another program
	own = add(t, g, "ann", 2)
	if err := os.Remove(filepath.Join(dir, "g", own.Name)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.Open("ann", own.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was removed: %v", err)
	}
}

func TestGalleryCleansTemporaries(t *testing.T) {
	dir := t.TempDir()
	const days = 48 * time.Hour
	for name, age := range map[string]time.Duration{".gomflux-01234567.tmp": days, ".gomflux-01234568.tmp": 0, "a.tmp": days} {
		path := filepath.Join(dir, name)
		when := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir, DefaultSize)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%v remain (%v), expected the new temporary file and another program's", files, err)
	}
}

func TestFavourites(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir, DefaultSize)
	var made []*Entry
	for i := range 5 {
		made = append(made, add(t, g, "ann", uint64(i)))
	}
	if err := g.SetFavourite("bob", made[0].Name, true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bob marks ann's image: %v", err)
	}
	for _, e := range []*Entry{made[0], made[0], made[2]} {
		if err := g.SetFavourite("ann", e.Name, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.SetFavourite("ann", made[2].Name, false); err != nil {
		t.Fatal(err)
	}
	favourites := func(g *Gallery) (all []string) {
		p, err := g.List(t.Context(), "ann", "", 100, Query{Favourite: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Entries {
			all = append(all, e.Name)
		}
		return all
	}
	// after a restart the oldest is kept, since it is a favourite, and the newest
	size := made[0].Bytes + made[4].Bytes
	g = open(t, dir, size)
	if got := names(t, g, ""); !slices.Equal(got, []string{made[4].Name, made[0].Name}) || !slices.Equal(favourites(g), got[1:]) {
		t.Errorf("kept %q, favourites %q", got, favourites(g))
	}
	// half of the size is for other images
	if err := g.SetFavourite("ann", made[4].Name, true); !errors.Is(err, ErrFull) {
		t.Errorf("one favourite too many: %v", err)
	}
	last := add(t, g, "bob", 9)
	if got := names(t, g, ""); !slices.Equal(got, []string{last.Name, made[0].Name}) {
		t.Errorf("kept %q", got)
	}
	// nothing of an image that was removed stays, by the gallery or by another program
	if err := g.Remove("ann", made[0].Name); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v remain (%v), expected one image", files, err)
	}
	if err := errors.Join(g.SetFavourite("bob", last.Name, true), os.Remove(filepath.Join(dir, last.Name))); err != nil {
		t.Fatal(err)
	}
	open(t, dir, DefaultSize)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v remain (%v)", files, err)
	}
}

func TestQuery(t *testing.T) {
	g := open(t, t.TempDir(), DefaultSize)
	img := image.NewRGBA(image.Rect(0, 0, 4, 4))
	made := map[string]string{}
	for _, c := range []struct{ owner, prompt, model string }{
		{"ann", "a red Cat", "owner/One"}, {"ann", "Ärger, a cat", "two"}, {"ann", "a dog", "two"}, {"bob", "a red cat", "owner/One"},
	} {
		s := settings(1)
		s.Prompt, s.Model = c.prompt, c.model
		e, err := g.Add(c.owner, img, s)
		if err != nil {
			t.Fatal(err)
		}
		made[e.Name] = c.owner + ": " + c.prompt
	}
	for _, c := range []struct {
		q    Query
		want []string
	}{
		{Query{}, []string{"ann: a dog", "ann: Ärger, a cat", "ann: a red Cat"}},
		{Query{Prompt: " CAT  a "}, []string{"ann: Ärger, a cat", "ann: a red Cat"}},
		{Query{Prompt: "cat red"}, []string{"ann: a red Cat"}},
		{Query{Prompt: "ärger"}, []string{"ann: Ärger, a cat"}},
		{Query{Model: "ONE"}, []string{"ann: a red Cat"}},
		{Query{Prompt: "cat", Model: "two"}, []string{"ann: Ärger, a cat"}},
		{Query{Prompt: "cow"}, nil},
		{Query{Favourite: true}, nil},
	} {
		var got []string
		for after, pages := "", 0; pages == 0 || after != ""; pages++ {
			p, err := g.List(t.Context(), "ann", after, 1, c.q)
			if err != nil || p.Count != 3 {
				t.Fatalf("%d images (%v)", p.Count, err)
			}
			for _, e := range p.Entries {
				got = append(got, made[e.Name])
			}
			after = p.Next
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, expected %q", c.q, got, c.want)
		}
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.List(stopped, "ann", "", 1, Query{Prompt: "cow"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a search that nobody waits for: %v", err)
	}
}
