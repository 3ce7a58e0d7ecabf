package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// smallModels are goldens of every pipeline class and of those whose defaults a config changes, with
// these defaults, by the published model that they stand for.
var smallModels = map[string]struct {
	golden   string
	steps    int
	guidance float64
}{
	"z-image":              {"zimage-ordinary", 50, 5},
	"flux1-schnell":        {"flux1-schnell-ordinary", 4, 0},
	"flux1-dev":            {"flux1-dev-small", 28, 3.5},
	"flux1-kontext-dev":    {"flux1-kontext", 28, 2.5},
	"flux1-fill-dev":       {"flux1-fill", 50, 30},
	"flux2-klein-4b":       {"flux2-klein", 4, 1},
	"flux2-klein-base-4b":  {"flux2-klein-base", 50, 4},
	"flux2-klein-9b-kv":    {"flux2-klein-kv", 4, 1},
	"flux2-dev":            {"flux2-dev", 50, 4},
	"flux3-klein":          {"flux3-klein", 16, 1},
	"flux3-klein-base":     {"flux3-klein-base", 50, 3.5},
	"qwen-image":           {"qwen-image-ordinary", 50, 4},
	"qwen-image-edit":      {"qwen-edit", 50, 4},
	"qwen-image-layered":   {"qwen-layered", 50, 4},
	"qwen-image-edit-2509": {"qwen-edit-plus", 50, 4},
	"qwen-image-2.1":       {"qwen-image-21", 40, 1},
	"qwen-image-2.1-turbo": {"qwen-image-21-turbo", 3, 1},
	"krea-2":               {"krea-2", 8, 0},
	"krea-2-raw":           {"krea-2-raw", 28, 4.5},
	"anima":                {"anima", 50, 4},
	"ernie-image":          {"ernie-image", 50, 4},
}

// A servedState is a state of a model, and how the server answers for it.
type servedState struct {
	spoil   func(t *testing.T, folder string) // changes the copy of a golden
	missing string                            // regular expression for the reason, "" for a usable model
	later   string                            // the same for what is known when the model is loaded only
	once    bool                              // independent of the pipeline class
}

