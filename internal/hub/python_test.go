package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hubtest"
)

// prelude begins the programs of TestPython.
const prelude = `
import os, warnings
warnings.simplefilter("error")
from huggingface_hub import (get_hf_file_metadata, hf_hub_download, hf_hub_url, list_repo_tree, model_info, scan_cache_dir,
    snapshot_download)
from huggingface_hub import constants, file_download
repo, weight = "me/mine", "transformer/diffusion_pytorch_model.safetensors"
whole = ["README.md", "model_index.json", "*/*.safetensors", "*/config.json", "vae/empty.txt"]
def fails(f, *args, **options):
    try:
        print(f(*args, **options))
    except Exception as e: # some versions tell two kinds of missing files apart
        print(type(e).__name__.replace("Remote", ""), getattr(getattr(e, "response", None), "status_code", ""))
def get(name=repo, **options):
    return snapshot_download(name, allow_patterns=whole, **options)
def names(folder):
    paths = (os.path.relpath(os.path.join(d, f), folder) for d, _, files in os.walk(folder) for f in files)
    print(*sorted(p for p in paths if not p.startswith(".")))
def without_links():
    file_download.are_symlinks_supported = lambda *_: False
def scan():
    found = scan_cache_dir()
    for r in found.repos:
        print(r.repo_id, r.nb_files, r.size_on_disk, *sorted(r.refs))
    print(*found.warnings)
`

