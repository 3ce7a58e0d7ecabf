// Package protocol has the messages between a debugging session and the commands that control it,
// and the folder of Unix sockets through which they travel.
//
// A message is one line of JSON. A client sends a [Request] and reads an [Answer]; it may send
// further requests after that:
//
//	{"command": "break", "arguments": {"glob": "transformer.layers.0", "step": 3}}
//	{"ok": true, "result": {"number": 1, "glob": "transformer.layers.0", "step": 3, "hits": 0}}
//	{"command": "location"}
//	{"ok": false, "error": "the run has not stopped yet (gomflux debug continue waits for it)", "code": 2}
//
// Sessions of gomflux and of the reference (scripts/reference) speak the same protocol. A request has
// at most 1 MiB. A client may close its side for writing once it has sent its requests, as
// printf '...' | nc -N -U 1.sock does; if it closes the connection, a command that waits ends, and the
// session lives on.
//
// The files of a session in the folder of sockets, which only its user can open, are
//
//	NAME.lock  locked with flock while the session's process lives
//	NAME.sock  the socket, which accepts processes of the same user
//	NAME.json  the last known Status, and after the end how the session ended
//
// A session without a lock that is held has ended. If NAME.json does not describe the end, its
// process was killed, and who notices that removes the other files.
package protocol

