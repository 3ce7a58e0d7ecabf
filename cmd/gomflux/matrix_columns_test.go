package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/models"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// serveColumn is the column of the server, which has the models of all rows, one at a time in memory.
var serveColumn = column{name: "serve", ci: perFamily, check: checkServed}

var serving sync.Mutex

// columns lists the surfaces. The first makes the image that others compare theirs with.
var columns = []column{
	{name: "run", ci: perClass, commands: "$RUN -o made.png"},
	{name: "show", ci: perClass, commands: "show $MODEL\nshow $MODEL --json", check: checkShown},
	{name: "inspect", ci: perClass, commands: "inspect $MODEL"},
	serveColumn,
	{name: "parity", ci: perFamily, commands: `
		$RUN -o latents.png --debug-save latents* --debug-save image* --log-dir parity
		near latents.png made.png
		parity run parity/runs/latest/gomflux -m $MODEL`},
	{name: "parity of all", commands: `
		$RUN -o tapped.png --debug-save * --log-dir tapped
		near tapped.png made.png
		parity run tapped/runs/latest/gomflux -m $MODEL`},
	{name: "prompt", commands: "generate $SETTINGS -o prompt.png", refusal: noPrompt},
	{name: "image", commands: "generate $SETTINGS -i a.png --image-strength 0.4 -o image.png", refusal: noImage},
	{name: "edit", commands: "edit $SETTINGS -i a.png -o edit.png", refusal: noReferences(1)},
	{name: "edit of two", commands: "edit $SETTINGS -i a.png b.png -o two.png", refusal: noReferences(2)},
	{name: "inpaint", commands: `
		inpaint $SETTINGS -i a.png --mask rect:8,8,40,40 -o inpaint.png
		inpaint $SETTINGS -i a.png --mask rect:8,8,24,24 --mask-crop 8 -o crop.png
		inpaint $SETTINGS -i a.png --expand 8,0,8,16 -o expand.png`, refusal: noMask},
	{name: "guidance", commands: "$RUN -g 4 -n blurry -o guidance.png", refusal: noGuidance},
	{name: "interval", commands: "$RUN -g 4 --guidance-interval 0,0.5 -o interval.png", refusal: noInterval},
	{name: "step cache", commands: `
		$RUN -s 12 --step-cache first-block:0.1 -o first-block.png
		$RUN -s 12 --step-cache easy:0.05 -o easy.png`},
	{name: "scheduler", commands: "$RUN --scheduler linear -o linear.png\n$RUN --rng torch -o torch.png"},
	{name: "batch", commands: `
		$RUN -S 7 8 -p another --batch-size 2 -o batch-{index}-{seed}.png
		near batch-1-7.png made.png`},
	{name: "preview", commands: `
		$RUN --stepwise-image-output-dir steps --preview-decoder linear -o preview.png
		$RUN --preview=kitty --show=sixel -o shown.png
		same preview.png made.png`},
	{name: "low-ram", commands: "$RUN --low-ram -o low.png\nsame low.png made.png"},
	{name: "dtypes", commands: "$RUN --dtype float16 -o f16.png\n$RUN --dtype bfloat16 -o bf16.png"},
	{name: "quantize", commands: `
		$RUN -q 3 -o q3.png
		$RUN -q 4 --group-size 32 -o q4.png
		$RUN -q 5 -o q5.png
		$RUN -q 6 -o q6.png
		$RUN -q 8 -o q8.png
		$RUN -q mxfp4 -o mxfp4.png
		$RUN -q mxfp8 -o mxfp8.png
		$RUN -q nvfp4 -o nvfp4.png`},
	{name: "lora", commands: `
		$RUN --lora lora.safetensors 0.8 -o lora.png
		$RUN --lora lora.safetensors 0.8 --no-bake-lora -q 8 -o beside.png`},
	{name: "info", commands: `
		info made.png
		info made.png --json
		$COMMAND -C made.png -o again.png
		same again.png made.png`},
	{name: "save", check: checkSaved, commands: `
		save -m $MODEL --path saved --quiet --dtype keep
		$RUNS -m saved -o saved.png
		same saved.png made.png
		inspect saved --against $MODEL`},
	{name: "save mflux", commands: `
		save -m $MODEL --path mflux --layout mflux --dtype keep
		$RUNS -m mflux -o mflux.png
		same mflux.png made.png
		save -m mflux --path back --layout diffusers --dtype keep
		within back
		show mflux`},
	{name: "save quantized", commands: `
		save -m $MODEL --path saved4 -q 4 --dtype keep
		$RUN -q 4 -o loaded4.png
		$RUNS -m saved4 -o saved4.png
		quantized saved4.png loaded4.png
		show saved4
		inspect saved4
		save -m saved4 --path wide4 --layout diffusers
		$RUNS -m wide4 -o wide4.png`},
	{name: "save lora", commands: "save -m $MODEL --lora lora.safetensors --path baked\n$RUNS -m baked -o baked.png"},
	{name: "bench", commands: `
		bench -m $MODEL --size 64 -s 1 --repeat 1
		bench --random $MODEL --size 64 -s 1 --repeat 1 --json`},
	{name: "loaded", commands: "inspect $MODEL --loaded"},
	{name: "profile", commands: "$RUN --profile trace.json -o profile.png"},
	{name: "vae", commands: `
		roundtrip a.png -m $MODEL -o roundtrip.png
		$RUN --debug-save latents@1 --log-dir latents -o kept.png
		decode latents/runs/latest/gomflux/tensors/latents@1.safetensors -m $MODEL -o decoded.png`},
	{name: "debug", commands: `
		debug start --run --break transformer.*@1 --log-dir debug -- $RUN -o debug.png
		debug status
		debug vars
		debug eval out.mean()
		debug next
		debug clear
		debug continue
		near debug.png made.png
		debug start --run --break vae.decode.in --log-dir debug -- parity run tapped/runs/latest/gomflux -m $MODEL --isolated
		debug location
		debug accept
		debug trace --log-dir debug`},
	{name: "pull", commands: `
		hub
		pull $REPO
		list
		show $REPO
		$RUNS -g $GUIDANCE -m $REPO -o pulled.png
		$RUN -g $GUIDANCE -o guided.png
		same pulled.png guided.png
		rm $REPO --yes`},
	{name: "Go API", check: checkAPI},
}

