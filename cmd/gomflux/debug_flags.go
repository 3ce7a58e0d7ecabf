package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/parity/debug"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// debugFlags are the flags of generate and edit that save and replace tensors of
// a run, or stop it early.
type debugFlags struct {
	options debug.Options
	load    []string
	logDir  string

	tree    *debug.Tree
	session *debug.Session // nil without such flags
}

func (d *debugFlags) add(f *pflag.FlagSet) {
	f.StringArrayVar(&d.options.Save, "debug-save", nil,
		"save tensors whose names match a `glob` such as 'transformer.layers.0.*'; !GLOB leaves out matches (can be repeated)")
	f.StringArrayVar(&d.load, "debug-load", nil,
		"replace a `tensor`: NAME=FILE[:KEY][@dtype], or NAME=SAVED or NAME for a saved tensor (can be repeated)")
	f.StringVar(&d.options.ExitAfter, "debug-exit-after", "", "end the run after the tensor of this `name`, without an image")
	f.BoolVar(&d.options.CheckFinite, "check-finite", false, "end the run at the first NaN or infinite value and name the module")
	f.BoolVar(&d.options.BoundsCheck, "bounds-check", false,
		"compute every tensor immediately, so that errors such as an index out of bounds name the place")
	f.StringVar(&d.logDir, "log-dir", "", "`folder` for saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
}

// validate parses the flags, and checks that the files exist.
func (d *debugFlags) validate(given func(string) bool) error {
	for name, value := range map[string]string{"debug-exit-after": d.options.ExitAfter, "log-dir": d.logDir} {
		if given(name) && value == "" {
			return usageErrorf("--%s: the name is empty", name)
		}
	}
	for _, s := range d.load {
		r, err := debug.ParseReplacement(s)
		if err != nil {
			return usageErrorf("--debug-load: %w", err)
		}
		d.options.Load = append(d.options.Load, r)
	}
	if err := d.options.Check(); err != nil {
		return coded(exitUsage, err)
	}
	if d.logDir != "" && !d.options.UsesTree() {
		return usageErrorf("--log-dir has no effect without --debug-save or --debug-load")
	}
	return nil
}

// begin starts a session, if any of the flags is given.
func (d *debugFlags) begin(out *ui.Output) (err error) {
	if !d.options.Any() {
		return nil
	}
	if d.tree, err = debug.Open(d.logDir); err != nil {
		return coded(exitUsage, err)
	}
	d.tree.Warnf = out.Warn
	d.session, err = debug.NewSession(d.tree, d.options)
	if errors.Is(err, debug.ErrNotFound) {
		err = coded(exitUsage, err)
	}
	return err
}

// end ends the session.
func (d *debugFlags) end() error {
	if d.session == nil {
		return nil
	}
	s := d.session
	d.session = nil
	return s.Close()
}

// attach sets the hook and the replaced values of a run.
func (d *debugFlags) attach(options *gomflux.Options) {
	if d.session != nil {
		options.Hook, options.Values = hookOf(d.session.Hook), engineValues{d.session}
	}
}

// beginImage begins the run of an image. Every image but the first has a session of
// its own.
func (d *debugFlags) beginImage(g *generation, index int) error {
	if d.session != nil && index > 0 {
		if err := d.end(); err != nil {
			return err
		}
		if err := d.begin(g.out); err != nil {
			return err
		}
	}
	d.attach(&g.options)
	if d.session == nil || d.session.Run() == nil {
		return nil
	}
	run := d.session.Run()
	s := g.model.Settings(g.options)
	settings := map[string]any{
		"pipeline": s.Class, "model": s.Model, "prompt": s.Prompt, "negative_prompt": s.NegativePrompt, "seed": s.Seed, "steps": s.Steps,
		"guidance": s.Guidance, "height": s.Height, "width": s.Width, "max_sequence_length": s.MaxSequenceLength, "scheduler": s.Scheduler,
		"rng": cmp.Or(s.RNG, "mlx"), "compute": s.Dtype, "device": s.Device, "generator": s.Generator,
		"passes": "calls", // the negative prompt has calls of its own, not rows of a batch
	}
	if dir, err := filepath.Abs(g.modelFlags.model); err == nil && disk.IsFolder(dir) {
		settings["model"] = dir
	}
	copies, err := copyImages(g.images.names, run.Dir)
	if err != nil {
		return err
	}
	if g.edits {
		settings["references"] = copies
	} else if len(copies) > 0 {
		settings["picture"], settings["image_strength"] = copies[0], s.ImageStrength
		settings["first_step"] = scheduler.FirstStep(s.Steps, s.ImageStrength)
	}
	return run.Describe(settings)
}

// copyImages copies images into a run's folder and returns their names there.
// image.png is the generated image.
func copyImages(names []string, dir string) (copies []string, err error) {
	taken := map[string]bool{"image.png": true}
	for i, name := range names {
		base := filepath.Base(name)
		for taken[base] {
			base = fmt.Sprintf("%d-%s", i+1, base)
		}
		taken[base] = true
		data, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "images", base), data, 0o666)
		}
		if err != nil {
			return nil, err
		}
		copies = append(copies, "images/"+base)
	}
	return copies, nil
}

