package native

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/pulls"
)

// servePulls returns a service with a fake hub that has the model me/mine.
func servePulls(t *testing.T, refusal string) (*service, *hubtest.Hub) {
	h := hubtest.New(t, "me/mine", map[string][]byte{
		"model_index.json":                        []byte(`{"_class_name": "Test", "vae": ["diffusers", "AutoencoderKL"]}`),
		"vae/config.json":                         []byte(`{}`),
		"vae/diffusion_pytorch_model.safetensors": make([]byte, 1<<20),
	})
	cache := t.TempDir()
	for name, value := range map[string]string{"HF_HUB_CACHE": cache, "HF_HOME": cache, "HF_TOKEN": "", "HF_ENDPOINT": h.URL} {
		t.Setenv(name, value)
	}
	p := pulls.New(pulls.Config{
		Models: func() []pulls.Model {
			return []pulls.Model{
				{Name: "mine", Repo: "me/mine", Command: "gomflux pull mine"},
				{
					Name: "other", Repo: "me/other", Licence: family.Licence{
						Name: "Own", URL: "https://example.org/", Commercial: family.CommercialForbidden, Terms: "no commercial use",
					},
					Gated: true, Access: "ask me", Incomplete: true, Command: "gomflux pull other",
				},
			}
		},
		Client: hub.NewClient, Refusal: refusal, Warnings: func(*hub.Plan) []string { return []string{"large"} },
	})
	t.Cleanup(p.Close)
	return serve(t, func(c *Config) { c.Pulls, c.Private = p, true }), h
}

// A jsonPlan is what a download would fetch.
type jsonPlan struct {
	Model    pulls.Model `json:"model"`
	Commit   string      `json:"commit"`
	Files    int         `json:"files"`
	Bytes    int64       `json:"total_bytes"`
	Here     int64       `json:"bytes"`
	Warnings []string    `json:"warnings,omitempty"`
	Error    *jsonError  `json:"error,omitempty"` // why it would fail
}

func TestPulls(t *testing.T) {
	s, h := servePulls(t, "")
	release, _ := h.Hold()
	var list struct {
		Allowed bool          `json:"allowed"`
		Models  []pulls.Model `json:"models"`
		Pulls   []jsonPull    `json:"pulls"`
	}
	s.call("GET", "/api/v1/pulls", "", 200, &list)
	if !list.Allowed || len(list.Models) != 2 || len(list.Pulls) != 0 ||
		list.Models[1].Terms != "no commercial use" || list.Models[1].Access != "ask me" {
		t.Errorf("list %+v", list)
	}
	var plan jsonPlan
	s.call("POST", "/api/v1/pulls", `{"model":"mine","dry_run":true}`, 200, &plan)
	if plan.Bytes <= 1<<20 || plan.Here != 0 || plan.Files != 3 || plan.Model.Licence.Name != "mit" ||
		plan.Model.Commercial != family.CommercialAllowed || plan.Warnings[0] != "large" {
		t.Errorf("plan %+v", plan)
	}
	var pull jsonPull
	header := s.call("POST", "/api/v1/pulls", `{"model":"mine"}`, 202, &pull)
	path := "/api/v1/pulls/" + pull.ID
	if pull.Model != "mine" || pull.State.Ended() || !pull.Own || header.Get("Location") != path {
		t.Errorf("pull %+v, %v", pull, header)
	}
	s.call("POST", "/api/v1/pulls", `{"model":"other"}`, 409, nil)
	s.call("DELETE", path, "", 403, nil, "Client", "bob")
	s.call("GET", path, "", 200, &pull, "Client", "bob")
	if pull.Own || pull.State.Ended() {
		t.Errorf("another client's %+v", pull)
	}
	seen := s.followPull(path, func(p jsonPull) bool { return p.Here > 1<<18 })
	s.call("DELETE", path, "", 202, nil)
	seen = append(seen, s.followPull(path, func(jsonPull) bool { return false })...)
	if last := seen[len(seen)-1]; last.State != engine.Canceled || last.Here == 0 || last.Ended.IsZero() {
		t.Errorf("canceled: %+v", last)
	}
	release()
	s.call("POST", "/api/v1/pulls", `{"model":"mine"}`, 202, &pull)
	seen = s.followPull("/api/v1/pulls/"+pull.ID, func(jsonPull) bool { return false })
	if last := seen[len(seen)-1]; last.State != engine.Done || last.Here != plan.Bytes || last.Bytes != plan.Bytes {
		t.Errorf("done: %+v", last)
	}
	s.call("POST", "/api/v1/pulls", `{"model":"other"}`, 202, &pull)
	s.followPull("/api/v1/pulls/"+pull.ID, func(jsonPull) bool { return false })
	s.call("GET", "/api/v1/pulls/"+pull.ID, "", 200, &pull)
	if pull.State != engine.Failed || pull.Error.Code != "no_access" {
		t.Errorf("failed: %+v %+v", pull, pull.Error)
	}
	s.call("GET", "/api/v1/pulls", "", 200, &list)
	if len(list.Pulls) != 3 || list.Pulls[0].ID != pull.ID {
		t.Errorf("list %+v", list)
	}
}

// followPull reads the events of a download until done reports true or they end.
func (s *service) followPull(path string, done func(jsonPull) bool) (all []jsonPull) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), "GET", s.server.URL+path+"/events", nil)
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Client", "ann")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	kind := ""
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		switch key, value, _ := strings.Cut(lines.Text(), ": "); key {
		case "event":
			kind = value
		case "data":
			s.validate(map[string]any{"$ref": "#/components/schemas/Pull"}, []byte(value))
			var p jsonPull
			if err := json.Unmarshal([]byte(value), &p); err != nil {
				s.Fatal(err)
			}
			if p.State.Ended() != (kind != "progress") || p.State.Ended() && kind != string(p.State) {
				s.Errorf("event %s of %+v", kind, p)
			}
			if all = append(all, p); done(p) {
				return all
			}
		}
	}
	return all
}

func TestPullsRefused(t *testing.T) {
	s, h := servePulls(t, "ask the administrator")
	var list struct {
		Allowed bool          `json:"allowed"`
		Reason  string        `json:"reason"`
		Models  []pulls.Model `json:"models"`
	}
	s.call("GET", "/api/v1/pulls", "", 200, &list)
	if list.Allowed || list.Reason != "ask the administrator" || list.Models[0].Command != "gomflux pull mine" {
		t.Errorf("list %+v", list)
	}
	for body, status := range map[string]int{
		`{"model":"mine"}`:                403,
		`{"model":"mine","dry_run":true}`: 403,
		`{"model":"me/mine"}`:             404,
		`{"model":"../x"}`:                404,
		`{"model":7}`:                     400,
		`{"dry_run":true}`:                400,
		`{"model":"mine","token":"x"}`:    400,
	} {
		var answer struct{ Error jsonError }
		s.call("POST", "/api/v1/pulls", body, status, &answer)
		if status == 403 && !strings.Contains(answer.Error.Message, "ask the administrator (gomflux pull mine)") {
			t.Errorf("%s: %+v", body, answer)
		}
	}
	s.call("GET", "/api/v1/pulls/x", "", 404, nil)
	s.call("DELETE", "/api/v1/pulls/x", "", 404, nil)
	s.call("GET", "/api/v1/pulls/x/events", "", 404, nil)
	if h.Asked("hub", "api") > 0 {
		t.Error("the hub was asked")
	}
	s = serve(t, nil)
	s.call("GET", "/api/v1/pulls", "", 404, nil)
}
