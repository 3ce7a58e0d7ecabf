package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// pngBomb returns a PNG file of a few bytes with a header of 50,000x50,000 pixels.
func pngBomb() []byte {
	header := append([]byte("IHDR"), 0, 0, 0xc3, 0x50, 0, 0, 0xc3, 0x50, 8, 6, 0, 0, 0)
	b := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0d"), header...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(header))
}

// An upload is a file of a form.
type upload struct {
	field string
	data  []byte
}

// form returns the body of a form with fields, given in pairs, and files.
func form(t *testing.T, fields []string, files ...upload) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		if err := w.WriteField(fields[i], fields[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files {
		part, err := w.CreateFormFile(f.field, "a.png")
		if err != nil {
			t.Fatal(err)
		}
		part.Write(f.data)
	}
	w.Close()
	return b.String(), w.FormDataContentType()
}

// brokenModel copies the tiny model with weights that end early.
func brokenModel(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "broken")
	if err := os.CopyFS(dir, os.DirFS(tinyModel)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".safetensors" || !strings.Contains(path, "transformer") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()-8)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// mostMemory returns the largest resident memory of a process in bytes, 0 if it is not known.
func mostMemory(t *testing.T, pid int) int64 {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	kB, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return kB << 10
}

// TestServeBadInput sends to a server what no client should send: each request gets its status and
// one error, and the server goes on.
func TestServeBadInput(t *testing.T) {
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewRGBA(image.Rect(0, 0, 64, 64))); err != nil {
		t.Fatal(err)
	}
	var large bytes.Buffer
	if err := png.Encode(&large, image.NewRGBA(image.Rect(0, 0, 128, 64))); err != nil {
		t.Fatal(err)
	}
	one, bomb := small.Bytes(), pngBomb()
	bomb64 := base64.StdEncoding.EncodeToString(bomb)
	reference := `{"data": "` + base64.StdEncoding.EncodeToString(one) + `"}`
	huge := bytes.Repeat(one, 50<<20/len(one)+1)
	broken := brokenModel(t)
	server, address, stderr := startServe(t, "--model", "shapes", "--model", broken, "--no-gallery", "--device", "cpu", "--quiet")
	address = strings.TrimSuffix(address, "/")
	const (
		generations, edits   = "/v1/images/generations", "/v1/images/edits"
		txt2img, img2img     = "/sdapi/v1/txt2img", "/sdapi/v1/img2img"
		jobs, settings, JSON = "/api/v1/jobs", "/api/v1/settings", "application/json"
	)
	type request struct {
		path, kind, body string
		status           int
		message          string // regular expression
	}
	edit := func(fields []string, files ...upload) func(status int, message string) request {
		body, kind := form(t, fields, files...)
		return func(status int, message string) request { return request{edits, kind, body, status, message} }
	}
	many := make([]upload, 17)
	for i := range many {
		many[i] = upload{"image[]", one}
	}
	prompt, start := []string{"prompt", "x"}, []string{"prompt", "x", "strength", "0.5"}
	whole, kind := form(t, prompt, upload{"image", one})
	requests := []request{
		{generations, JSON, `{"prompt": `, 400, "ends too early"},
		{txt2img, JSON, `{"prompt": `, 422, "JSON"},
		{jobs, JSON, `{"prompt": `, 400, "JSON"},
		{generations, JSON, `{"prompt": "x", "n": "two"}`, 400, "n: expected a whole number"},
		{txt2img, JSON, `{"prompt": 5}`, 422, "prompt"},
		{jobs, JSON, `{"prompt": ["x"]}`, 400, "prompt"},
		{generations, JSON, `{"prompt": "x", "n": 0}`, 400, "found 0"},
		{generations, JSON, `{"prompt": "x", "n": 11}`, 400, "found 11"},
		{jobs, JSON, `{"prompt": "x", "count": 0}`, 400, "count"},
		{jobs, JSON, `{"prompt": "x", "count": 1000000}`, 400, "count"},
		{generations, JSON, `{"prompt": "x", "size": "1x1"}`, 400, "(height|width) 1.*try"},
		{jobs, JSON, `{"prompt": "x", "width": 1, "height": 1}`, 400, "(height|width) 1.*try"},
		{generations, JSON, `{"prompt": "x", "size": "100000x16"}`, 400, "100000"},
		{txt2img, JSON, `{"prompt": "x", "width": 100000, "height": 16}`, 422, "100000"},
		{jobs, JSON, `{"prompt": "x", "width": 100000, "height": 16}`, 400, "100000"},
		edit(prompt, upload{"image", huge})(413, "larger than"),
		{img2img, JSON, `{"init_images": ["` + strings.Repeat("A", 50<<20) + `"]}`, 413, "larger than"},
		{jobs, JSON, `{"prompt": "x", "image": "` + strings.Repeat("A", 50<<20) + `"}`, 413, "larger than"},
		{settings, "image/png", string(huge), 413, "larger than"},
		edit(start, upload{"image", bomb})(400, "more pixels than"),
		{img2img, JSON, `{"prompt": "x", "init_images": ["` + bomb64 + `"]}`, 400, "pixels"},
		{jobs, JSON, `{"prompt": "x", "image": {"data": "` + bomb64 + `"}}`, 400, "50000x50000: more pixels than the "},
		{jobs, JSON, `{"prompt": "x", "image": "` + bomb64 + `"}`, 400, "image: expected an object, found JSON string"},
		edit(prompt, many...)(400, "at most 16 images"),
		{jobs, JSON, `{"prompt": "x", "references": [` + strings.Repeat(reference+",", 16) + reference + `]}`, 400, "at most"},
		edit(prompt, upload{"mask", one})(400, "image: is missing"),
		edit(start, upload{"image", one}, upload{"mask", large.Bytes()})(400, "mask: expected 64x64 pixels"),
		edit(start, upload{"image", one}, upload{"mask", bomb})(400, "more pixels than"),
		edit(prompt, upload{"image", one})(400, "shapes takes no reference images .*strength"),
		{jobs, JSON, `{"prompt": "x", "references": [` + reference + `]}`, 400, "reference"},
		{generations, JSON, `{"prompt": "x", "model": "nobody/nothing"}`, 404, "nobody/nothing.*expected one of shapes"},
		{jobs, JSON, `{"prompt": "x", "model": "nobody/nothing"}`, 404, "nobody/nothing"},
		{generations, JSON, `{"prompt": "x", "model": "z-image-turbo"}`, 404, "gomflux pull z-image-turbo"},
		{jobs, JSON, `{"prompt": "x", "model": "z-image-turbo"}`, 404, "gomflux pull z-image-turbo"},
		{edits, kind, whole[:len(whole)-20], 400, "ends too early"},
		{edits, "multipart/form-data", whole, 400, "boundary"},
		{generations, "text/plain", `{"prompt": "x"}`, 415, "application/json"},
		{generations, JSON, `{"prompt": "x", "image": "file:///etc/passwd"}`, 400, "edits"},
		{edits, JSON, `{"prompt": "x", "image": "http://127.0.0.1:1/x.png"}`, 400, "fetches no URLs"},
		{generations, JSON, `{"prompt": "x", "loras": [{"name": "/etc/passwd"}]}`, 400, "LoRA.*Hugging Face cache"},
		{"/v1/images/variations", JSON, `{}`, 501, "use /v1/images/edits"},
		{"/api/v1/nothing", JSON, `{}`, 404, "."},
		{"/sdapi/v1/nothing", JSON, `{}`, 404, "."},
		{generations, JSON, `{"prompt": "x", "model": ` + strconv.Quote(broken) + `}`, 404, "truncated|ends"},
	}
	for _, r := range requests {
		resp, err := http.Post(address+r.path, r.kind, strings.NewReader(r.body))
		if err != nil {
			t.Errorf("%s: %v", r.path, err) // the server closed a connection without an answer
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		about := r.path + " " + r.body[:min(len(r.body), 80)]
		var answer map[string]any
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Errorf("%s: %.300q: %v", about, body, err)
		}
		if resp.StatusCode != r.status || !regexp.MustCompile(r.message).Match(body) || len(body) > 2000 {
			t.Errorf("%s: status %d, expected %d with %s: %.500s", about, resp.StatusCode, r.status, r.message, body)
		}
	}
	peak := mostMemory(t, server.Process.Pid)
	t.Logf("the server took %d MB", peak>>20)
	if peak > 1<<30 {
		t.Errorf("the server took %d MB", peak>>20)
	}
	crowd(t, address)
	if status, text := askServe(t, "POST", address+generations, "", `{"prompt": "x", "size": "64x64", "steps": 1}`); status != 200 {
		t.Errorf("afterwards: status %d: %.300s\n%s", status, text, stderr)
	}
}

// crowd sends 200 requests at once: each is answered with an image, or with 429 and a time after
// which to try again.
func crowd(t *testing.T, address string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	counts := map[int]int{}
	for range 200 {
		wg.Go(func() {
			resp, err := http.Post(address+"/v1/images/generations", "application/json",
				strings.NewReader(`{"prompt": "x", "size": "64x64", "steps": 1}`))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			io.Copy(io.Discard, resp.Body)
			mu.Lock()
			defer mu.Unlock()
			counts[resp.StatusCode]++
			if after, _ := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode == 429 && after < 1 {
				t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		t.Fatal("200 clients were not answered in three minutes")
	}
	if counts[200] == 0 || counts[200]+counts[429] != 200 {
		t.Errorf("statuses %v", counts)
	}
}
