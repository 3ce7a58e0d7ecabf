package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/picture"
)

// served are settings: flags of gomflux generate, and the same as fields of the server's APIs. edits
// are requests of OpenAI's API with an image.
var served = []struct{ api, flags, fields string }{
	{"jobs", "-S 1 -s 2", `"seed": 1, "steps": 2`},
	{"jobs", "-S 2 -s 1 -H 64 -W 64", `"seed": 2, "steps": 1, "height": 64, "width": 64`},
	{"jobs", "-S 3 4 5 -s 2 -H 48 -W 80", `"seed": 3, "count": 3, "steps": 2, "height": 48, "width": 80`},
	{"jobs", "-S 18446744073709551615 -s 3 -H 80 -W 48", `"seed": "18446744073709551615", "steps": 3, "height": 80, "width": 48`},
	{"jobs", "-S 5 -s 3 -H 64 -W 64 -g 0", `"seed": 5, "steps": 3, "height": 64, "width": 64, "guidance": 0`},
	{
		"jobs", "-S 6 -s 3 -H 64 -W 64 -g 4.5 -n blue",
		`"seed": 6, "steps": 3, "height": 64, "width": 64, "guidance": 4.5, "negative_prompt": "blue"`,
	},
	{
		"jobs", "-S 7 -s 4 -H 64 -W 64 --guidance-interval 0,0.5",
		`"seed": 7, "steps": 4, "height": 64, "width": 64, "guidance_interval": [0, 0.5]`,
	},
	{
		"jobs", "-S 71 -s 4 -H 64 -W 64 -g 3 --cfg-normalization 0.7 --cfg-truncation 0.5",
		`"seed": 71, "steps": 4, "height": 64, "width": 64, "guidance": 3, "cfg_normalization": 0.7, "cfg_truncation": 0.5`,
	},
	{
		"jobs", "-S 8 -s 3 -H 64 -W 64 --scheduler flow_match_heun_discrete",
		`"seed": 8, "steps": 3, "height": 64, "width": 64, "scheduler": "flow_match_heun_discrete"`,
	},
	{"jobs", "-S 9 -s 3 -H 64 -W 64 --scheduler linear", `"seed": 9, "steps": 3, "height": 64, "width": 64, "scheduler": "linear"`},
	{"jobs", "-S 10 -s 2 -H 64 -W 64 --rng mlx", `"seed": 10, "steps": 2, "height": 64, "width": 64, "rng": "mlx"`},
	{
		"jobs", "-S 11 -s 12 -H 64 -W 64 --step-cache first-block:0.1",
		`"seed": 11, "steps": 12, "height": 64, "width": 64, "step_cache": "first-block:0.1"`,
	},
	{
		"jobs", "-S 12 -s 4 -i start.png --image-strength 0.5 -H 64 -W 64",
		`"seed": 12, "steps": 4, "image": START, "image_strength": 0.5, "height": 64, "width": 64`,
	},
	{"jobs", "-S 13 14 -s 3 -i start.png", `"seed": 13, "count": 2, "steps": 3, "image": START`},
	{"jobs", "-S 15 -s 2 -H 64 -W 64 --lora ink", `"seed": 15, "steps": 2, "height": 64, "width": 64, "loras": [{"path": "ink"}]`},
	{
		"jobs", "-S 16 -s 2 -H 64 -W 64 --lora ink 0.5 --max-sequence-length 64",
		`"seed": 16, "steps": 2, "height": 64, "width": 64, "loras": [{"path": "ink", "scale": 0.5}], "max_sequence_length": 64`,
	},
	{"generations", "-S 17 -s 2 -H 64 -W 96", `"seed": 17, "steps": 2, "size": "96x64"`},
	{
		"generations", "-S 18 19 -s 3 -H 64 -W 64 -g 3 -n blue",
		`"seed": 18, "n": 2, "num_inference_steps": 3, "size": "64x64", "guidance_scale": 3, "negative_prompt": "blue"`,
	},
	{"stream", "-S 20 21 -s 3 -H 64 -W 64", `"seed": 20, "n": 2, "steps": 3, "size": "64x64", "stream": true, "partial_images": 2`},
	{"edits", "-S 22 -s 4 -i start.png --image-strength 0.5 -H 64 -W 64", `"seed": "22", "steps": "4", "strength": "0.5", "size": "64x64"`},
	{
		"txt2img", "-S 23 24 -s 3 -H 64 -W 64 -g 3 -n blue",
		`"seed": 23, "batch_size": 2, "steps": 3, "height": 64, "width": 64, "cfg_scale": 4, "negative_prompt": "blue"`,
	},
	{
		"txt2img", "-S 25 -s 2 -H 64 -W 80 --scheduler flow_match_heun_discrete --lora ink 0.5",
		`"seed": 25, "steps": 2, "height": 64, "width": 80, "sampler_name": "Heun"`,
	},
}

