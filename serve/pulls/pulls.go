// Package pulls downloads published models for the clients of the server, one at a time.
package pulls

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve/engine"
)

// A Model is a published model that can be downloaded.
type Model struct {
	Name           string `json:"name"`
	Repo           string `json:"repo"`               // on the hub
	Revision       string `json:"revision,omitempty"` // "" stands for main
	family.Licence        // its Name is "" if only the hub knows it
	Gated          bool   `json:"gated"`            // its files need a token of an account with access
	Access         string `json:"access,omitempty"` // how to get access, if it is gated
	Incomplete     bool   `json:"incomplete"`       // some of its files are here
	Command        string `json:"command"`          // that downloads it
}

// A Config configures a [Puller].
type Config struct {
	// Models lists what can be downloaded.
	Models func() []Model
	// Client returns a client of the hub.
	Client func() (*hub.Client, error)
	// Refusal is why clients may not start downloads, "" if they may.
	Refusal string
	// Warnings returns why a download may be of no use on this machine. It may be nil.
	Warnings func(*hub.Plan) []string
	// Ended is called when a download has ended. It may be nil.
	Ended func(Status)
	// Log gets panics; nil stands for slog's default.
	Log *slog.Logger
}

var (
	// ErrUnknown is the error for names that Config.Models does not list.
	ErrUnknown = errors.New("no such model to download")
	// ErrRefused is the error of servers on which clients may not start downloads.
	ErrRefused = errors.New("this server downloads no models")
	// ErrBusy is the error while another model is being downloaded.
	ErrBusy = errors.New("models are downloaded one at a time")
	// ErrNotOwner is the error for canceling the download of another client.
	ErrNotOwner = errors.New("another client started the download")
)

// Asking is the first state of a download, which asks the hub for the files. The others are those of a job that runs.
const Asking engine.State = "asking"

// A Status describes a download. Its JSON is that of gomflux's own API.
type Status struct {
	ID     string       `json:"id"`
	Client string       `json:"-"`
	Model  string       `json:"model"`
	State  engine.State `json:"state"`
	hub.Progress
	Created time.Time `json:"created"`
	Ended   time.Time `json:"ended,omitzero"` // zero until it ends
	Err     error     `json:"-"`              // of a download that failed
}

// A Puller downloads models.
type Puller struct {
	Config
	asking chan struct{} // limits the requests of [Puller.Plan] to the hub

	mu      sync.Mutex
	pulls   []*Pull // oldest first
	closed  bool
	running sync.WaitGroup
}

// kept is how many ended downloads are remembered.
const kept = 10

// A Pull is a download.
type Pull struct {
	puller *Puller
	model  Model
	cancel context.CancelFunc

	// the fields below are guarded by puller.mu
	status  Status
	changed chan struct{} // is closed at the next change
}

// New returns a Puller.
func New(c Config) *Puller { return &Puller{Config: c, asking: make(chan struct{}, 1)} }

// find returns the model with a name.
func (p *Puller) find(name string) (Model, error) {
	models := p.Models()
	i := slices.IndexFunc(models, func(m Model) bool { return m.Name == name })
	if i < 0 {
		return Model{}, fmt.Errorf("%.200q: %w (it is unknown, or complete already)", name, ErrUnknown)
	}
	if p.Refusal != "" {
		return Model{}, fmt.Errorf("%w: %s (%s)", ErrRefused, p.Refusal, models[i].Command)
	}
	return models[i], nil
}

// A Plan is what a download would fetch.
type Plan struct {
	*hub.Plan
	Model    Model    // with the licence that the hub has, if there is no other
	Warnings []string // why it may be of no use on this machine
	Space    error    // of a disk that is too full
}

// Plan asks the hub what the download of a model would fetch.
func (p *Puller) Plan(ctx context.Context, name string) (*Plan, error) {
	m, err := p.find(name)
	if err != nil {
		return nil, err
	}
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	_, plan, err := p.plan(ctx, m)
	if err != nil {
		return nil, err
	}
	m.Gated = m.Gated || plan.Info.Gated
	if m.Licence.Name == "" {
		m.Licence = family.LicenceNamed(plan.Info.Licence)
	}
	found := &Plan{Plan: plan, Model: m, Space: plan.CheckSpace()}
	if p.Warnings != nil {
		found.Warnings = p.Warnings(plan)
	}
	return found, nil
}

