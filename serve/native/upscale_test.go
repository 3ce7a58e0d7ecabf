package native

import (
	"bytes"
	"image"
	"testing"
	"time"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// TestUpscale enlarges an image, which keeps its settings.
func TestUpscale(t *testing.T) {
	s := serve(t, nil)
	var list struct {
		Upscalers []struct {
			Name  string
			Scale int
		}
	}
	s.call("POST", "/api/v1/jobs", `{"prompt":"a cat","enlarge":{"upscaler":"Lanczos","refine":0.3}}`, 202, nil)
	_, q := s.engine.last()
	if o := q.Options.Enlarge; o == nil || o.Upscaler != "lanczos" || o.Scale != 2 || o.Refine.Strength != 0.3 {
		t.Errorf("enlarge %+v", o)
	}
	for _, bad := range []string{`"scale":9`, `"scale":0.5`, `"refine":1`, `"upscaler":"x"`} {
		s.call("POST", "/api/v1/jobs", `{"enlarge":{`+bad+`}}`, 400, nil)
	}
	e := engine.New(engine.Config{Keep: time.Hour})
	defer e.Close(t.Context())
	s.api = New(api.Adapted{Engine: e}, s.api.Config)
	s.call("GET", "/api/v1/upscalers", "", 200, &list)
	if n := len(list.Upscalers); n == 0 || list.Upscalers[n-1].Name != "lanczos" || list.Upscalers[n-1].Scale != 8 {
		t.Errorf("upscalers %v", list)
	}
	var b bytes.Buffer
	settings := picture.Settings{Generator: "test", Model: "m", Prompt: "a cat", Steps: 1, Height: 5, Width: 6}
	if err := picture.Encode(&b, picture.PNG, image.NewRGBA(image.Rect(0, 0, 6, 5)), &settings); err != nil {
		t.Fatal(err)
	}
	var file []byte
	s.call("POST", "/api/v1/upscale?scale=3&upscaler=Lanczos", b.String(), 200, &file)
	found, err := picture.ReadSettings(bytes.NewReader(file))
	if err != nil || found.Width != 18 || found.Height != 15 || found.Settings.Prompt != "a cat" || found.Settings.UpscaledWidth != 18 {
		t.Errorf("found %+v, %v", found, err)
	}
	for query, body := range map[string]string{
		"scale=0": b.String(), "scale=x": b.String(), "scale=9&upscaler=lanczos": b.String(), "upscaler=/etc/passwd": b.String(),
		"upscaler=lanczos": "no image",
	} {
		s.call("POST", "/api/v1/upscale?"+query, body, 400, nil)
	}
	var large bytes.Buffer // its result has more pixels than the server generates
	if err := picture.Encode(&large, picture.PNG, image.NewRGBA(image.Rect(0, 0, 200, 200)), nil); err != nil {
		t.Fatal(err)
	}
	s.call("POST", "/api/v1/upscale?upscaler=lanczos", large.String(), 400, nil)
	if jobs := e.Jobs(""); len(jobs) != 3 || jobs[2].State != engine.Done || jobs[2].Model != "lanczos" || jobs[0].State != engine.Failed {
		t.Errorf("jobs %+v", jobs)
	}
}
