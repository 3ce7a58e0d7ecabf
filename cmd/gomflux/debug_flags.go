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
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/parity/debug"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

func (d *debugFlags) add(f *pflag.FlagSet) {
	f.StringArrayVar(&d.options.Save, "debug-save", nil, "save tensors of the run whose names a `glob` matches, such as 'transformer.layers.0.*'; with ! before it, all but those (can be repeated)")
	f.StringArrayVar(&d.load, "debug-load", nil, "put a tensor in the place of the run's: `NAME=FILE[:KEY][@dtype]`, or NAME=SAVED or NAME for one that either side has saved (can be repeated)")
	f.StringVar(&d.options.ExitAfter, "debug-exit-after", "", "end the run after the tensor of this `name`, without a picture")
	f.BoolVar(&d.options.CheckFinite, "check-finite", false, "end the run at the first NaN or infinite value and name the module")
	f.BoolVar(&d.options.BoundsCheck, "bounds-check", false, "compute every tensor at once, so that an error such as an index out of bounds names its place")
	f.StringVar(&d.logDir, "log-dir", "", "the `folder` for saved tensors (default: $GOMFLUX_LOG_DIR, or logs)")
}

// check reads the flags, and finds out whether the files are there.
func (d *debugFlags) check(given func(string) bool) error {
	for _, name := range []string{"debug-exit-after", "log-dir"} {
		if f := map[string]string{"debug-exit-after": d.options.ExitAfter, "log-dir": d.logDir}[name]; given(name) && f == "" {
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
		return usageErrorf("--log-dir does nothing without --debug-save or --debug-load")
	}
	return nil
}

// begin starts to look into a run.
func (d *debugFlags) begin(p *printer) (err error) {
	if !d.options.Any() {
		return nil
	}
	if d.tree, err = debug.Open(d.logDir); err != nil {
		return coded(exitUsage, err)
	}
	d.tree.Warnf = p.warn
	d.session, err = debug.NewSession(d.tree, d.options)
	if errors.Is(err, debug.ErrNotFound) {
		err = coded(exitUsage, err)
	}
	return err
}

// end ends what begin began.
func (d *debugFlags) end() error {
	if d.session == nil {
		return nil
	}
	s := d.session
	d.session = nil
	return s.Close()
}

// into gives a run its hook, and what of it is given.
func (d *debugFlags) into(options *gomflux.Options) {
	if d.session != nil {
		options.Hook, options.Values = hookOf(d.session.Hook), engineValues{d.session}
	}
}

// picture begins the run of one picture. Every one but the first is one of its
// own.
func (d *debugFlags) picture(o *generateOptions, model *gomflux.Model, options *gomflux.Options, index int, p *printer) error {
	if d.session != nil && index > 0 {
		if err := d.end(); err != nil {
			return err
		}
		if err := d.begin(p); err != nil {
			return err
		}
	}
	d.into(options)
	if d.session == nil || d.session.Run() == nil {
		return nil
	}
	run := d.session.Run()
	s := model.Settings(*options)
	settings := map[string]any{
		"pipeline": s.Class, "model": s.Model, "prompt": s.Prompt, "negative_prompt": s.NegativePrompt, "seed": s.Seed, "steps": s.Steps,
		"guidance": s.Guidance, "height": s.Height, "width": s.Width, "max_sequence_length": s.MaxSequenceLength, "scheduler": s.Scheduler,
		"rng": cmp.Or(s.RNG, "mlx"), "compute": s.Dtype, "device": s.Device, "generator": s.Generator,
		"passes": "calls", // the negative prompt's are calls of their own, not rows of a batch
	}
	if dir, err := filepath.Abs(o.model); err == nil && disk.IsFolder(dir) {
		settings["model"] = dir
	}
	copies, err := copyImages(o.images.names, run.Dir)
	if err != nil {
		return err
	}
	if o.edits {
		settings["references"] = copies
	} else if len(copies) > 0 {
		settings["picture"], settings["image_strength"] = copies[0], s.ImageStrength
		settings["first_step"] = scheduler.FirstStep(s.Steps, s.ImageStrength)
	}
	return run.Describe(settings)
}

// copyImages copies pictures into a run's folder, and returns the names they
// have there. image.png is the run's own.
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

// jsonTensors is the line of --json about saved tensors, and about a run that
// ended where it was asked to.
type jsonTensors struct {
	MessageType string `json:"message_type"` // tensors
	Folder      string `json:"folder,omitempty"`
	Saved       int    `json:"saved"`
	EndedAfter  string `json:"ended_after,omitempty"`
}

// failed explains the error of a run. One that ended because it was asked to is
// told of and stays debug.ErrExit.
func (d *debugFlags) failed(err error, p *printer) error {
	s := d.session
	if s == nil {
		return err
	}
	if errors.Is(err, debug.ErrExit) {
		p.end()
		d.tell(s.Last(), p)
		return err
	}
	if errors.Is(err, debug.ErrMismatch) {
		return coded(exitUsage, err)
	}
	return s.Explain(err)
}

// tell says what was saved.
func (d *debugFlags) tell(endedAfter string, p *printer) {
	m := jsonTensors{MessageType: "tensors", EndedAfter: endedAfter}
	if run := d.session.Run(); run != nil {
		m.Folder, m.Saved = run.Dir, run.Saved()
	}
	for _, glob := range d.session.Unsaved() {
		near := ""
		if names := checkpoint.Near(strings.TrimPrefix(glob, "!"), d.session.Seen(), 3); len(names) > 0 {
			near = " (near: " + strings.Join(names, ", ") + ")"
		}
		p.warn("--debug-save %s: no tensor has such a name%s", glob, near)
	}
	if p.json {
		p.line(m)
		return
	}
	var parts []string
	if endedAfter != "" {
		parts = append(parts, "ended after "+endedAfter)
	}
	if len(d.options.Save) > 0 {
		word := "tensors"
		if m.Saved == 1 {
			word = "tensor"
		}
		parts = append(parts, fmt.Sprintf("%d %s saved in %s", m.Saved, word, filepath.Join(m.Folder, "tensors")))
	}
	if len(parts) > 0 && (!p.quiet || endedAfter != "") {
		fmt.Fprintln(p.stderr, strings.Join(parts, ", "))
	}
}

// done ends the run of a picture that is saved.
func (d *debugFlags) done(r *gomflux.Result, p *printer) error {
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
		d.tell("", p)
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
