package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/picture"
)

// apis are the ways to ask for images.
var apis = []string{"jobs", "generations", "stream", "txt2img"}

// A work is what a client asks for.
type work struct {
	api    string
	model  string // "" for the default one
	prompt string
	seed   uint64
	count  int
	steps  int
	size   int // height and width
}

// A client asks with a token.
type client struct {
	http  *http.Client
	url   string
	token string
}

func newClient(s *server, i int) *client {
	return &client{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}, s.url, s.token(i)}
}

// An outcome is what became of a work.
type outcome struct {
	images int
	took   time.Duration // from the first request to the last image
	// of the jobs API: the time in the queue, the time until the end of the job, and the same as
	// the server estimated it when it took the job
	waited, ended, predicted time.Duration

	refused  int           // answers with 429
	retried  time.Duration // the sum of their Retry-After
	answered bool          // with the images, or an error of the server's
	status   int           // of an answer that is an error
	err      error
}

// errStatus is an answer that is an error.
type errStatus struct {
	status int
	retry  time.Duration
	text   string
}

func (e *errStatus) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// do sends a work until it is not refused with 429, and checks the images. begun is called when the
// server works on a request that streams events.
func (c *client) do(ctx context.Context, w work, begun func(id string)) (o outcome) {
	began := time.Now()
	for {
		images, err := c.ask(ctx, w, &o, begun)
		o.took, o.err, o.images = time.Since(began), err, len(images)
		refusal, ok := errors.AsType[*errStatus](err)
		if ok && refusal.status == http.StatusTooManyRequests && refusal.retry > 0 {
			o.refused++
			o.retried += refusal.retry
			select {
			case <-time.After(refusal.retry):
				continue
			case <-ctx.Done():
				return o
			}
		}
		if ok {
			o.answered, o.status = true, refusal.status
		}
		if err == nil {
			o.answered = true
			o.err = w.check(images)
		}
		return o
	}
}

// check compares images with what was asked for.
func (w work) check(images [][]byte) error {
	if len(images) != w.count {
		return fmt.Errorf("%s: %d images, expected %d", w.api, len(images), w.count)
	}
	for i, data := range images {
		found, err := picture.ReadSettings(bytes.NewReader(data))
		if err != nil {
			return err
		}
		s := found.Settings
		own := w.api == "txt2img" && w.model != "" // a distilled model has its own steps there
		if s.Prompt != w.prompt || s.Seed != w.seed+uint64(i) || s.Steps != w.steps && !own || s.Width != w.size {
			return fmt.Errorf("%+v: image %d has the prompt %q, the seed %d, %d steps and a width of %d", w, i, s.Prompt, s.Seed,
				s.Steps, s.Width)
		}
	}
	return nil
}

// ask sends a work and returns the images.
func (c *client) ask(ctx context.Context, w work, o *outcome, begun func(string)) ([][]byte, error) {
	body := map[string]any{"prompt": w.prompt, "seed": w.seed, "steps": w.steps}
	if w.model != "" && w.api == "txt2img" {
		body["override_settings"] = map[string]any{"sd_model_checkpoint": w.model}
	} else if w.model != "" {
		body["model"] = w.model
	}
	switch w.api {
	case "jobs":
		body["count"], body["previews"], body["height"], body["width"] = w.count, 1, w.size, w.size
		return c.job(ctx, body, o, begun)
	case "txt2img":
		body["batch_size"], body["height"], body["width"] = w.count, w.size, w.size
		var answer struct{ Images [][]byte }
		err := c.json(ctx, http.MethodPost, "/sdapi/v1/txt2img", body, &answer)
		return answer.Images, err
	}
	body["n"], body["size"] = w.count, fmt.Sprintf("%dx%d", w.size, w.size)
	if w.api == "stream" {
		body["stream"], body["partial_images"] = true, 1
		return c.stream(ctx, body, begun)
	}
	var answer struct {
		Data []struct {
			Image []byte `json:"b64_json"`
		}
	}
	err := c.json(ctx, http.MethodPost, "/v1/images/generations", body, &answer)
	var images [][]byte
	for _, d := range answer.Data {
		images = append(images, d.Image)
	}
	return images, err
}

// send sends a request, and returns an answer that is not an error.
func (c *client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var text io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, text)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil || resp.StatusCode < 300 {
		return resp, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return nil, &errStatus{resp.StatusCode, time.Duration(seconds) * time.Second, strings.TrimSpace(string(data))}
}

func (c *client) json(ctx context.Context, method, path string, body, answer any) error {
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(answer)
}

// An event has the fields of all events that are read.
type event struct {
	Created time.Time
	Started time.Time
	Ended   time.Time
	Left    float64 `json:"seconds_left"`
	ID      string
	Picture struct{ URL string }
	Image   string          `json:"b64_json"`
	Error   json.RawMessage `json:"error"`
}

// events calls f for the events of an answer until it returns true.
func events(resp *http.Response, f func(name string, data []byte) (done bool, err error)) error {
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	name := ""
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = text
		}
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			if done, err := f(name, data); done || err != nil {
				return err
			}
		}
	}
	if lines.Err() != nil {
		return lines.Err()
	}
	return io.ErrUnexpectedEOF
}

// job asks with the jobs API.
func (c *client) job(ctx context.Context, body any, o *outcome, begun func(string)) (images [][]byte, err error) {
	var taken, last event
	if err := c.json(ctx, http.MethodPost, "/api/v1/jobs", body, &taken); err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, http.MethodGet, "/api/v1/jobs/"+taken.ID+"/events", nil)
	if err != nil {
		return nil, err
	}
	begun(taken.ID)
	var urls []string
	err = events(resp, func(name string, data []byte) (bool, error) {
		last = event{}
		if err := json.Unmarshal(data, &last); err != nil {
			return false, err
		}
		switch name {
		case "picture":
			urls = append(urls, last.Picture.URL)
		case "done":
			return true, nil
		case "failed", "canceled":
			return false, &errStatus{status: http.StatusServiceUnavailable, text: name + " " + string(last.Error)}
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	o.answered = true
	o.waited, o.ended = last.Started.Sub(last.Created), last.Ended.Sub(last.Created)
	o.predicted = time.Duration(taken.Left * float64(time.Second))
	for _, url := range urls {
		resp, err := c.send(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
		images = append(images, data)
	}
	return images, nil
}

// stream asks with OpenAI's events.
func (c *client) stream(ctx context.Context, body any, begun func(string)) (images [][]byte, err error) {
	resp, err := c.send(ctx, http.MethodPost, "/v1/images/generations", body)
	if err != nil {
		return nil, err
	}
	begun("")
	err = events(resp, func(name string, data []byte) (bool, error) {
		if string(data) == "[DONE]" {
			return true, nil
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return false, err
		}
		switch name {
		case "image_generation.completed":
			data, err := base64.StdEncoding.DecodeString(e.Image)
			if err != nil {
				return false, err
			}
			images = append(images, data)
		case "error":
			return false, &errStatus{status: http.StatusServiceUnavailable, text: string(e.Error)}
		}
		return false, nil
	})
	return images, err
}
