package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
)

func TestSeeds(t *testing.T) {
	first := uint64(1<<64 - 2)
	if seeds := Seeds(&first, 2); !slices.Equal(seeds, []uint64{first, first + 1}) {
		t.Errorf("seeds %d", seeds)
	}
	seeds := Seeds(nil, 100)
	slices.Sort(seeds)
	if len(slices.Compact(seeds)) < 99 || seeds[0] > 1<<29 || seeds[99] < 1<<31 || seeds[99] >= 1<<32 {
		t.Errorf("random seeds from %d to %d", seeds[0], seeds[99])
	}
}

func TestEncodePNG(t *testing.T) {
	s := picture.Settings{
		Generator: "gomflux test", Model: "m", Prompt: "a cat", Steps: 4, Height: 8, Width: 8, Created: time.Unix(1e9, 0), Seconds: 5,
	}
	encode := func(s picture.Settings) ([]byte, *picture.Found) {
		var b bytes.Buffer
		if err := EncodePNG(&b, image.NewRGBA(image.Rect(0, 0, 8, 8)), s); err != nil {
			t.Fatal(err)
		}
		found, err := picture.ReadSettings(bytes.NewReader(b.Bytes()))
		if err != nil {
			found = nil
		}
		return b.Bytes(), found
	}
	first, found := encode(s)
	if found == nil || found.Settings.Prompt != "a cat" || found.Settings.Seconds != 0 || !found.Settings.Created.IsZero() {
		t.Errorf("settings %+v", found)
	}
	s.Created, s.Seconds = time.Now(), 6
	if again, _ := encode(s); !bytes.Equal(first, again) {
		t.Error("the file depends on the time")
	}
	s.Prompt = strings.Repeat("x", 1<<24)
	if _, found := encode(s); found != nil || Recorded(s) != nil {
		t.Error("settings that cannot be stored are stored")
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if goroutines are left
		var all iter.Seq[engine.Event] = func(yield func(engine.Event) bool) {
			for i := 1; yield(engine.Event{Number: i}); i++ {
				if i == 3 {
					return
				}
			}
		}
		var numbers []int
		for e := range Events(t.Context(), all) {
			numbers = append(numbers, e.Number)
		}
		if !slices.Equal(numbers, []int{1, 2, 3}) {
			t.Errorf("events %d", numbers)
		}
		ctx, cancel := context.WithCancel(t.Context())
		c := Events(ctx, all)
		<-c
		cancel()
		synctest.Wait()
		if e, ok := <-c; ok {
			t.Errorf("event %d after the end", e.Number)
		}
	})
}

func TestStatus(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
	}{
		{&http.MaxBytesError{Limit: 1}, 413},
		{&engine.FullError{}, 429},
		{engine.ErrClosed, 503},
		{errs.NotFound(errors.New("no such model")), 404},
		{errs.Requestf("steps -1"), 400},
		{&gomflux.LoRAError{Unmatched: []string{"a"}}, 400},
		{gomflux.ErrMemory, 500},
		{errors.New("oh"), 500},
	} {
		if status := Status(fmt.Errorf("job 1: %w", test.err)); status != test.status {
			t.Errorf("%T: status %d, expected %d", test.err, status, test.status)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for d, expected := range map[time.Duration]string{
		0: "1", -time.Second: "1", time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", time.Minute: "60",
	} {
		h := http.Header{}
		SetRetryAfter(h, fmt.Errorf("job 1: %w", &engine.FullError{Retry: d}))
		if text := h.Get("Retry-After"); text != expected {
			t.Errorf("%v: Retry-After %q, expected %s", d, text, expected)
		}
	}
	h := http.Header{}
	if SetRetryAfter(h, engine.ErrClosed); len(h) > 0 {
		t.Errorf("headers %v", h)
	}
}

func TestCutDataURL(t *testing.T) {
	for text, expected := range map[string][3]string{
		"data:image/png;base64,AA==":       {"image/png", "AA==", "ok"},
		"data:text/plain;x=y;base64,A,A==": {"text/plain;x=y", "A,A==", "ok"},
		"data:;base64,":                    {"", "", "ok"},
		"data:image/png,AA==":              {},
		"data:image/png;base64":            {},
		"image/png;base64,AA==":            {},
		"AA==":                             {},
		"":                                 {},
	} {
		media, data, ok := CutDataURL(text)
		found := [3]string{media, data}
		if ok {
			found[2] = "ok"
		}
		if found != expected {
			t.Errorf("%s: %q, expected %q", text, found, expected)
		}
	}
}

func TestDecodeImage(t *testing.T) {
	var file bytes.Buffer
	if err := picture.Encode(&file, picture.PNG, image.NewRGBA(image.Rect(0, 0, 4, 2)), nil); err != nil {
		t.Fatal(err)
	}
	left := 15
	p, err := DecodeImage(file.Bytes(), &left)
	if err != nil || p.Image.Bounds().Dx() != 4 || left != 7 {
		t.Errorf("image %+v, %d pixels left (%v)", p, left, err)
	}
	// the pixels are cut off, but the size is read first
	_, err = DecodeImage(file.Bytes()[:40], &left)
	if large, ok := errors.AsType[*SizeError](err); !ok || *large != (SizeError{4, 2, 7}) || left != 7 {
		t.Errorf("%d pixels left (%v)", left, err)
	}
	if _, err := DecodeImage([]byte("GIF89a"), &left); err == nil || left != 7 {
		t.Errorf("%d pixels left (%v)", left, err)
	}
}
