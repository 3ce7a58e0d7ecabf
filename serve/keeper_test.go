package serve

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
)

// A settingModel generates images whose settings can be stored.
type settingModel struct{ *fakeModel }

func (m settingModel) Generate(_ context.Context, o gomflux.Options) (*gomflux.Result, error) {
	return &gomflux.Result{Image: image.NewRGBA(image.Rect(0, 0, 16, 16)), Settings: picture.Settings{
		Generator: "gomflux test", Model: "fake", Prompt: o.Prompt, Seed: *o.Seed, Steps: 1, Width: 16, Height: 16,
	}}, nil
}

// TestAllImagesAreKept generates images with each API. Each client finds its own in the gallery, as
// the files that the APIs answered with.
func TestAllImagesAreKept(t *testing.T) {
	g, err := gallery.Open(t.TempDir(), gallery.DefaultSize)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	s, _, _ := newTest(t, func(c *Config) {
		withTokens(c)
		c.Gallery, c.MaxBody = g, 1<<20
		c.Engine = engine.New(engine.Config{
			Open: func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
				return settingModel{&fakeModel{}}, nil
			},
			Models: func() []engine.ModelInfo {
				return []engine.ModelInfo{{Name: "fake", Default: true, Defaults: gomflux.Defaults{Steps: 1, Height: 16, Width: 16}}}
			},
			Queue: 4, KeepAlive: time.Hour, Keep: time.Hour,
		})
		t.Cleanup(func() { c.Engine.Close(context.Background()) })
	})
	ann := []string{"Authorization", "Bearer 0123456789abcdef", "Content-Type", "application/json"}
	bob := []string{"Authorization", "Bearer fedcba9876543210", "Content-Type", "application/json"}
	var input bytes.Buffer
	if err := picture.Encode(&input, picture.PNG, image.NewRGBA(image.Rect(0, 0, 16, 16)), nil); err != nil {
		t.Fatal(err)
	}
	post := func(client []string, path, body string, into any) {
		t.Helper()
		w := ask(s, "POST", path, strings.NewReader(body), client...)
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code/100 != 2 {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	var openai struct {
		Data []struct {
			B64JSON []byte `json:"b64_json"`
		}
	}
	post(ann, "/v1/images/generations", `{"prompt":"of openai","size":"16x16","n":2,"seed":7}`, &openai)
	var automatic struct{ Images []string }
	post(bob, "/sdapi/v1/img2img", fmt.Sprintf(`{"prompt":"of automatic","seed":3,"denoising_strength":0.5,"init_images":[%q]}`,
		base64.StdEncoding.EncodeToString(input.Bytes())), &automatic)
	var job struct{ ID string }
	post(bob, "/api/v1/jobs", `{"prompt":"own","seed":4}`, &job)
	if w := ask(s, "GET", "/api/v1/jobs/"+job.ID+"/events", nil, bob...); !strings.Contains(w.Body.String(), "event: done") {
		t.Fatalf("events %s", w.Body)
	}
	if err := s.Engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.finish(t.Context()); err != nil {
		t.Fatal(err)
	}

	automaticFile, err := base64.StdEncoding.DecodeString(automatic.Images[0])
	if err != nil {
		t.Fatal(err)
	}
	kept, ok := s.Engine.Job(job.ID, "bob")
	if !ok || len(kept.Pictures()) != 1 || kept.Pictures()[0].Result.Image != nil {
		t.Error("a job keeps the pixels of an image that is in the gallery")
	}
	ofJob := ask(s, "GET", "/api/v1/jobs/"+job.ID+"/pictures/0", nil, bob...).Body.Bytes()
	answered := map[string][]byte{
		"of openai 7": openai.Data[0].B64JSON, "of openai 8": openai.Data[1].B64JSON, "of automatic 3": automaticFile, "own 4": ofJob,
	}
	for _, test := range []struct {
		client []string
		want   string // newest first
	}{{ann, "of openai 8, of openai 7"}, {bob, "own 4, of automatic 3"}} {
		var list struct {
			Pictures []struct {
				URL      string
				Settings picture.Settings
			}
		}
		w := ask(s, "GET", "/api/v1/pictures", nil, test.client...)
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, p := range list.Pictures {
			name := fmt.Sprint(p.Settings.Prompt, " ", p.Settings.Seed)
			found = append(found, name)
			file := ask(s, "GET", p.URL, nil, test.client...).Body.Bytes()
			if !bytes.Equal(file, answered[name]) {
				t.Errorf("%s: the gallery has another file than the answer", name)
			}
			if (p.Settings.Image != nil) != (name == "of automatic 3") {
				t.Errorf("%s: start image %v", name, p.Settings.Image)
			}
		}
		if got := strings.Join(found, ", "); got != test.want {
			t.Errorf("gallery %q, expected %q", got, test.want)
		}
	}
}