// savedTensors is the JSON line about saved tensors, and about a run that ended at
// --debug-exit-after.
type savedTensors struct {
	MessageType string `json:"message_type"` // tensors
	Folder      string `json:"folder,omitempty"`
	Saved       int    `json:"saved"`
	EndedAfter  string `json:"ended_after,omitempty"`

	saves bool // --debug-save is given
}

// text returns the same in words, "" if there is nothing to report.
func (t savedTensors) text() string {
	var parts []string
	if t.EndedAfter != "" {
		parts = append(parts, "ended after "+t.EndedAfter)
	}
	if t.saves {
		parts = append(parts, fmt.Sprintf("%s saved in %s", ui.Plural(t.Saved, "tensor"), filepath.Join(t.Folder, "tensors")))
	}
	return strings.Join(parts, ", ")
}

// failed explains the error of a run. It reports a run that ended at
// --debug-exit-after, whose error stays debug.ErrExit.
func (d *debugFlags) failed(err error, g *generation) error {
	s := d.session
	if s == nil {
		return err
	}
	if errors.Is(err, debug.ErrExit) {
		g.report.end()
		d.report(s.Last(), g)
		return err
	}
	if errors.Is(err, debug.ErrMismatch) {
		return coded(exitUsage, err)
	}
	return s.Explain(err)
}

// report reports the saved tensors, and warns of globs without a match.
func (d *debugFlags) report(endedAfter string, g *generation) {
	t := savedTensors{MessageType: "tensors", EndedAfter: endedAfter, saves: len(d.options.Save) > 0}
	if run := d.session.Run(); run != nil {
		t.Folder, t.Saved = run.Dir, run.Saved()
	}
	for _, glob := range d.session.Unsaved() {
		near := ""
		if names := checkpoint.Similar(strings.TrimPrefix(glob, "!"), d.session.Seen(), 3); len(names) > 0 {
			near = " (near: " + strings.Join(names, ", ") + ")"
		}
		g.out.Warn("--debug-save %s: no tensor name matches%s", glob, near)
	}
	g.report.tensors(t)
}

// endImage ends the run of a saved image.
func (d *debugFlags) endImage(r *gomflux.Result, g *generation) error {
	s := d.session
	if s == nil {
		return nil
	}
	if run := s.Run(); run != nil {
		f, err := os.Create(filepath.Join(run.Dir, "images", "image.png"))
		if err == nil {
			err = picture.Encode(f, picture.PNG, r.Image, nil)
			err = cmp.Or(err, f.Close())
		}
		if err == nil {
			err = run.Describe(map[string]any{"scheduler_name": r.Settings.Scheduler, "steps_run": r.StepsRun, "mlx": r.Settings.MLX})
		}
		if err != nil {
			return err
		}
	}
	if len(d.options.Save) > 0 {
		d.report("", g)
	}
	return coded(exitUsage, oneLine(s.Unmatched()))
}

// oneLine joins the lines of an error.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