// TestServedImages compares the image files of the server with those of gomflux generate, byte by
// byte.
func TestServedImages(t *testing.T) {
	testServed(t, exec.Command("gomflux", "serve"), bytes.Equal)
}

// testServed compares the image files of a server with those of gomflux generate.
func testServed(t *testing.T, server *exec.Cmd, equal func(want, got []byte) bool) {
	folder := t.TempDir()
	t.Setenv("LORA_LIBRARY_PATH", folder)
	if err := modeltest.WriteLoRA(filepath.Join(folder, "ink.safetensors"), "../../models/shapes/model", 1); err != nil {
		t.Fatal(err)
	}
	start := image.NewRGBA(image.Rect(0, 0, 80, 64))
	for i := range start.Pix {
		start.Pix[i] = uint8(i*i/64) | uint8(255*(i&3/3))
	}
	var file bytes.Buffer
	if err := picture.Encode(&file, picture.PNG, start, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "start.png"), file.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	server.Args = append(server.Args, "--listen", "127.0.0.1:0", "--model", "shapes", "--device", "cpu", "--no-gallery")
	_, address, _ := startServeBy(t, t.TempDir(), server)
	for i, test := range served {
		prompt := fmt.Sprintf("a red circle and %d blue squares", i)
		want := generated(t, folder, strconv.Itoa(i), prompt, test.flags)
		fields := strings.ReplaceAll(test.fields, "START", fmt.Sprintf(`{"name": "start.png", "data": %q}`,
			base64.StdEncoding.EncodeToString(file.Bytes())))
		if test.api == "txt2img" && strings.Contains(test.flags, "--lora") {
			fields += fmt.Sprintf(`, "prompt": %q`, prompt+"<lora:ink:0.5>")
		} else {
			fields += fmt.Sprintf(`, "prompt": %q`, prompt)
		}
		got := askImages(t, address, test.api, "{"+fields+"}", file.Bytes())
		if len(want) != len(got) || len(want) == 0 {
			t.Errorf("%s, %s: %d images, expected %d", test.api, test.flags, len(got), len(want))
			continue
		}
		for k := range want {
			if !equal(want[k], got[k]) {
				t.Errorf("%s, %s: image %d differs: %s", test.api, test.flags, k, fileDifference(want[k], got[k]))
			}
		}
	}
}

// generated returns the image files that gomflux generate writes.
func generated(t *testing.T, folder, name, prompt, flags string) (files [][]byte) {
	t.Helper()
	cmd := exec.Command("gomflux", slices.Concat([]string{"generate", "-m", "shapes", "--device", "cpu", "--quiet", "-p", prompt,
		"-o", name + "-{index}.png"},
		strings.Fields(flags))...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", flags, err, out)
	}
	for i := 1; ; i++ {
		data, err := os.ReadFile(filepath.Join(folder, fmt.Sprintf("%s-%d.png", name, i)))
		if err != nil {
			return files
		}
		files = append(files, data)
	}
}

