// Package engine runs jobs: requests for images that wait in one queue, are run one after the other
// with models that are loaded on demand, and report what happens as events.
package engine

import (
	"context"
	"errors"
	"fmt"
	"image"
	"log/slog"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// A Request asks for images.
type Request struct {
	// Client is who asks: the name of a token, or an address. Clients take turns, see [Engine].
	Client string
	// Model is the name of a model, as of [Engine.Models].
	Model string
	LoRAs []gomflux.LoRA
	// Options are those of every image. Callbacks and the seed are not used.
	Options gomflux.Options
	// Sources are recorded in the settings of the images.
	Sources Sources
	// Seeds has the seed of each image. They are generated one after the other, since batches
	// change low bits. A request without any is for text, or for Upscale.
	Seeds []uint64
	// Upscale, if set, is what the request asks for, without a model.
	Upscale *Upscaling
	// Language, if set, lets a language model write the answer to Messages, or otherwise rewrite the prompt
	// first. Its Model is named as Model, "" for that one. Callbacks are not used.
	Language *gomflux.LanguageOptions
	Messages []gomflux.Message
	// Previews is how many previews of each image the client wants, spread over its steps; -1 is
	// one after each step.
	Previews int
	// Warnings are what the client is told about the request.
	Warnings []string
	// Label is what the client wants to know of the job later, such as its place in a grid.
	Label string
}

// Sources are the files of a request's images, which have the same names in its Options.
type Sources struct {
	Image, Mask *picture.SourceImage
	References  []picture.SourceImage
}

// A State is the state of a job.
type State string

// The states, in order. A job ends as done, failed or canceled.
const (
	Queued   State = "queued"
	Loading  State = "loading"
	Writing  State = "writing" // a language model writes
	Running  State = "running"
	Done     State = "done"
	Failed   State = "failed"
	Canceled State = "canceled"
)

// Ended reports whether a job in the state has ended.
func (s State) Ended() bool { return s == Done || s == Failed || s == Canceled }

// A Status describes a job. Its JSON is that of gomflux's own API.
type Status struct {
	ID      string    `json:"id"` // unguessable
	Client  string    `json:"-"`
	State   State     `json:"state"`
	Model   string    `json:"model"`
	Prompt  string    `json:"prompt,omitempty"`
	Label   string    `json:"label,omitempty"` // of the request
	Ahead   int       `json:"ahead"`           // jobs that run before it, while it is queued
	Image   int       `json:"index"`           // the image that is being generated, from 0
	Images  int       `json:"count"`
	Step    int       `json:"step"` // steps of that image that are done
	Steps   int       `json:"steps"`
	Created time.Time `json:"created"`
	Started time.Time `json:"started,omitzero"` // zero until it runs
	Ended   time.Time `json:"ended,omitzero"`   // zero until it ends
	// Left is the time until it ends, as earlier jobs suggest, 0 if there were none.
	Left time.Duration `json:"-"`
	Err  error         `json:"-"` // of a job that failed
	// Warnings are those of the Request, and of the language model.
	Warnings []string `json:"warnings,omitempty"`
	// Answer is what the language model wrote, once it is complete: the answer, or the rewritten prompt.
	Answer *gomflux.Answer `json:"answer,omitempty"`
}

// A Kind is the kind of an event.
type Kind string

// The kinds of events. A job has any number of them, and one of Done, Failed and Canceled at the end.
const (
	EventQueued   Kind = "queued"  // Status.Ahead has changed
	EventLoading  Kind = "loading" // Bytes of Total of the model are loaded
	EventText     Kind = "text"    // a language model has written Text
	EventWritten  Kind = "written" // all of it, which is Status.Answer
	EventStep     Kind = "step"
	EventPreview  Kind = "preview"
	EventPicture  Kind = "picture" // an image is finished
	EventDone     Kind = "done"
	EventFailed   Kind = "failed"
	EventCanceled Kind = "canceled"
)

// An Event is something that happened to a job.
type Event struct {
	Number       int // from 1, without gaps for those who read in time
	Kind         Kind
	Status       Status
	Bytes, Total int64       // of EventLoading
	Text         string      // of EventText: a part of the text
	Thinking     bool        // Text is not part of the answer
	Preview      *image.RGBA // of EventPreview
	Part         int         // of EventPreview: its number among the previews of the image, from 0
	Picture      *Picture    // of EventPicture
}

// A Picture is a finished image.
type Picture struct {
	Index  int // in Request.Seeds
	Seed   uint64
	Result *gomflux.Result

	names Names
	kept  chan struct{} // is closed when names are known
}

// Names are those under which an image and its layers are stored, Name "" if it could not be.
type Names struct {
	Name   string
	Layers []string
}

// NewPicture returns a finished image that is not stored yet.
func NewPicture(index int, seed uint64, result *gomflux.Result) *Picture {
	return &Picture{Index: index, Seed: seed, Result: result, kept: make(chan struct{})}
}

// Keep notes once under which names the image is stored.
func (p *Picture) Keep(names Names) {
	p.names = names
	close(p.kept)
}

// Names returns the names of Keep, for which it waits until ctx is done.
func (p *Picture) Names(ctx context.Context) Names {
	select {
	case <-p.kept:
		return p.names
	case <-ctx.Done():
		return Names{}
	}
}

// A FullError reports that the queue is full, or that it has too many jobs of the client.
type FullError struct {
	Jobs  int           // that wait
	Own   int           // those of the client if there are too many of them, otherwise 0
	Retry time.Duration // after which it may be worth trying again
}

func (e *FullError) Error() string {
	if e.Own > 0 {
		const text = "the free places in the queue are for other clients: %d of the %d jobs that wait are yours (try again in %v)"
		return fmt.Sprintf(text, e.Own, e.Jobs, e.Retry.Round(time.Second))
	}
	return fmt.Sprintf("the queue is full: %d jobs wait (try again in %v)", e.Jobs, e.Retry.Round(time.Second))
}

// ErrClosed is the error of requests while the engine shuts down.
var ErrClosed = errors.New("the server is shutting down")

// A Model is what the engine needs of a [gomflux.Model].
type Model interface {
	Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error)
	Check(o gomflux.Options) error
	Preview(ctx context.Context, l gomflux.Latents) (*image.RGBA, error)
	Defaults() gomflux.Defaults
	Multiple() int
	Class() string
	Close() error
}