// fills reports whether the model generates nothing without a mask.
func (r *row) fills() bool {
	_, ok := r.declared.Pipeline.(family.Filler)
	return ok
}

// noPrompt is why the model generates nothing from a prompt alone.
func noPrompt(r *row) string {
	if r.fills() {
		return "this model fills the masked part of an image and needs both"
	}
	if e, ok := r.declared.Pipeline.(family.Editor); ok {
		return quoted(e.CheckReferences(0))
	}
	return ""
}

// splits reports whether the model splits an image into layers, and neither starts from one nor inpaints it.
func (r *row) splits() bool { return r.declared.Class.Layers }

// noImage is why the model does not start from an image.
func noImage(r *row) string {
	if r.splits() {
		return "does not start from it"
	}
	return noPrompt(r)
}

// noMask is why the model does not inpaint an image.
func noMask(r *row) string {
	if r.splits() {
		return "does not inpaint it"
	}
	return ""
}

// noReferences is why the model takes no n reference images.
func noReferences(n int) func(r *row) string {
	return func(r *row) string {
		if r.fills() {
			return "does not take reference images|takes no reference images|" + noPrompt(r)
		}
		e, ok := r.declared.Pipeline.(family.Editor)
		if !ok || r.declared.Class.References == 0 {
			return "does not take reference images|takes no reference images"
		}
		return quoted(e.CheckReferences(n))
	}
}

// noGuidance is why the model has no guidance.
func noGuidance(r *row) string {
	_, err := r.declared.Pipeline.Guidance(family.Guidance{Scale: 4})
	return quoted(err)
}

// noInterval is why the model has no steps without guidance.
func noInterval(r *row) string {
	if negative, err := r.declared.Pipeline.Guidance(family.Guidance{Scale: 4}); err == nil && !negative {
		return "needs classifier-free guidance, which this model does not use"
	}
	return noGuidance(r)
}

// needsMask is why the model does nothing with an image alone.
func needsMask(r *row) string {
	if r.fills() {
		return noPrompt(r)
	}
	return ""
}

func quoted(err error) string {
	if err == nil {
		return ""
	}
	return regexp.QuoteMeta(err.Error())
}

// checkShown: the model can be used.
func checkShown(r *row) error {
	var shown models.ShownModel
	if err := json.Unmarshal([]byte(r.output), &shown); err != nil {
		return err
	}
	if shown.State() != "ready" || shown.Memory == nil {
		return fmt.Errorf("%s, %q, memory %v", shown.State(), shown.Problems, shown.Memory)
	}
	return nil
}

// checkSaved: files without dimensions are saved as they are published.
func checkSaved(r *row) error {
	for file, from := range r.Files {
		if name := filepath.Base(file); name == "config.json" || name == "model_index.json" || strings.Contains(name, ".index.") {
			continue
		}
		want, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if got, err := os.ReadFile(filepath.Join(r.dir, "saved", file)); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%s has other bytes (%v)", file, err)
		}
	}
	return nil
}

