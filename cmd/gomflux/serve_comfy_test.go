package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// comfyGraph returns a graph of ComfyUI with a model, the nodes that differ, and what the sampler starts from.
func comfyGraph(model, more, latent, positive string, denoise float64) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": %q}},
		"2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a red circle", "clip": ["1", 1]}},
		"3": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["1", 1]}},
		"4": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 2, "cfg": 4, "sampler_name": "euler", "scheduler": "simple",
			"denoise": %g, "model": ["1", 0], "positive": [%q, 0], "negative": ["3", 0], "latent_image": [%q, 0]}},
		"5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
		"6": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x", "images": ["5", 0]}},
		"7": {"class_type": "EmptyLatentImage", "inputs": {"width": 128, "height": 64, "batch_size": 1}}%s}`,
		model, denoise, positive, latent, more)
}

// TestServeComfy compares the images of ComfyUI's API with those of the command.
func TestServeComfy(t *testing.T) {
	server, address, _ := startServe(t, "--model", "shapes", "--model", absolute(tinyEditor), "--device", "cpu", "--no-gallery")
	address = strings.TrimSuffix(address, "/")
	img, half := image.NewRGBA(image.Rect(0, 0, 64, 64)), image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range 64 * 64 {
		img.Set(i%64, i/64, color.RGBA{uint8(4 * i), uint8(i / 16), 99, 255})
		half.Set(i%64, i/64, color.Gray{uint8(i % 64 / 32 * 255)})
	}
	for name, img := range map[string]image.Image{"in.png": img, "mask.png": half} {
		var file, body bytes.Buffer
		if err := png.Encode(&file, img); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(server.Dir, name), file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		form := multipart.NewWriter(&body)
		part, err := form.CreateFormFile("image", name)
		if err != nil {
			t.Fatal(err)
		}
		part.Write(file.Bytes())
		form.Close()
		comfyAsk(t, "POST", address+"/upload/image", form.FormDataContentType(), &body)
	}
	load := `"8": {"class_type": "LoadImage", "inputs": {"image": "in.png"}}`
	encode := load + `, "9": {"class_type": "VAEEncode", "inputs": {"pixels": ["8", 0], "vae": ["1", 2]}}`
	for name, test := range map[string]struct {
		graph string
		args  []string
	}{
		"text": {comfyGraph("shapes", "", "7", "2", 1),
			[]string{"generate", "--model", "shapes", "--steps", "2", "--width", "128", "--height", "64"}},
		"image": {comfyGraph("shapes", encode, "9", "2", 0.5), // runs 2 of 4 steps
			[]string{"generate", "--model", "shapes", "--steps", "4", "--image", "in.png", "--image-strength", "0.5"}},
		"mask": {comfyGraph("shapes", encode+`, "10": {"class_type": "LoadImageMask", "inputs": {"image": "mask.png", "channel": "red"}},
			"11": {"class_type": "SetLatentNoiseMask", "inputs": {"samples": ["9", 0], "mask": ["10", 0]}}`, "11", "2", 1),
			[]string{"inpaint", "--model", "shapes", "--steps", "2", "--image", "in.png", "--mask", "mask.png"}},
		"edit": {strings.Replace(comfyGraph("model", encode+`, "10": {"class_type": "ReferenceLatent", "inputs":
			{"conditioning": ["2", 0], "latent": ["9", 0]}}`, "7", "10", 1), `"cfg": 4`, `"cfg": 1`, 1), // a distilled model
			[]string{"edit", "--model", absolute(tinyEditor), "--steps", "2", "--image", "in.png", "--width", "128", "--height", "64"}},
	} {
		t.Run(name, func(t *testing.T) {
			var sent struct {
				ID string `json:"prompt_id"`
			}
			comfyRead(t, comfyAsk(t, "POST", address+"/prompt", "", strings.NewReader(`{"prompt":`+test.graph+`}`)), &sent)
			type entry struct {
				Outputs map[string]struct{ Images []struct{ Filename string } }
				Status  struct{ Messages []any }
			}
			var history map[string]entry
			for end := time.Now().Add(2 * time.Minute); len(history) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				comfyRead(t, comfyAsk(t, "GET", address+"/history/"+sent.ID, "", nil), &history)
			}
			images := history[sent.ID].Outputs["6"].Images
			if len(images) != 1 {
				t.Fatalf("history %+v", history)
			}
			got := comfyAsk(t, "GET", address+"/view?filename="+images[0].Filename, "", nil)
			scale := map[bool]string{true: "1", false: "3"}[name == "edit"] // that of shapes counts from 0
			out := filepath.Join(t.TempDir(), "want.png")
			args := append(test.args, "--guidance", scale, "--prompt", "a red circle", "--seed", "7", "--device", "cpu", "--output", out)
			c := exec.Command("gomflux", args...)
			c.Env, c.Dir = server.Env, server.Dir
			if text, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			want, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Error("the image differs from that of the command")
			}
		})
	}
}

// TestComfyPython runs comfy-api-simplified against gomflux serve.
func TestComfyPython(t *testing.T) {
	python := os.Getenv(envPython)
	if python == "" {
		t.Skipf("%s is not set to a Python with comfy-api-simplified (make clients does it)", envPython)
	}
	runClient(t, "3", python, "testdata/comfy/client.py")
}

func comfyAsk(t *testing.T, method, url, kind string, body io.Reader) []byte {
	t.Helper()
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d %s (%v)", url, resp.StatusCode, data, err)
	}
	return data
}

func comfyRead(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}