// askImages asks one of the server's APIs for images, and returns the files.
func askImages(t *testing.T, address, api, body string, start []byte) [][]byte {
	t.Helper()
	switch api {
	case "jobs":
		return askJob(t, address, body)
	case "txt2img":
		var answer struct{ Images [][]byte }
		decodeServed(t, postServed(t, address+"sdapi/v1/txt2img", "application/json", strings.NewReader(body)), &answer)
		return answer.Images
	case "stream":
		return streamed(t, postServed(t, address+"v1/images/generations", "application/json", strings.NewReader(body)), "b64_json")
	}
	path, kind, reader := "v1/images/generations", "application/json", io.Reader(strings.NewReader(body))
	if api == "edits" {
		path = "v1/images/edits"
		kind, reader = editForm(t, body, start)
	}
	var answer struct {
		Data []struct {
			Image []byte `json:"b64_json"`
		}
	}
	decodeServed(t, postServed(t, address+path, kind, reader), &answer)
	var files [][]byte
	for _, d := range answer.Data {
		files = append(files, d.Image)
	}
	return files
}

// editForm returns a form with the fields of a JSON object and an image.
func editForm(t *testing.T, body string, start []byte) (kind string, form io.Reader) {
	t.Helper()
	var fields map[string]string
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		w.WriteField(name, fields[name])
	}
	part, err := w.CreateFormFile("image", "start.png")
	if err != nil {
		t.Fatal(err)
	}
	part.Write(start)
	w.Close()
	return w.FormDataContentType(), &b
}

// askJob asks with the server's own API.
func askJob(t *testing.T, address, body string) (files [][]byte) {
	t.Helper()
	var job struct{ ID string }
	decodeServed(t, postServed(t, address+"api/v1/jobs", "application/json", strings.NewReader(body)), &job)
	resp, err := http.Get(address + "api/v1/jobs/" + job.ID + "/events")
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range streamed(t, resp, "url") {
		status, data := askServe(t, "GET", strings.TrimSuffix(address, "/")+string(url), "", "")
		if status != http.StatusOK {
			t.Errorf("%s: status %d: %s", url, status, data)
		}
		files = append(files, []byte(data))
	}
	return files
}

// streamed returns a field of the events about finished images: the URL of an image, or an image.
func streamed(t *testing.T, resp *http.Response, field string) (found [][]byte) {
	t.Helper()
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	name := ""
	for lines.Scan() {
		line := lines.Text()
		if text, ok := strings.CutPrefix(line, "event: "); ok {
			name = text
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || name != "picture" && name != "image_generation.completed" || data == "[DONE]" {
			if name == "failed" || name == "error" {
				t.Errorf("event %s: %s", name, data)
			}
			continue
		}
		var event struct {
			Image   []byte `json:"b64_json"`
			Picture struct{ URL string }
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatal(err)
		}
		if field == "url" {
			found = append(found, []byte(event.Picture.URL))
		} else {
			found = append(found, event.Image)
		}
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	return found
}

func postServed(t *testing.T, url, kind string, body io.Reader) *http.Response {
	t.Helper()
	resp, err := http.Post(url, kind, body)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func decodeServed(t *testing.T, resp *http.Response, v any) {
	t.Helper()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= 300 {
		t.Errorf("%s: status %d: %s", resp.Request.URL, resp.StatusCode, data)
		return
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Errorf("%s: %v", resp.Request.URL, err)
	}
}

// fileDifference describes how two image files differ.
func fileDifference(want, got []byte) string {
	var settings [2]string
	var pixels [2][]byte
	for i, data := range [][]byte{want, got} {
		p, err := picture.Decode(bytes.NewReader(data))
		if err != nil {
			return err.Error()
		}
		found, err := picture.ReadSettings(bytes.NewReader(data))
		if err != nil {
			return err.Error()
		}
		pixels[i], settings[i] = p.Image.Pix, string(found.JSON)
	}
	return fmt.Sprintf("equal pixels: %v, settings %s, expected %s", bytes.Equal(pixels[0], pixels[1]), settings[1], settings[0])
}