// servedRoutes are requests to a server that has the models of all rows, with $MODEL, $IMAGE and $MASK.
var servedRoutes = []struct {
	method, path, body string
	refusal            func(r *row) string
}{
	{"GET", "/", "", nil},
	{"GET", "/metrics", "", nil},
	{"GET", "/healthz?deep=1", "", nil},
	{"GET", "/sdapi/v1/sd-models", "", nil},
	{"GET", "/v1/models/$MODEL", "", nil},
	{"POST", "/sdapi/v1/options", `{"sd_model_checkpoint": "$MODEL"}`, nil},
	{"POST", "/v1/images/generations", `{$OPENAI}`, noPrompt},
	{"POST", "/v1/images/edits", `{$OPENAI, "image": "data:image/png;base64,$IMAGE"}`, noReferences(1)},
	{"POST", "/v1/images/edits", `{$OPENAI, "image": "data:image/png;base64,$IMAGE", "mask": "data:image/png;base64,$MASK"}`, noMask},
	{"POST", "/sdapi/v1/txt2img", `{$SDAPI}`, noPrompt},
	{"POST", "/sdapi/v1/img2img", `{$SDAPI, "init_images": ["$IMAGE"]}`, needsMask},
	{"POST", "/sdapi/v1/img2img", `{$SDAPI, "init_images": ["$IMAGE"], "mask": "$MASK", "inpaint_full_res": false}`, noMask},
	{"POST", "/api/v1/jobs", `{$NATIVE}`, noPrompt},
	{"POST", "/api/v1/jobs", `{$NATIVE, "image": {"data": "$IMAGE"}}`, noImage},
	{"POST", "/api/v1/jobs", `{$NATIVE, "references": [{"data": "$IMAGE"}]}`, noReferences(1)},
	{"POST", "/api/v1/jobs", `{$NATIVE, "image": {"data": "$IMAGE"}, "mask": {"data": "$MASK"}}`, noMask},
}

// checkServed sends the requests.
func checkServed(r *row) error {
	words := []string{
		"$OPENAI", `"prompt": "a cat", "model": "$MODEL", "steps": 2, "size": "64x64"`,
		"$SDAPI", `"prompt": "a cat", "override_settings": {"sd_model_checkpoint": "$MODEL"}, "steps": 2, "width": 64, "height": 64`,
		"$NATIVE", `"prompt": "a cat", "model": "$MODEL", "steps": 2, "width": 64, "height": 64`,
	}
	files := []string{"$MODEL", r.folder}
	for word, file := range map[string]string{"$IMAGE": "a.png", "$MASK": "mask.png"} {
		data, err := os.ReadFile(filepath.Join(r.dir, file))
		if err != nil {
			return err
		}
		files = append(files, word, base64.StdEncoding.EncodeToString(data))
	}
	serving.Lock() // a model is loaded once for all of its requests
	defer serving.Unlock()
	for _, q := range servedRoutes {
		body := strings.NewReplacer(files...).Replace(strings.NewReplacer(words...).Replace(q.body))
		status, text, err := r.ask(q.method, strings.ReplaceAll(q.path, "$MODEL", r.folder), body)
		if err != nil {
			return err
		}
		refusal := ""
		if q.refusal != nil {
			refusal = q.refusal(r)
		}
		refused, fits := status == 400, regexp.MustCompile(refusal).MatchString(text)
		if status >= 300 && !refused || refused == (refusal == "") || !fits {
			return fmt.Errorf("%s %s %.150s: status %d, expected a refusal %q: %.400s", q.method, q.path, q.body, status, refusal, text)
		}
	}
	return nil
}

// ask sends a request, and waits for the end of a job that it has made.
func (r *row) ask(method, path, body string) (status int, text string, err error) {
	request, err := http.NewRequest(method, r.address+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	var job struct{ ID, State string }
	if answer.StatusCode != http.StatusAccepted || err != nil || json.Unmarshal(data, &job) != nil {
		return answer.StatusCode, string(data), err
	}
	for began := time.Now(); job.State != "done"; time.Sleep(50 * time.Millisecond) {
		status, text, err := r.ask("GET", "/api/v1/jobs/"+job.ID, "")
		if err == nil {
			err = json.Unmarshal([]byte(text), &job)
		}
		if job.State == "failed" && strings.Contains(text, `"code":"bad_request"`) {
			return 400, text, nil
		}
		if err != nil || status != 200 || job.State == "failed" || time.Since(began) > 2*time.Minute {
			return status, text, fmt.Errorf("job: status %d, %s (%v)", status, text, err)
		}
	}
	return 200, "", nil
}

// checkAPI uses the model from Go.
func checkAPI(r *row) error {
	ctx := context.Background()
	p, err := picture.ReadFile(filepath.Join(r.dir, "a.png"))
	if err != nil {
		return err
	}
	var seed uint64 = 7
	o := gomflux.Options{Prompt: "a red cat -- on a mat", Height: 64, Width: 64, Steps: 2, Seed: &seed}
	if r.fills() {
		o.Image, o.Mask, o.Inpaint.Invert = p.Image, image.NewGray(p.Image.Rect), true
	} else if noPrompt(r) != "" {
		o.References = []image.Image{p.Image}
	}
	m, err := gomflux.Open(ctx, r.folder, &gomflux.OpenOptions{For: []gomflux.Options{o}})
	if err != nil {
		return err
	}
	_, err = m.Generate(ctx, o)
	if closing := m.Close(); err == nil {
		err = closing
	}
	return err
}
