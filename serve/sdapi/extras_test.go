package sdapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// sizeOf returns the size of an image file in base64.
func sizeOf(t *testing.T, text string) string {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := picture.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(p.Image.Rect.Size())
}

// TestExtras enlarges images as AUTOMATIC1111's clients ask for it.
func TestExtras(t *testing.T) {
	e := engine.New(engine.Config{})
	defer e.Close(t.Context())
	_, s := serve(t, api.Adapted{Engine: e}, api.Config{MaxPixels: 1 << 16})
	var one struct {
		Image string `json:"image"`
	}
	for body, want := range map[string]string{
		`{"image":%q,"upscaler_1":"Lanczos","upscaling_resize":3}`:                                                              "(12,15)",
		`{"image":%q,"upscaler_1":"lanczos"}`:                                                                                   "(8,10)",
		`{"image":%q,"upscaler_1":"Lanczos","resize_mode":1,"upscaling_resize_w":9,"upscaling_resize_h":20}`:                    "(9,20)",
		`{"image":%q,"upscaler_1":"None","upscaling_resize":4}`:                                                                 "(4,5)",
		`{"image":"data:image/png;base64,` + pngFile(6, 7) + `","upscaler_1":"Lanczos","unused":%q,"show_extras_results":true}`: "(12,14)",
	} {
		got := call(t, s, http.MethodPost, "/sdapi/v1/extra-single-image", fmt.Sprintf(body, pngFile(4, 5)))
		if err := json.Unmarshal(got.body, &one); err != nil || got.status != 200 || sizeOf(t, one.Image) != want {
			t.Errorf("%s: status %d, %v, expected %s", body, got.status, err, want)
		}
	}
	body := fmt.Sprintf(`{"upscaler_1":"Lanczos","imageList":[{"data":%q,"name":"a"},{"data":%q}]}`, pngFile(4, 5), pngFile(3, 3))
	got := call(t, s, http.MethodPost, "/sdapi/v1/extra-batch-images", body)
	var several struct {
		Images []string `json:"images"`
	}
	if err := json.Unmarshal(got.body, &several); err != nil || len(several.Images) != 2 || sizeOf(t, several.Images[1]) != "(6,6)" {
		t.Errorf("status %d %s: %v", got.status, got.body, err)
	}
	for scale, want := range map[int]string{
		8: "size 792x792: expected at most 65536 pixels (a scale of 2.58)", 99: "scale 99: must be from 1 to 8",
		0: "upscaling_resize: expected a number from 1, found 0",
	} {
		body := fmt.Sprintf(`{"image":%q,"upscaler_1":"Lanczos","upscaling_resize":%d}`, pngFile(99, 99), scale)
		got := call(t, s, http.MethodPost, "/sdapi/v1/extra-single-image", body)
		if got.status < 400 || got.status > 422 || !strings.Contains(string(got.body), want) {
			t.Errorf("status %d %s, expected %s", got.status, got.body, want)
		}
	}
}