// TestPython has huggingface_hub use a stand-in of the hub, and caches that gomflux
// writes, and gomflux the caches that huggingface_hub writes. GOMFLUX_HF_PYTHON is a
// Python that has huggingface_hub.
func TestPython(t *testing.T) {
	python := os.Getenv("GOMFLUX_HF_PYTHON")
	if python == "" {
		t.Skip("GOMFLUX_HF_PYTHON is not set to a Python with huggingface_hub")
	}
	all := strings.Join(whole, " ") + "\n"
	size := 0
	for _, name := range whole {
		size += len(pipeline()[name])
	}
	scanned := func(name, ref string) string { return fmt.Sprintf("%s 7 %d%s\n\n", name, size, ref) }
	nothing := func(*hubtest.Hub) {}
	gomflux := func(h *hubtest.Hub) { pullAs(t, repo, "") }
	tests := []struct {
		name   string
		before func(h *hubtest.Hub)
		env    string
		code   string
		want   string // COMMIT and SHORT stand for the commit
		// what gomflux then finds; "" for nothing
		repo, revision string
	}{
		{"describes a model", nothing, "", `i = model_info(repo, files_metadata=True)
print(i.sha, i.gated, i.card_data.license, len(i.siblings), [s.size for s in i.siblings if s.rfilename == weight])`,
			"COMMIT False mit 10 [3145735]\n", "", ""},
		{"lists a tree in pages", func(h *hubtest.Hub) { h.Page = 3 }, "", `print(*(f.path for f in list_repo_tree(repo, recursive=True)))
print(*(f.path for f in list_repo_tree(repo)))
print(*(f.path for f in list_repo_tree(repo, "vae")))`,
			"README.md assets assets/teaser.png model_index.json single.safetensors transformer transformer/config.json " +
				"transformer/diffusion_pytorch_model.bin " + weight +
				" vae vae/config.json vae/diffusion_pytorch_model.safetensors vae/empty.txt\n" +
				"README.md assets model_index.json single.safetensors transformer vae\n" +
				"vae/config.json vae/diffusion_pytorch_model.safetensors vae/empty.txt\n", "", ""},
		{"downloads files", nothing, "", `print(open(hf_hub_download(repo, "vae/config.json")).read())
print(os.path.getsize(hf_hub_download(repo, weight)))
print(open(hf_hub_download(repo, "vae/config.json", local_files_only=True)).read())`, "{\"a\": 1}\n3145735\n{\"a\": 1}\n", "", ""},
		{"downloads a snapshot", nothing, "", `names(get()); scan()`, all + scanned(repo, " main"), repo, ""},
		{"has nothing to do after gomflux", gomflux, "", `names(get()); scan()`, all + scanned(repo, " main"), repo, ""},
		{"needs no network after gomflux", gomflux, "HF_HUB_OFFLINE=1", `names(get()); fails(hf_hub_download, repo, "single.safetensors")`,
			all + "LocalEntryNotFoundError \n", repo, ""},
		{"scans half a download of gomflux", func(h *hubtest.Hub) { half(t, h) }, "", `scan()`, repo + " 0 0\n\n", "", ""},
		{"removes what gomflux downloaded", gomflux, "", `scan_cache_dir().delete_revisions(model_info(repo).sha).execute(); scan()
print(os.path.exists(os.path.join(constants.HF_HUB_CACHE, "models--me--mine")))`, "\nFalse\n", "", ""},
		{"downloads a model that was renamed", func(h *hubtest.Hub) { h.Former = []string{"me/former"} }, "",
			`names(get("me/former")); scan()`, all + scanned("me/former", " main"), "me/former", ""},
		{"downloads a pull request", func(h *hubtest.Hub) { h.Revisions = append(h.Revisions, "refs/pr/1") }, "",
			`names(get(revision="refs/pr/1")); scan()`, all + scanned(repo, " refs/pr/1"), repo, "refs/pr/1"},
		{"downloads by the beginning of a commit", nothing, "", `names(get(revision=model_info(repo).sha[:7])); scan()`,
			all + scanned(repo, " SHORT"), repo, "SHORT"},
		{"downloads by links for one request", func(h *hubtest.Hub) { h.Uses = 1 }, "", `names(get())`, all, repo, ""},
		{"downloads what is in Xet storage too", func(h *hubtest.Hub) { h.Xet = true }, "", `names(get())
print(get_hf_file_metadata(hf_hub_url(repo, weight)).xet_file_data is not None)`,
			all + "True\n", repo, ""},
		{"downloads from a mirror with a path", func(h *hubtest.Hub) { h.Prefix, h.URL = "/api/hf", h.URL+"/api/hf" }, "",
			`names(get())`, all, repo, ""},
		{"downloads with a token", func(h *hubtest.Hub) { h.Token = "secret" }, "HF_TOKEN=secret", `names(get())`, all, repo, ""},
		{"waits when asked to", limited, "", `from huggingface_hub.utils import http_backoff
print(http_backoff("GET", hf_hub_url(repo, "vae/config.json"), retry_on_status_codes=429).text)`, "{\"a\": 1}\n", "", ""},
		{"shares weights between repositories", nothing, "", `names(get())
try:
    from huggingface_hub.utils._shared_blobs import publish_blob_to_shared_store as publish
except ImportError: # it is new
    publish = lambda **_: True
blobs = os.path.join(constants.HF_HUB_CACHE, "models--me--mine/blobs")
blob = max((os.path.join(blobs, b) for b in os.listdir(blobs)), key=os.path.getsize)
print(publish(blob_path=blob, xet_hash="ab" * 32, cache_dir=constants.HF_HUB_CACHE, expected_size=os.path.getsize(blob)))
scan()`, all + "True\n" + scanned(repo, " main"), repo, ""},
		{"writes no links", nothing, "", `without_links(); names(get()); scan()`, all + scanned(repo, " main"), repo, ""},
		{"uses what gomflux wrote without links", func(h *hubtest.Hub) {
			symlink = func(string, string) error { return errors.ErrUnsupported }
			gomflux(h)
			symlink = os.Symlink
		}, "", `without_links(); names(get()); scan()`, all + scanned(repo, " main"), repo, ""},
		{"notes what is not there", nothing, "", `names(get()); fails(hf_hub_download, repo, "adapter_config.json"); scan()
print(file_download.try_to_load_from_cache(repo, "adapter_config.json") is file_download._CACHED_NO_EXIST)`,
			all + "EntryNotFoundError 404\n" + scanned(repo, " main") + "True\n", repo, ""},
		{"knows no revision", nothing, "",
			`fails(model_info, repo, revision="nope"); fails(hf_hub_download, repo, "README.md", revision="nope")`,
			"RevisionNotFoundError 404\nRevisionNotFoundError 404\n", "", ""},
		{"knows no repository", nothing, "", `fails(model_info, "me/nope"); fails(model_info, "me/nope", token="other")`,
			"RepositoryNotFoundError 401\nRepositoryNotFoundError 404\n", "", ""},
		{"has no access to a private model", func(h *hubtest.Hub) { h.Private, h.Token = true, "secret" }, "",
			`fails(model_info, repo); fails(model_info, repo, token="other"); print(model_info(repo, token="secret").private)`,
			"RepositoryNotFoundError 401\nRepositoryNotFoundError 404\nTrue\n", "", ""},
		{"has no access to a gated model", func(h *hubtest.Hub) { h.Token = "secret" }, "",
			`print(model_info(repo).gated); fails(hf_hub_download, repo, weight); fails(hf_hub_download, repo, weight, token="other")`,
			"auto\nGatedRepoError 401\nGatedRepoError 403\n", "", ""},
		{"has no access to a disabled model", func(h *hubtest.Hub) { h.Disabled = true }, "", `fails(model_info, repo)`,
			"DisabledRepoError 403\n", "", ""},
		{"sends an unknown token", nothing, "", `fails(model_info, repo, token="unknown")`, "HfHubHTTPError 401\n", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cache := newCache(t)
			h := hubtest.New(t, repo, pipeline())
			t.Setenv("HF_ENDPOINT", h.URL)
			test.before(h)
			t.Setenv("HF_ENDPOINT", h.URL)
			program := exec.Command(python, "-c", prelude+test.code)
			program.Env = append(os.Environ(), "HF_TOKEN_PATH="+cache+"/home/token", "HF_HUB_DISABLE_XET=1",
				"HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", test.env)
			var said strings.Builder
			program.Stderr = &said
			out, err := program.Output()
			named := strings.NewReplacer("COMMIT", h.Commit(), "SHORT", h.Commit()[:7])
			if want := named.Replace(test.want); err != nil || string(out) != want {
				t.Fatalf("huggingface_hub printed %s, expected %s: %v\n%s", out, want, err, said.String())
			}
			if leaked := h.Leaked(); len(leaked) > 0 {
				t.Errorf("the other host was sent %q", leaked)
			}
			if test.repo == "" {
				return
			}
			// gomflux needs nothing more
			before := h.Asked("hub", weight) + h.Asked("hub", "model_index.json")
			t.Setenv("HF_TOKEN", h.Token)
			revision := named.Replace(test.revision)
			folder := pullAs(t, test.repo, revision)
			if after := h.Asked("hub", weight) + h.Asked("hub", "model_index.json"); after != before {
				t.Errorf("gomflux asked %d times for files that huggingface_hub had downloaded", after-before)
			}
			if found, err := Find(test.repo, revision); err != nil || found != folder {
				t.Errorf("found %s, %v, expected %s", found, err, folder)
			}
			if r, err := remove(test.repo, ""); err != nil || r.Bytes < int64(size) {
				t.Errorf("removed %+v, %v", r, err)
			}
			left, err := filepath.Glob(filepath.Join(cache, "[bm]*", "*", "*"))
			left = slices.DeleteFunc(left, func(path string) bool { return filepath.Ext(path) == ".lock" })
			if err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// pullAs pulls a model under a name. What is there is checked.
func pullAs(t *testing.T, repo, revision string) (folder string) {
	c, err := NewClient()
	var info *Info
	var p *Plan
	if err == nil {
		info, err = c.Info(t.Context(), repo, revision)
	}
	if err == nil {
		p, err = c.Plan(t.Context(), info, true)
	}
	if err == nil {
		folder, err = c.Pull(t.Context(), p, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// half begins a download and leaves it.
func half(t *testing.T, h *hubtest.Hub) {
	ctx, cancel := context.WithCancelCause(t.Context())
	h.Fault = func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool {
		if host == "store" {
			cancel(errors.New("enough"))
		}
		return false
	}
	if _, err := pull(ctx, fast(t, h), ""); err == nil {
		t.Fatal("the download was not left")
	}
	h.Fault = nil
}

// limited has the hub refuse the first request.
func limited(h *hubtest.Hub) {
	h.Fault = func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool {
		if host != "hub" || n > 0 {
			return false
		}
		w.Header().Set("RateLimit", `"api";r=0;t=0`)
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
}