// Rounds is a Model of several processes, which generates the first one or more of some seeds at the same time.
type Rounds interface {
	Round(ctx context.Context, o gomflux.Options, seeds []uint64) ([]*gomflux.Result, error)
}

// A LanguageModel is what the engine needs of a [gomflux.LanguageModel].
type LanguageModel interface {
	// Enhance rewrites a prompt for an image model.
	Enhance(ctx context.Context, model, prompt string, references []image.Image, o *gomflux.LanguageOptions) (*gomflux.Enhanced, error)
	Chat(ctx context.Context, messages []gomflux.Message, o *gomflux.LanguageOptions) (*gomflux.Answer, error)
	Close() error
}

// ModelInfo describes a model that can be named in a request. Its JSON is that of gomflux's own API.
type ModelInfo struct {
	Name string `json:"name"`
	// Path is the path by which the model was given to the server, if it was. Requests can name the model
	// by it too.
	Path     string `json:"-"`
	Repo     string `json:"repo,omitempty"` // of a published model
	Revision string `json:"revision,omitempty"`
	Default  bool   `json:"default"`           // the model of requests that name none
	Loaded   bool   `json:"loaded"`            // in memory now
	Missing  string `json:"missing,omitempty"` // why it cannot be used, with the command that would help; "" if it can be
	Edits    bool   `json:"edits"`             // takes reference images
	Multiple bool   `json:"multiple"`          // takes several of them
	Writes   bool   `json:"writes"`            // has a language model
	Sees     bool   `json:"sees"`              // its language model sees images
	// OnlyWrites reports that it has nothing but a language model. Missing says so, and is no hindrance to texts.
	OnlyWrites bool `json:"only_writes,omitempty"`
	HasAlpha   bool `json:"transparent"`      // generates transparent images, and sees the transparency of input images
	Boxes      bool `json:"boxes,omitempty"`  // rewritten prompts can have boxes
	Layers     int  `json:"layers,omitempty"` // default number of layers into which it splits an image, 0 if it does not
	family.Licence
	Defaults gomflux.Defaults `json:"defaults"`
	// SizeMultiple is what the sides of images are multiples of, 0 if that is unknown.
	SizeMultiple int   `json:"size_multiple,omitempty"`
	Bytes        int64 `json:"bytes,omitempty"` // size of its files, 0 if it is not here
	// Peak is the estimated memory for an image of the default size, and Free what is available for it
	// on this machine, in bytes; 0 if they are not known.
	Peak int64 `json:"peak_bytes,omitempty"`
	Free int64 `json:"free_bytes,omitempty"`
	// GuidanceUnit is how the guidance scale of Defaults counts.
	GuidanceUnit picture.GuidanceUnit `json:"-"`
	TrueCFG      bool                 `json:"-"`                // takes [gomflux.Options].TrueCFGScale
	Created      time.Time            `json:"created,omitzero"` // of its files
}

// CanWrite reports whether the model can write texts, about images if sees is set.
func (m *ModelInfo) CanWrite(sees bool) bool {
	return m.Writes && (m.Sees || !sees) && (m.Missing == "" || m.OnlyWrites)
}

// Is reports whether a name is that of the model.
func (m *ModelInfo) Is(name string) bool { return name != "" && (name == m.Name || name == m.Path) }

// A Config configures an engine.
type Config struct {
	// Open loads a model. progress is called while it is loaded.
	Open func(ctx context.Context, name string, loras []gomflux.LoRA, progress func(gomflux.Progress)) (Model, error)
	// OpenLanguage loads the language model of a model that can be named, with Progress and MakeRoom of the
	// options. nil stands for no language models.
	OpenLanguage func(ctx context.Context, name string, o *gomflux.LanguageOptions) (LanguageModel, error)
	// Models lists the models that can be named.
	Models func() []ModelInfo
	// Queue is the largest number of jobs that wait while another one runs.
	Queue int
	// Shared keeps places in the queue free for other clients, see [Engine].
	Shared bool
	// KeepAlive is how long a model stays in memory after its last job; negative is for ever, and 0
	// frees it unless the next job needs it.
	KeepAlive time.Duration
	// Keep is how long ended jobs can be asked for.
	Keep time.Duration
	// Now is the clock, time.Now if nil. Timers use the system's.
	Now func() time.Time
	// Memory returns the memory in use, and what is kept for later use, in bytes, for [Stats]. It can
	// be nil.
	Memory func() (active, cache int64)
	// Release returns memory that is not in use to the system. It is called when no job has run and
	// nothing was freed for Rest. It can be nil.
	Release func()
	Rest    time.Duration
	// Log gets panics; nil stands for slog's default.
	Log *slog.Logger
}