func (p *Puller) plan(ctx context.Context, m Model) (*hub.Client, *hub.Plan, error) {
	client, err := p.Config.Client()
	if err != nil {
		return nil, nil, err
	}
	info, err := client.Info(ctx, m.Repo, m.Revision)
	if err != nil {
		return nil, nil, err
	}
	plan, err := client.Plan(ctx, info, false)
	return client, plan, err
}

// Start starts the download of a model for a client. While the model is being downloaded it
// returns the download that is under way.
func (p *Puller) Start(name, client string) (*Pull, error) {
	m, err := p.find(name)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.pulls {
		switch {
		case other.status.State.Ended():
		case other.model.Name == name:
			return other, nil
		default:
			return nil, fmt.Errorf("%w, and %s is under way", ErrBusy, other.model.Name)
		}
	}
	if p.closed {
		return nil, fmt.Errorf("%w: it is shutting down", ErrRefused)
	}
	ctx, cancel := context.WithCancel(context.Background())
	one := &Pull{puller: p, model: m, cancel: cancel, changed: make(chan struct{}), status: Status{
		ID: engine.NewID(), Client: client, Model: m.Name, State: Asking, Created: time.Now(),
	}}
	p.pulls = append(p.pulls, one)
	p.pulls = p.pulls[max(0, len(p.pulls)-kept):]
	p.running.Go(func() {
		defer cancel()
		one.run(ctx)
	})
	return one, nil
}

// fetch downloads the model.
func (d *Pull) fetch(ctx context.Context) error {
	client, plan, err := d.puller.plan(ctx, d.model)
	if err != nil {
		return err
	}
	d.change(func(s *Status) {
		s.State, s.Progress = engine.Running, hub.Progress{Here: plan.Here, Bytes: plan.Bytes}
	})
	_, err = client.Pull(ctx, plan, func(p hub.Progress) { d.change(func(s *Status) { s.Progress = p }) })
	return err
}

// run downloads the model, and reports how that ends.
func (d *Pull) run(ctx context.Context) {
	err := engine.Protect(d.puller.Log, "download", d.Status().ID, func() error { return d.fetch(ctx) })
	var last Status
	d.change(func(s *Status) {
		switch {
		case err == nil:
			s.State, s.Here = engine.Done, s.Bytes
		case ctx.Err() != nil:
			s.State = engine.Canceled
		default:
			s.State, s.Err = engine.Failed, err
		}
		s.Ended, s.PerSecond, s.Left, s.Waiting = time.Now(), 0, 0, ""
		last = *s
	})
	if d.puller.Ended != nil {
		d.puller.Ended(last)
	}
}

// change changes the status, and wakes those who watch it.
func (d *Pull) change(f func(*Status)) {
	d.puller.mu.Lock()
	defer d.puller.mu.Unlock()
	f(&d.status)
	close(d.changed)
	d.changed = make(chan struct{})
}

// Pulls returns the downloads, newest first: the one that is under way and some that have ended.
func (p *Puller) Pulls() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Status
	for _, d := range slices.Backward(p.pulls) {
		all = append(all, d.status)
	}
	return all
}

// Pull returns the download with an id.
func (p *Puller) Pull(id string) (*Pull, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.pulls {
		if d.status.ID == id {
			return d, true
		}
	}
	return nil, false
}

// Status describes the download.
func (d *Pull) Status() Status {
	status, _ := d.look()
	return status
}

// look returns the status, and a channel that is closed when it changes.
func (d *Pull) look() (Status, <-chan struct{}) {
	d.puller.mu.Lock()
	defer d.puller.mu.Unlock()
	return d.status, d.changed
}

// Watch returns the status, and again whenever it has changed, until the download has ended or ctx
// is done. A slow reader misses changes, but not the end.
func (d *Pull) Watch(ctx context.Context) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		for {
			status, changed := d.look()
			if !yield(status) || status.State.Ended() {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Cancel ends the download. What was fetched is kept, and the next download of the model resumes. A
// client that is not "" can cancel its own downloads only.
func (d *Pull) Cancel(client string) error {
	if client != "" && client != d.Status().Client {
		return ErrNotOwner
	}
	d.cancel()
	return nil
}

// Close cancels the download that is under way, and waits for its end. There are no downloads
// afterwards.
func (p *Puller) Close() {
	p.mu.Lock()
	p.closed = true
	for _, d := range p.pulls {
		d.cancel()
	}
	p.mu.Unlock()
	p.running.Wait()
}
