package native

import (
	"context"
	"errors"
	"net/http"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/pulls"
)

// A jsonPull is a download. Its names are those of gomflux pull --json.
type jsonPull struct {
	pulls.Status
	Own         bool       `json:"own"` // the client can cancel it
	SecondsLeft float64    `json:"seconds_left"`
	Error       *jsonError `json:"error,omitempty"`
}

func (a *API) pullJSON(r *http.Request, s pulls.Status) jsonPull {
	owner := a.Owner(r)
	s.Created, s.Ended = s.Created.UTC(), s.Ended.UTC()
	v := jsonPull{Status: s, Own: owner == "" || owner == s.Client, SecondsLeft: seconds(s.Left)}
	if s.Err != nil {
		_, e := describe(pullError(s.Err))
		v.Error = &e
	}
	return v
}

// pullError gives an error of a download its status.
func pullError(err error) error {
	status, code := http.StatusBadGateway, "hub"
	switch {
	case errors.Is(err, pulls.ErrUnknown):
		status, code = http.StatusNotFound, "not_found"
	case errors.Is(err, pulls.ErrRefused), errors.Is(err, pulls.ErrNotOwner):
		status, code = http.StatusForbidden, "refused"
	case errors.Is(err, pulls.ErrBusy):
		status, code = http.StatusConflict, "busy"
	case errors.Is(err, hub.ErrNoAccess):
		code = "no_access"
	case errors.Is(err, hub.ErrSpace):
		status, code = http.StatusInsufficientStorage, "disk_full"
	}
	return &api.Error{Status: status, Code: code, Message: err.Error()}
}

// listPulls lists the downloads, and the models that can be downloaded.
func (a *API) listPulls(w http.ResponseWriter, r *http.Request) error {
	p, downloads := a.Pulls, []jsonPull{}
	for _, s := range p.Pulls() {
		downloads = append(downloads, a.pullJSON(r, s))
	}
	v := map[string]any{"allowed": p.Refusal == "", "models": append([]pulls.Model{}, p.Models()...), "pulls": downloads}
	if p.Refusal != "" {
		v["reason"] = p.Refusal
	}
	return reply(w, http.StatusOK, v)
}

// startPull starts a download or, with dry_run, describes it.
func (a *API) startPull(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Model  string `json:"model"`
		DryRun bool   `json:"dry_run"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	if q.Model == "" {
		return errs.Requestf("model is missing (GET /api/v1/pulls lists those that can be downloaded)")
	}
	if q.DryRun {
		plan, err := a.Pulls.Plan(r.Context(), q.Model)
		if err != nil {
			return pullError(err)
		}
		return reply(w, http.StatusOK, planJSON(plan))
	}
	d, err := a.Pulls.Start(q.Model, engine.Client(r.Context()))
	if err != nil {
		return pullError(err)
	}
	s := d.Status()
	w.Header().Set("Location", "/api/v1/pulls/"+s.ID)
	return reply(w, http.StatusAccepted, a.pullJSON(r, s))
}

// planJSON describes what a download would fetch, and why it would fail.
func planJSON(p *pulls.Plan) any {
	v := map[string]any{"model": p.Model, "commit": p.Info.Commit, "files": len(p.Files), "total_bytes": p.Bytes, "bytes": p.Here}
	if len(p.Warnings) > 0 {
		v["warnings"] = p.Warnings
	}
	if p.Space != nil {
		_, v["error"] = describe(pullError(p.Space))
	}
	return v
}

// pull returns the download that the path of a request names.
func (a *API) pull(r *http.Request) (*pulls.Pull, error) {
	d, ok := a.Pulls.Pull(r.PathValue("id"))
	if !ok {
		return nil, api.NotFoundf("no such download")
	}
	return d, nil
}

func (a *API) showPull(w http.ResponseWriter, r *http.Request) error {
	d, err := a.pull(r)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, a.pullJSON(r, d.Status()))
}

func (a *API) cancelPull(w http.ResponseWriter, r *http.Request) error {
	d, err := a.pull(r)
	if err != nil {
		return err
	}
	if err := d.Cancel(a.Owner(r)); err != nil {
		return pullError(err)
	}
	return reply(w, http.StatusAccepted, a.pullJSON(r, d.Status()))
}

// pullEvents streams the state of a download: an event for each change, whose kind is progress
// until the end.
func (a *API) pullEvents(w http.ResponseWriter, r *http.Request) error {
	d, err := a.pull(r)
	if err != nil {
		return err
	}
	return follow(w, r, "download", d.Watch, func(_ context.Context, stream *api.Stream, s pulls.Status) error {
		kind := "progress"
		if s.State.Ended() {
			kind = string(s.State)
		}
		return stream.Event(0, kind, a.pullJSON(r, s))
	})
}
