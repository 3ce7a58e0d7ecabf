package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"iter"
	"net/http"
	"net/http/httptest"
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

func TestFollow(t *testing.T) {
	all := func(ctx context.Context) iter.Seq[int] {
		return func(yield func(int) bool) {
			for i := 1; i < 4 && ctx.Err() == nil && yield(i); i++ {
				time.Sleep(2 * time.Second)
			}
		}
	}
	for name, test := range map[string]struct {
		until int // the event whose sending fails, or at which the client goes away
		gone  bool
		text  string
		err   string
	}{
		"to the end": {text: "data: 1\n\n:\n\ndata: 2\n\n:\n\ndata: 3\n\n:\n\n"},
		"an error":   {until: 2, text: "data: 1\n\n:\n\n", err: "2"},
		"gone":       {until: 2, gone: true, text: "data: 1\n\n:\n\ndata: 2\n\n:\n\n"},
	} {
		synctest.Test(t, func(t *testing.T) { // which fails if goroutines are left
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := httptest.NewRecorder()
			s := &Stream{ResponseWriter: w}
			r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
			err := Follow(s, r, 1500*time.Millisecond, all, func(_ context.Context, i int) error {
				switch {
				case i != test.until:
				case test.gone:
					cancel()
				default:
					return errors.New("2")
				}
				return s.Event(0, "", i)
			})
			if w.Body.String() != test.text || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("%s: %q, %v", name, w.Body, err)
			}
			time.Sleep(time.Minute)
		})
	}
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
	if err == nil || !strings.Contains(err.Error(), "4x2: more pixels than the 7 ") || left != 7 {
		t.Errorf("%d pixels left (%v)", left, err)
	}
	if _, err := DecodeImage([]byte("GIF89a"), &left); err == nil || left != 7 {
		t.Errorf("%d pixels left (%v)", left, err)
	}
}
