package page

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// get requests a path of the page.
func get(t *testing.T, method, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	answer := w.Result()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

func TestPage(t *testing.T) {
	answer, text := get(t, "GET", "/", nil)
	kind := answer.Header.Get("Content-Type")
	if answer.StatusCode != 200 || kind != "text/html; charset=utf-8" || !strings.Contains(text, "<h1>gomflux") {
		t.Fatalf("%s %v %.200s", answer.Status, answer.Header, text)
	}
	csp := answer.Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self';") || strings.Contains(csp, "unsafe") {
		t.Errorf("Content-Security-Policy: %s", csp)
	}
	again, text := get(t, "GET", "/", http.Header{"If-None-Match": {answer.Header.Get("Etag")}})
	if again.StatusCode != http.StatusNotModified || text != "" {
		t.Errorf("%s for the same page", again.Status)
	}
	if head, text := get(t, "HEAD", "/", nil); head.StatusCode != 200 || text != "" {
		t.Errorf("HEAD: %s %q", head.Status, text)
	}
	if post, _ := get(t, "POST", "/", nil); post.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", post.Status)
	}
	for _, path := range []string{"/page/", "/page/page.go", "/page/../page.go", "/index.html", "/x"} {
		if answer, _ := get(t, "GET", path, nil); answer.StatusCode == 200 {
			t.Errorf("%s is served", path)
		}
	}
}

// files returns the page's files by their paths, following the references from /.
func files(t *testing.T) map[string]string {
	found := map[string]string{}
	reference := regexp.MustCompile(`(?:src|href)="([^"]+)"|from "([^"]+)"`)
	for todo := []string{"/"}; len(todo) > 0; {
		path := todo[0]
		todo = todo[1:]
		if _, ok := found[path]; ok {
			continue
		}
		answer, text := get(t, "GET", path, nil)
		if answer.StatusCode != 200 || answer.Header.Get("Content-Type") == "" {
			t.Fatalf("%s: %s", path, answer.Status)
		}
		found[path] = text
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			name := m[1] + m[2]
			if rest, ok := strings.CutPrefix(name, "./"); ok {
				name = "/page/" + rest
			}
			todo = append(todo, name)
		}
	}
	return found
}

func TestPageIsWhole(t *testing.T) {
	all := files(t)
	entries, err := assets.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(entries) {
		t.Errorf("%d files are used, %d are embedded", len(all), len(entries))
	}
	inline := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son[a-z]+=|javascript:|\beval\(|innerHTML|insertAdjacentHTML`)
	other := regexp.MustCompile(`(?i)https?://[^"\s]*|"//[^"]*`)
	for path, text := range all {
		if m := inline.FindString(text); m != "" {
			t.Errorf("%s has %q, which the policy forbids or which may run what others wrote", path, m)
		}
		for _, m := range other.FindAllString(text, -1) {
			if m != "http://www.w3.org/2000/svg" {
				t.Errorf("%s refers to %s", path, m)
			}
		}
	}
}

// TestPageIsLabelled checks that controls have labels, and that scripts use ids that exist.
func TestPageIsLabelled(t *testing.T) {
	all := files(t)
	page := all["/"]
	var ids []string
	for _, m := range regexp.MustCompile(`\sid="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if slices.Contains(ids, m[1]) {
			t.Errorf("the id %s is there twice", m[1])
		}
		ids = append(ids, m[1])
	}
	for _, m := range regexp.MustCompile(`<(?:input|select|textarea) id="([^"]+)"([^>]*)>`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(page, `for="`+m[1]+`"`) && !strings.Contains(m[2], `type="file"`) { // which are in their labels
			t.Errorf("%s has no label", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`(?:for|aria-labelledby|aria-describedby|list)="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(ids, m[1]) {
			t.Errorf("there is no id %s", m[1])
		}
	}
	used := 0
	for path, text := range all {
		if !strings.HasSuffix(path, ".js") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?:byID|getElementById)\("([^"]+)"\)`).FindAllStringSubmatch(text, -1) {
			if used++; !slices.Contains(ids, m[1]) {
				t.Errorf("%s: there is no id %s", path, m[1])
			}
		}
	}
	if used < 20 {
		t.Errorf("%d uses of ids were found", used)
	}
}