// servedStates are the states of models in the Hugging Face cache, by the owner of their repositories.
var servedStates = map[string]servedState{
	"sound": {},
	"incomplete": {
		func(t *testing.T, folder string) { remove(t, filepath.Join(folder, "transformer/*.safetensors")) },
		`incomplete: .*transformer.*safetensors.* \(gomflux pull `, "", false,
	},
	"truncated": {
		func(t *testing.T, folder string) {
			for _, name := range matching(t, filepath.Join(folder, "transformer/*.safetensors")) {
				info, err := os.Stat(name)
				if err == nil {
					err = os.Truncate(name, info.Size()-8)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		},
		"incomplete: .*transformer.*truncated", "", false,
	},
	"garbled": {
		func(t *testing.T, folder string) {
			overwrite(t, filepath.Join(folder, "transformer/config.json"), `{"a":`)
		},
		"incomplete: .*transformer/config.json: line 1: ", "", false,
	},
	"indexless": {
		func(t *testing.T, folder string) { overwrite(t, filepath.Join(folder, "model_index.json"), `[]`) },
		"incomplete: .*model_index.json", "", true,
	},
	"unknown": {
		func(t *testing.T, folder string) {
			overwrite(t, filepath.Join(folder, "model_index.json"), `{"_class_name": "OtherPipeline"}`)
		},
		"not supported: .*OtherPipeline", "", true,
	},
	"wordless": {
		func(t *testing.T, folder string) {
			for _, name := range []string{"vocab.json", "tokenizer.json"} {
				names, _ := filepath.Glob(filepath.Join(folder, "*", name))
				for _, name := range names {
					overwrite(t, name, "{}")
				}
			}
		},
		"incomplete: .*(tokenizer|vocab).json", "", true,
	},
	"unfit": { // which only running it shows
		func(t *testing.T, folder string) {
			for _, name := range matching(t, filepath.Join(folder, "transformer/*.safetensors")) {
				modeltest.Edit(t, name, func(tensors map[string]*checkpoint.Array) {
					for _, x := range tensors {
						modeltest.Fill(x, func(int, float32) float32 { return float32(math.NaN()) })
					}
				})
			}
		},
		"", "transformer.*(NaN|not finite)", false,
	},
}

func matching(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: nothing (%v)", pattern, err)
	}
	return names
}

func remove(t *testing.T, pattern string) {
	t.Helper()
	for _, name := range matching(t, pattern) {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

func overwrite(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// declared returns the pipeline of a golden.
func declared(t *testing.T, model string) *family.Declared {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(model)
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Read(fsys)
	if err != nil {
		t.Fatal(err)
	}
	d, err := family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// An expectedModel is what a server should answer for a model.
type expectedModel struct {
	name     string
	defaults family.Defaults
	declared *family.Declared
	servedState
}

// servedModel is a model in the answer of /api/v1/models.
type servedModel struct {
	Name, Missing, Licence string
	Edits                  bool
	Multiple               bool
	Default                bool
	Defaults               struct {
		Steps, Height, Width int
		Guidance             float64
	}
}

// TestServedModels asks each route for models of all pipeline classes in every state: by name, by
// folder, found in the cache, gated, incomplete, damaged and being downloaded. None hides others, and
// what is a model's fault is no internal error.
func TestServedModels(t *testing.T) {
	const gated = "flux1-krea-dev" // on the hub, with a token only
	cache := t.TempDir()
	args := []string{"--no-gallery", "--device", "cpu", "--pull"}
	var all []expectedModel
	classes, folders := map[string]bool{}, 0
	for _, name := range slices.Sorted(maps.Keys(smallModels)) {
		small := smallModels[name]
		folder := modeltest.Folder(t, small.golden)
		d, own := declared(t, folder), family.Defaults{Steps: small.steps, Guidance: small.guidance}
		again := classes[d.Class.Name]
		classes[d.Class.Name] = true
		preset, ok := catalog.FindPreset(name)
		if !ok {
			t.Fatalf("%s is no published model", name)
		}
		own.Height = preset.Defaults.Height
		hubtest.Cache(t, cache, preset.Repo, folder)
		args = append(args, "--model", folder, "--model", preset.Repo)
		listed := filepath.Base(folder) // all folders have the same name
		if folders++; folders > 1 {
			listed += "-" + strconv.Itoa(folders)
		}
		all = append(all, expectedModel{name: listed, defaults: own, declared: d},
			expectedModel{name: name, defaults: preset.Defaults, declared: d},
			expectedModel{name: preset.Repo, defaults: preset.Defaults, declared: d})
		for _, owner := range slices.Sorted(maps.Keys(servedStates)) {
			state := servedStates[owner]
			if again && state.missing != "" || state.once && len(all) > len(servedStates) {
				continue
			}
			repo := owner + "/small-" + name
			copied := hubtest.Cache(t, cache, repo, folder)
			if state.spoil != nil {
				state.spoil(t, copied)
			}
			all = append(all, expectedModel{repo, own, d, state})
		}
	}
	for _, name := range family.Classes() {
		if !classes[name] {
			t.Errorf("smallModels lacks a model of %s", name)
		}
	}
	all = append(all, expectedModel{name: gated, servedState: servedState{missing: `not downloaded \(gomflux pull ` + gated}})

	files, err := hubtest.ReadFiles(os.DirFS(modeltest.Folder(t, "flux1-dev-small")))
	if err != nil {
		t.Fatal(err)
	}
	preset, _ := catalog.FindPreset(gated)
	hub := hubtest.New(t, preset.Repo, files)
	hub.Token = "secret"
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_TOKEN", "")
	_, address, stderr := startServeIn(t, cache, args...)
	s := &askedServer{t, strings.TrimSuffix(address, "/")}
	s.checkLists(all)
	for i, m := range all {
		s.checkModel(m, i)
	}
	s.checkDownload(gated, hub)
	s.checkLists(all[:len(all)-1])
	if log := stderr.String(); strings.Contains(log, "internal error") || strings.Contains(log, "status=500") {
		t.Errorf("log: %s", log)
	}
}

// An askedServer is a server that a test asks.
type askedServer struct {
	*testing.T
	address string
}

// ask sends a request, checks the answer's status and text, and decodes it.
func (s *askedServer) ask(method, path, body string, status int, text string, into any) {
	s.Helper()
	got, found := askServe(s.T, method, s.address+path, "", body)
	if got != status || !regexp.MustCompile(text).MatchString(found) {
		s.Errorf("%s %s %.200s: status %d, expected %d with %q: %.600s", method, path, body, got, status, text, found)
	} else if into != nil {
		if err := json.Unmarshal([]byte(found), into); err != nil {
			s.Errorf("%s %s: %v: %.300s", method, path, err, found)
		}
	}
}

// checkLists asks the routes that list models, or need the list.
func (s *askedServer) checkLists(all []expectedModel) {
	s.Helper()
	var native struct{ Models []servedModel }
	s.ask("GET", "/api/v1/models", "", 200, "", &native)
	var openai struct{ Data []struct{ ID string } }
	s.ask("GET", "/v1/models", "", 200, "", &openai)
	var titles []struct{ Title string }
	s.ask("GET", "/sdapi/v1/sd-models", "", 200, "", &titles)
	ids, usable := []string{}, []string{}
	for _, m := range openai.Data {
		ids = append(ids, m.ID)
	}
	for i, m := range titles {
		if i >= len(ids) || ids[i] != m.Title {
			s.Errorf("sd-models differs from /v1/models in %s", m.Title)
		}
	}
	listed := map[string]servedModel{}
	for _, m := range native.Models {
		listed[m.Name] = m
		if m.Missing == "" {
			usable = append(usable, m.Name)
		}
	}
	if !slices.Equal(ids, usable) || !slices.Contains(ids, "shapes") {
		s.Errorf("/v1/models has %q, expected %q", ids, usable)
	}
	for _, want := range all {
		got, ok := listed[want.name]
		if !ok {
			s.Errorf("%s is not listed", want.name)
			continue
		}
		if (got.Missing == "") != (want.missing == "") || !regexp.MustCompile(want.missing).MatchString(got.Missing) {
			s.Errorf("%s: missing %q, expected %q", want.name, got.Missing, want.missing)
		}
		if want.missing != "" {
			continue
		}
		if d := want.defaults; got.Defaults.Steps != d.Steps || got.Defaults.Guidance != d.Guidance ||
			got.Defaults.Height != cmp.Or(d.Height, 1024) {
			s.Errorf("%s: defaults %+v, expected %+v", want.name, got.Defaults, d)
		}
		if n := want.declared.Class.References; got.Edits != (n > 0) || got.Multiple != (n > 1) {
			s.Errorf("%s: edits %v, several %v, expected up to %d references", want.name, got.Edits, got.Multiple, n)
		}
	}
	s.ask("GET", "/healthz?deep=1", "", 200, fmt.Sprintf(`"models":%d,"status":"ok"`, len(usable)), nil)
	for path, text := range map[string]string{
		"/healthz": `^{"status":"ok"}`, "/": `"steps":`, "/metrics": "gomflux_jobs", "/version": "platform", "/api/v1/loras": "loras",
		"/api/v1/jobs": "jobs", "/api/v1/openapi.json": "paths", "/sdapi/v1/options": "sd_model_checkpoint", "/sdapi/v1/samplers": "Euler",
		"/sdapi/v1/schedulers": "automatic", "/sdapi/v1/upscalers": "None", "/sdapi/v1/loras": "", "/sdapi/v1/progress": "progress",
		"/api/v1/pulls": `"allowed":true`, "/page/api.js": "",
	} {
		s.ask("GET", path, "", 200, text, nil)
	}
	s.ask("GET", "/api/v1/pictures", "", 404, "no gallery", nil)
}

// generations are the routes that generate images, with bodies for a model.
var generations = []struct{ path, body string }{
	{"/api/v1/jobs", `{"prompt": "a cat", "model": %q, "steps": 1, "width": 64, "height": 64%s}`},
	{"/v1/images/generations", `{"prompt": "a cat", "model": %q, "steps": 1, "size": "64x64"%s}`},
	{"/sdapi/v1/txt2img", `{"prompt": "a cat", "override_settings": {"sd_model_checkpoint": %q}, "steps": 1, "width": 64, "height": 64%s}`},
}

// editing are the routes that take images, with bodies for a model and a PNG file.
var editing = []struct{ path, body string }{
	{"/api/v1/jobs", `{"prompt": "a cat", "model": %q, "image": {"data": %q}}`},
	{"/v1/images/edits", `{"prompt": "a cat", "model": %q, "image": "data:image/png;base64,%s"}`},
	{"/sdapi/v1/img2img", `{"prompt": "a cat", "override_settings": {"sd_model_checkpoint": %q}, "init_images": [%q]}`},
}

// whitePNG returns a PNG file of 64x64 white pixels in base64.
func whitePNG(t *testing.T) string {
	t.Helper()
	white := image.NewGray(image.Rect(0, 0, 64, 64))
	for i := range white.Pix {
		white.Pix[i] = 255
	}
	var b bytes.Buffer
	if err := png.Encode(&b, white); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// checkModel asks for a model, the i-th, and for images of it: a golden in its own folder generates one,
// through one of the routes.
func (s *askedServer) checkModel(m expectedModel, i int) {
	s.Helper()
	options, _ := json.Marshal(map[string]string{"sd_model_checkpoint": m.name})
	if m.missing == "" {
		s.ask("GET", "/v1/models/"+m.name, "", 200, "", nil)
		s.ask("POST", "/sdapi/v1/options", string(options), 200, "", nil)
	} else {
		s.ask("GET", "/v1/models/"+m.name, "", 404, m.missing, nil)
		s.ask("POST", "/sdapi/v1/options", string(options), 404, m.missing, nil)
	}
	if m.missing != "" {
		for _, route := range editing {
			s.ask("POST", route.path, fmt.Sprintf(route.body, m.name, whitePNG(s.T)), 404, m.missing, nil)
		}
	}
	one := i % len(generations)
	if m.missing == "" && !m.fromPrompt() {
		one = 0
	}
	for k, route := range generations {
		status, text := http.StatusOK, ""
		switch {
		case m.missing != "":
			status, text = http.StatusNotFound, m.missing
		case k == one && k == 0 && (m.later != "" || filepath.IsAbs(m.name)):
			s.checkJob(m)
			continue
		case m.later != "" && k > 0 && m.fromPrompt():
			status, text = http.StatusNotFound, m.later
		case k != one || !filepath.IsAbs(m.name):
			continue
		}
		s.ask("POST", route.path, fmt.Sprintf(route.body, m.name, ""), status, text, nil)
	}
}

// fills reports whether the model needs a mask.
func (m *expectedModel) fills() bool {
	_, ok := m.declared.Pipeline.(family.Filler)
	return ok
}

// fromPrompt reports whether the model generates images from a prompt alone.
func (m *expectedModel) fromPrompt() bool {
	editor, edits := m.declared.Pipeline.(family.Editor)
	return !m.fills() && (!edits || editor.CheckReferences(0) == nil)
}

// checkJob generates an image with what the model needs.
func (s *askedServer) checkJob(m expectedModel) {
	s.Helper()
	more, file := "", fmt.Sprintf(`{"data": %q}`, whitePNG(s.T))
	if m.fills() {
		more = fmt.Sprintf(`, "image": %s, "mask": %s`, file, file)
	} else if m.declared.Class.References > 0 {
		more = fmt.Sprintf(`, "references": [%s]`, file)
	}
	var job struct {
		ID, State string
		Error     struct{ Code, Message string }
	}
	s.ask("POST", generations[0].path, fmt.Sprintf(generations[0].body, m.name, more), 202, "", &job)
	for began := time.Now(); job.ID != "" && job.State != "done" && job.State != "failed"; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			s.Fatalf("%s: the job is %+v", m.name, job)
		}
		s.ask("GET", "/api/v1/jobs/"+job.ID, "", 200, "", &job)
	}
	if m.later == "" {
		if job.State != "done" {
			s.Errorf("%s: job %+v", m.name, job)
		}
	} else if job.State != "failed" || job.Error.Code != "not_found" || !regexp.MustCompile(m.later).MatchString(job.Error.Message) {
		s.Errorf("%s: job %+v, expected %q", m.name, job, m.later)
	}
}

// checkDownload downloads a gated model, first without access, and asks for it meanwhile.
func (s *askedServer) checkDownload(name string, hub *hubtest.Hub) {
	s.Helper()
	body := fmt.Sprintf(`{"model": %q}`, name)
	s.ask("GET", "/api/v1/pulls", "", 200, name+`".*"gated":true,"access":"accept its conditions`, nil)
	var pull struct{ ID, State string }
	wait := func(state string) {
		s.Helper()
		for began := time.Now(); pull.State != state; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				s.Fatalf("the download is %s, expected %s", pull.State, state)
			}
			s.ask("GET", "/api/v1/pulls/"+pull.ID, "", 200, "", &pull)
		}
	}
	s.ask("POST", "/api/v1/pulls", body, 202, "", &pull)
	wait("failed")
	s.ask("GET", "/api/v1/pulls/"+pull.ID, "", 200, "no_access", nil)
	hub.Set(func() { hub.Token = "" })
	release, _ := hub.Hold()
	defer release()
	s.ask("POST", "/api/v1/pulls", body, 202, "", &pull)
	wait("running")
	for _, route := range generations {
		s.ask("POST", route.path, fmt.Sprintf(route.body, name, ""), 404, "gomflux pull "+name, nil)
	}
	s.ask("POST", generations[1].path, fmt.Sprintf(generations[1].body, "shapes", ""), http.StatusOK, "", nil)
	release()
	wait("done")
	s.ask("POST", generations[1].path, fmt.Sprintf(generations[1].body, name, ""), http.StatusOK, "", nil)
}
