package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
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
	size   int         // height and width
	id     chan string // gets the id of a job when the server sends its events; nil if nobody needs it
}

// An outcome is what became of a work.
type outcome struct {
	client int           // its number
	inTime bool          // within the duration of the first part
	images int           // all that were asked for, or 0
	took   time.Duration // from the first request to the last image
	// of the jobs API: the time until the end of the job, and the same as
	// the server estimated it when it took the job
	ended, predicted time.Duration

	refused  int           // answers with 429
	retried  time.Duration // the sum of their Retry-After
	canceled bool          // it was to be canceled; it has images if it ended before
	err      error         // an *errStatus if the server answered
}

// errStatus is an answer that is an error. One without a status came after the end of a job.
type errStatus struct {
	status int
	retry  time.Duration
	text   string
}

func (e *errStatus) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// A client asks with a token.
type client struct {
	http       *http.Client
	url, token string
}

// do sends a work until it is not refused with 429, and checks the images.
func (c *client) do(ctx context.Context, w work) (o outcome) {
	for start := time.Now(); ; {
		images, err := c.ask(ctx, w, &o)
		if err == nil {
			err = w.check(images)
			o.images = len(images)
		}
		o.took, o.err = time.Since(start), err
		refusal, ok := errors.AsType[*errStatus](err)
		if !ok || refusal.status != http.StatusTooManyRequests || refusal.retry == 0 {
			return o
		}
		o.refused++
		o.retried += refusal.retry
		select {
		case <-time.After(refusal.retry):
		case <-ctx.Done():
			o.err = ctx.Err()
			return o
		}
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
func (c *client) ask(ctx context.Context, w work, o *outcome) (images [][]byte, err error) {
	path, body := "/v1/images/generations", map[string]any{"prompt": w.prompt, "seed": w.seed, "steps": w.steps}
	if w.model != "" {
		body["model"] = w.model
	}
	switch w.api {
	case "jobs":
		body["count"], body["previews"], body["height"], body["width"] = w.count, 1, w.size, w.size
		return c.job(ctx, w, body, o)
	case "txt2img":
		path = "/sdapi/v1/txt2img"
		body["batch_size"], body["height"], body["width"] = w.count, w.size, w.size
		if delete(body, "model"); w.model != "" {
			body["override_settings"] = map[string]any{"sd_model_checkpoint": w.model}
		}
	default:
		body["n"], body["size"] = w.count, fmt.Sprintf("%dx%d", w.size, w.size)
		if w.api == "stream" {
			body["stream"], body["partial_images"] = true, 1
		}
	}
	var answer struct {
		Image []byte `json:"b64_json"` // of an event
		Data  []struct {
			B []byte `json:"b64_json"`
		} // of OpenAI's API
		Images [][]byte // of AUTOMATIC1111's
	}
	data, err := c.call(ctx, http.MethodPost, path, body, func(event string, data []byte) error {
		err := json.Unmarshal(data, &answer)
		if event == "image_generation.completed" {
			images = append(images, answer.Image)
		}
		answer.Image = nil
		return err
	})
	if err == nil && w.api != "stream" {
		err = json.Unmarshal(data, &answer)
	}
	for _, one := range answer.Data {
		images = append(images, one.B)
	}
	return append(images, answer.Images...), err
}

// job asks with the jobs API.
func (c *client) job(ctx context.Context, w work, body map[string]any, o *outcome) (images [][]byte, err error) {
	var job struct {
		ID             string
		Created, Ended time.Time
		Left           float64 `json:"seconds_left"`
		Picture        struct{ URL string }
	}
	data, err := c.call(ctx, http.MethodPost, "/api/v1/jobs", body, nil)
	if err == nil {
		err = json.Unmarshal(data, &job)
	}
	if err != nil {
		return nil, err
	}
	predicted := time.Duration(job.Left * float64(time.Second))
	var urls []string
	_, err = c.call(ctx, http.MethodGet, "/api/v1/jobs/"+job.ID+"/events", nil, func(event string, data []byte) error {
		select {
		case w.id <- job.ID:
		default:
		}
		err := json.Unmarshal(data, &job)
		if event == "picture" {
			urls = append(urls, job.Picture.URL)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	o.ended, o.predicted = job.Ended.Sub(job.Created), predicted
	for _, url := range urls {
		data, err := c.call(ctx, http.MethodGet, url, nil, nil)
		if _, ok := errors.AsType[*errStatus](err); err != nil && !ok {
			return nil, &errStatus{text: err.Error()} // the server told of the job's end, and has ended too
		} else if err != nil {
			return nil, err
		}
		images = append(images, data)
	}
	return images, nil
}

// call sends a request and returns the answer. each sees the events of an answer that is a stream.
func (c *client) call(ctx context.Context, method, path string, body any, each func(event string, data []byte) error) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 && each != nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return nil, events(resp.Body, each)
	}
	text, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		err = &errStatus{resp.StatusCode, time.Duration(seconds) * time.Second, strings.TrimSpace(string(text))}
	}
	return text, err
}

// events reads a stream of events until the last one.
func events(body io.Reader, each func(event string, data []byte) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 16<<20)
	name := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case field == "event":
			name = value
		case field != "data":
		case name == "failed", name == "canceled", name == "error":
			return &errStatus{status: http.StatusServiceUnavailable, text: name + " " + value}
		case value == "[DONE]":
			return nil
		default:
			if err := each(name, []byte(value)); err != nil || name == "done" {
				return err
			}
		}
	}
	return cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
}
