package main

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/hubtest"
)

// TestServePull downloads a model from a fake hub through a server, which then lists it as ready.
func TestServePull(t *testing.T) {
	const repo, name = "Tongyi-MAI/Z-Image-Turbo", "z-image-turbo"
	files, err := hubtest.ReadFiles(os.DirFS(tinyModel))
	if err != nil {
		t.Fatal(err)
	}
	h := hubtest.New(t, repo, files)
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_TOKEN", "")
	_, address, stderr := startServe(t, "--model", "shapes", "--no-gallery")
	ask := func(method, path, body string, status int, into any) {
		t.Helper()
		got, text := askServe(t, method, address+path, "", body)
		if got != status {
			t.Fatalf("%s %s: status %d, expected %d: %s", method, path, got, status, text)
		}
		if into == nil {
			return
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	var plan struct {
		TotalBytes int64 `json:"total_bytes"`
		Bytes      int64
		Model      struct{ Licence string }
	}
	ask("POST", "api/v1/pulls", `{"model":"`+name+`","dry_run":true}`, 200, &plan)
	if plan.TotalBytes == 0 || plan.Bytes != 0 || plan.Model.Licence != "Apache-2.0" {
		t.Errorf("plan %+v", plan)
	}
	var pull struct{ ID, State string }
	ask("POST", "api/v1/pulls", `{"model":"`+name+`"}`, 202, &pull)
	for began := time.Now(); pull.State != "done"; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute || pull.State == "failed" {
			t.Fatalf("the download is %+v: %s", pull, stderr)
		}
		ask("GET", "api/v1/pulls/"+pull.ID, "", 200, &pull)
	}
	ready := func() bool {
		var list struct {
			Models []struct{ Name, Missing string }
		}
		ask("GET", "api/v1/models", "", 200, &list)
		for _, m := range list.Models {
			if m.Name == name {
				return m.Missing == ""
			}
		}
		return false
	}
	for began := time.Now(); !ready(); time.Sleep(20 * time.Millisecond) { // just before the download is reported
		if time.Since(began) > 5*time.Second { // less than relist
			t.Fatal("the model is not listed")
		}
	}
	ask("POST", "api/v1/pulls", `{"model":"`+name+`"}`, 404, nil) // complete
}