import (
	"encoding/json"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

// A Request is a command for a session. Arguments is an object with the fields of the command's
// type below; commands without a type have no arguments.
type Request struct {
	Command   string          `json:"command"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// An Answer is the result of a request. If it is not OK, Error is one line about the reason, and
// Code is the exit code for it: 1 for a failure, 2 for invalid input.
type Answer struct {
	OK     bool            `json:"ok"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
	Code   int             `json:"code,omitempty"`
}

// The commands of a session, with the types of their arguments and results.
const (
	Break     = "break"     // BreakArguments, Breakpoint
	Breaks    = "breaks"    // Breakpoints
	Remove    = "remove"    // RemoveArguments, Removed
	Clear     = "clear"     // Removed
	Continue  = "continue"  // ResumeArguments, Status
	Next      = "next"      // ResumeArguments, Status
	Out       = "out"       // ResumeArguments, Status
	Step      = "step"      // ResumeArguments, Status
	Accept    = "accept"    // ResumeArguments, Status; in a replay: continue with the reference's tensor
	Location  = "location"  // Place
	Vars      = "vars"      // VarsArguments, Variables
	Eval      = "eval"      // EvalArguments, Evaluated
	Save      = "save"      // SaveArguments, Saved
	Set       = "set"       // SetArguments, Replaced
	GetStatus = "status"    // Status
	Terminate = "terminate" // Status
)

// The states of a session.
const (
	Starting = "starting" // checks its arguments, or is stopped before the model is loaded
	Loading  = "loading"  // loads the model
	Running  = "running"
	Stopped  = "stopped"
	Finished = "finished"
	Failed   = "failed" // the run ended with an error
	Killed   = "killed" // the process ended without a word

	Terminated = "terminated" // a command ended the run
)

// BreakArguments describe a breakpoint.
type BreakArguments struct {
	Glob     string `json:"glob,omitempty"` // of the tensor's name, as of --debug-save
	Step     *int   `json:"step,omitempty"`
	Call     *int   `json:"call,omitempty"`
	Hit      int    `json:"hit,omitempty"`      // stop at the Nth match only, from 1; 0 is every match
	Negative bool   `json:"negative,omitempty"` // only in the pass for the negative prompt
	If       string `json:"if,omitempty"`       // an expression that must be true
	Once     bool   `json:"once,omitempty"`     // remove it after the first stop
	Differs  bool   `json:"differs,omitempty"`  // stop where a replay finds a tensor wrong by itself
	File     string `json:"file,omitempty"`     // of the reference's sessions: a line of a Python file
	Line     int    `json:"line,omitempty"`
	Watch    bool   `json:"watch,omitempty"` // report the tensors' statistics instead of stopping
}

// A Breakpoint is one that is set, or a watch.
type Breakpoint struct {
	Number int `json:"number"`
	BreakArguments
	Hits int `json:"hits"` // matches so far
	// Near are names of tensors that are like the glob, which no tensor of the run has matched.
	Near []string `json:"near,omitempty"`
}

// Breakpoints are all breakpoints and watches of a session.
type Breakpoints struct {
	Breakpoints []Breakpoint `json:"breakpoints"`
}

// RemoveArguments name a breakpoint.
type RemoveArguments struct {
	Number int `json:"number"`
}

// Removed lists the numbers of removed breakpoints.
type Removed struct {
	Removed []int `json:"removed"`
}

// ResumeArguments are those of the commands that let the run go on.
type ResumeArguments struct {
	Until   string  `json:"until,omitempty"`    // of continue: stop at a tensor whose name matches
	MaxWait float64 `json:"max_wait,omitempty"` // seconds after which the answer comes in any case
}

// A Status describes a session. It is the answer when the run has stopped or ended, too.
type Status struct {
	Session  string   `json:"session"`
	Side     string   `json:"side"` // gomflux or reference
	State    string   `json:"state"`
	Progress string   `json:"progress,omitempty"` // such as "loading the transformer (41 %)"
	Stop     *Stop    `json:"stop,omitempty"`     // if it is stopped
	Error    string   `json:"error,omitempty"`    // of the run
	ExitCode *int     `json:"exit_code,omitempty"`
	Command  []string `json:"command"`
	PID      int      `json:"pid"`
	Folder   string   `json:"folder,omitempty"` // in which the session was started
	Began    string   `json:"began"`            // RFC 3339
	Run      string   `json:"run,omitempty"`    // folder of the run, if it records one
	Trace    string   `json:"trace"`            // file
	Output   string   `json:"output"`           // file with what the run has printed
	Last     []string `json:"last,omitempty"`
	// Watched are statistics of watched tensors since the last answer.
	Watched []Watched `json:"watched,omitempty"`
	// NeverHit are breakpoints that no tensor has matched, at the end of a run, or that none can match,
	// when the model is loaded.
	NeverHit []Breakpoint `json:"never_hit,omitempty"`
	// TimedOut reports that the run has not stopped within the time that a command waits.
	TimedOut bool `json:"timed_out,omitempty"`
}

// A Stop is the tensor at which a run is stopped: the first output of a module that is done, or a
// value of the pipeline.
type Stop struct {
	Name       string   `json:"name"`   // of the tensor, as in dumps
	Reason     string   `json:"reason"` // such as "breakpoint 1", "next", "checkpoint after_latents"
	Breakpoint int      `json:"breakpoint,omitempty"`
	Hit        int      `json:"hit,omitempty"`
	Module     string   `json:"module"` // its path
	Class      string   `json:"class"`  // "" for a value of the pipeline
	Step       int      `json:"step"`   // -1 outside the denoising loop
	Call       int      `json:"call"`
	Negative   bool     `json:"negative"`
	Sigma      *float64 `json:"sigma,omitempty"`
	Timestep   *float64 `json:"timestep,omitempty"`
	Shape      []int    `json:"shape"`
	Dtype      string   `json:"dtype"` // as PyTorch names it
	// Differs is the verdict about the tensor in a replay that has stopped at a wrong one.
	Differs string `json:"differs,omitempty"`
	// Problem is why a condition could not be evaluated, if that is the reason of the stop.
	Problem string `json:"problem,omitempty"`
}

// Watched are the statistics of a watched tensor.
type Watched struct {
	Number int `json:"number"` // of the watch
	Variable
}

// A Place describes where a run is stopped.
type Place struct {
	Stop
	Location *runs.Location    `json:"location,omitempty"`
	Context  *runs.CodeContext `json:"code_context,omitempty"` // if the source file is at hand
	Around   []AroundItem      `json:"around"`                 // modules, outermost first
	Before   []string          `json:"before"`                 // tensors that passed, the last one last
}

// AroundItem is a module around the stop.
type AroundItem struct {
	Name  string `json:"name"`
	Class string `json:"class,omitempty"`
}

// VarsArguments select what Vars describes.
type VarsArguments struct {
	Weights bool `json:"weights,omitempty"` // statistics of parameters too
}

// A Variable describes a tensor of a stop.
type Variable struct {
	Name    string             `json:"name"`  // as in expressions: out, inp["0"], inner["q"], outs["1"]
	Point   string             `json:"point"` // output, input, inner value or, of a Python frame, local
	Shape   []int              `json:"shape"`
	Dtype   string             `json:"dtype"`
	Stats   checkpoint.Stats   `json:"stats"`
	Preview []checkpoint.Float `json:"preview"` // the first values
	// Value is that of a variable that is not a tensor, in Python's notation.
	Value string `json:"value,omitempty"`
}

// A Parameter is one of a module or of the modules inside it.
type Parameter struct {
	Path      string            `json:"path"` // from the module
	Shape     []int             `json:"shape"`
	Dtype     string            `json:"dtype"`
	Quantized string            `json:"quantized,omitempty"` // such as "4 bits, groups of 64"
	Stats     *checkpoint.Stats `json:"stats,omitempty"`
}

// Variables describe the tensors of a stop.
type Variables struct {
	Name       string      `json:"name"` // of the stop's tensor
	Variables  []Variable  `json:"variables"`
	Parameters []Parameter `json:"parameters"`
}

// EvalArguments are those of Eval: one expression, or lines of a program.
type EvalArguments struct {
	Source string `json:"source"`
}

// Evaluated is the result of an expression.
type Evaluated struct {
	Text   string   `json:"text"`            // the value, as Python prints it
	Value  any      `json:"value,omitempty"` // as JSON; tensors are described
	Output []string `json:"output,omitempty"`
}

// SaveArguments name the saved tensor; the default is the tensor's name.
type SaveArguments struct {
	Name string `json:"name,omitempty"`
}

// Saved is where a tensor was saved.
type Saved struct {
	Name string `json:"name"`
	File string `json:"file"`
}

// SetArguments name the tensor that replaces the output of the stop: FILE[:KEY][@dtype], or the name
// of a saved one.
type SetArguments struct {
	Source string `json:"source"`
}

// Replaced is an output that was replaced.
type Replaced struct {
	Name   string `json:"name"`
	Source string `json:"source"`
}
