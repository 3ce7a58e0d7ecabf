package native

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

func (a *API) submit(w http.ResponseWriter, r *http.Request) error {
	q, err := a.readRequest(r)
	if err != nil {
		return err
	}
	j, err := a.engine.Submit(r.Context(), q)
	if err != nil {
		return err
	}
	a.Keep(j, q.Client)
	return a.accepted(w, r, j)
}

// accepted answers with a job that was submitted.
func (a *API) accepted(w http.ResponseWriter, r *http.Request, j api.Job) error {
	w.Header().Set("Location", "/api/v1/jobs/"+j.ID())
	return reply(w, http.StatusAccepted, a.jobJSON(r.Context(), j.Status(), j))
}

// Keep stores the images of a client's job in the gallery as they are finished, whether a client reads
// its events or not, and tells those who follow all jobs. The API does so for its own jobs.
func (a *API) Keep(j api.Job, client string) {
	defer a.announce()
	if a.Gallery == nil {
		return
	}
	if !a.Private {
		client = ""
	}
	a.storing.Go(func() { a.store(j, client) })
}

// store stores the images of a job, which then need no memory any more.
func (a *API) store(j api.Job, owner string) {
	all := true
	for e := range j.Events(context.Background(), 0) {
		if e.Kind != engine.EventPicture {
			continue
		}
		p := e.Picture
		var names engine.Names
		err := engine.Protect(a.Log, "job", j.ID(), func() (err error) {
			if names.Layers, err = a.storeLayers(owner, p); err != nil {
				return err
			}
			entry, err := a.Gallery.Add(owner, p.Result.Pixels(), p.Result.Settings)
			if err == nil {
				names.Name = entry.Name
			}
			return err
		})
		if err != nil {
			a.warn(err)
			all = false
		}
		p.Keep(names)
	}
	if all {
		j.Stored()
	}
}

// names returns the names of an image in the gallery, after waiting for it to be stored.
func (a *API) names(ctx context.Context, p *engine.Picture) engine.Names {
	if a.Gallery == nil {
		return engine.Names{}
	}
	return p.Names(ctx)
}

// A jsonJob is a job. Events have its prompt and label only if they are queued or position.
type jsonJob struct {
	engine.Status
	SecondsLeft float64       `json:"seconds_left,omitempty"`
	Error       *jsonError    `json:"error,omitempty"`
	Pictures    []jsonPicture `json:"pictures,omitempty"`
}

// A jsonPicture is a finished image of a job.
type jsonPicture struct {
	Index    int                `json:"index"`
	Seed     uint64             `json:"seed"`
	URL      string             `json:"url"`
	Name     string             `json:"name,omitempty"`       // in the gallery
	Layers   []string           `json:"layers,omitempty"`     // addresses of the layers, the lowest first
	ORA      string             `json:"openraster,omitempty"` // address of all of them in a file
	Settings picture.Settings   `json:"settings"`
	Seconds  map[string]float64 `json:"seconds"`

	PeakMemory   int  `json:"peak_memory_bytes"`
	PromptTokens int  `json:"prompt_tokens"`
	CutTokens    int  `json:"cut_tokens,omitempty"`
	PromptCached bool `json:"prompt_cached,omitempty"`
}

// jobJSON describes a job, with its images unless j is nil.
func (a *API) jobJSON(ctx context.Context, s engine.Status, j api.Job) jsonJob {
	s.Created, s.Started, s.Ended = s.Created.UTC(), s.Started.UTC(), s.Ended.UTC()
	v := jsonJob{Status: s, SecondsLeft: seconds(s.Left)}
	if s.Err != nil {
		_, e := describe(s.Err)
		v.Error = &e
	}
	if j != nil {
		for _, p := range j.Pictures() {
			v.Pictures = append(v.Pictures, a.pictureJSON(ctx, s.ID, p))
		}
	}
	return v
}

// pictureJSON describes an image of a job. It waits for one that is being stored, so that each has one address.
func (a *API) pictureJSON(ctx context.Context, id string, p *engine.Picture) jsonPicture {
	name := a.names(ctx, p).Name
	url := "/api/v1/jobs/" + id + "/pictures/" + strconv.Itoa(p.Index)
	if name != "" {
		url = "/api/v1/pictures/" + name
	}
	r := p.Result
	var layers []string
	ora := ""
	for i := range r.Settings.Layers {
		layers = append(layers, layersURL(id, p.Index)+strconv.Itoa(i+1))
		ora = layersURL(id, p.Index) + "ora"
	}
	return jsonPicture{
		Index: p.Index, Seed: p.Seed, URL: url, Name: name, Layers: layers, ORA: ora, Settings: r.Settings,
		Seconds:    map[string]float64{"encode": seconds(r.EncodeTime), "steps": seconds(r.StepTime), "decode": seconds(r.DecodeTime)},
		PeakMemory: r.PeakMemory, PromptTokens: r.PromptTokens, CutTokens: r.CutTokens, PromptCached: r.PromptCached,
	}
}

// seconds returns a duration in seconds, rounded to milliseconds.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

func (a *API) listJobs(w http.ResponseWriter, r *http.Request) error {
	jobs := []jsonJob{}
	for _, s := range a.engine.Jobs(a.Owner(r)) {
		jobs = append(jobs, a.jobJSON(r.Context(), s, nil))
	}
	return reply(w, http.StatusOK, map[string]any{"jobs": jobs})
}

// job returns the job that the path of a request names.
func (a *API) job(r *http.Request) (api.Job, error) {
	j, ok := a.engine.Job(r.PathValue("id"), a.Owner(r))
	if !ok {
		return nil, api.NotFoundf("no such job (jobs are kept for a limited time after their end)")
	}
	return j, nil
}

// onJob returns the handler of a request that does something with a job, which is then described.
func (a *API) onJob(status int, do func(api.Job)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		j, err := a.job(r)
		if err != nil {
			return err
		}
		do(j)
		return reply(w, status, a.jobJSON(r.Context(), j.Status(), j))
	}
}

// jobPicture serves an image of a job, from the gallery if it is there.
func (a *API) jobPicture(w http.ResponseWriter, r *http.Request) error {
	j, err := a.job(r)
	if err != nil {
		return err
	}
	for _, p := range j.Pictures() {
		if strconv.Itoa(p.Index) != r.PathValue("index") {
			continue
		}
		if which := r.FormValue("layer"); which != "" {
			return a.layer(w, r, p, which)
		}
		if name := a.names(r.Context(), p).Name; name != "" {
			return a.file(w, r, name)
		}
		var b bytes.Buffer
		if err := api.EncodePNG(&b, p.Result.Pixels(), p.Result.Settings); err != nil {
			return err
		}
		pngHeaders(w, r, "gomflux-"+strconv.FormatUint(p.Seed, 10)+".png")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b.Bytes()))
		return nil
	}
	return api.NotFoundf("the job has no such image yet")
}

// eventJSON is the data of an event: the job, and what is special about its kind.
type eventJSON struct {
	jsonJob
	Bytes      int64        `json:"bytes,omitempty"`
	TotalBytes int64        `json:"total_bytes,omitempty"`
	Text       string       `json:"text,omitempty"`
	Thinking   bool         `json:"thinking,omitempty"`
	Preview    *jsonPreview `json:"preview,omitempty"`
	Picture    *jsonPicture `json:"picture,omitempty"`
}

type jsonPreview struct {
	Part   int    `json:"part"` // number among the previews of the image, from 0
	Format string `json:"format"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
	Data   []byte `json:"data"` // base64 in JSON
}
