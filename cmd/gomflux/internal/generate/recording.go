package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/parity/runs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// validateSession refuses --profile in a debugging session.
func (o *generateOptions) validateSession(ctx context.Context) error {
	if o.profile.File != "" && record.HostOf(ctx) != nil {
		return cli.UsageErrorf("--profile cannot be used in a debugging session (the times would include its stops)")
	}
	return nil
}

// beginRecording begins the recorded run of an image. Every image but the first has a session of
// its own.
func (g *generation) beginRecording(index int) error {
	d := &g.debug
	if d.Session != nil && index > 0 {
		if err := d.End(); err != nil {
			return err
		}
		if err := d.Begin(g.out); err != nil {
			return err
		}
	}
	g.attach()
	if d.Session == nil || d.Session.Run() == nil {
		return nil
	}
	run := d.Session.Run()
	g.debugger.Recording(run)
	s := g.model.Settings(g.options)
	settings := map[string]any{
		"pipeline": s.Class, "model": s.Model, "prompt": s.Prompt, "negative_prompt": s.NegativePrompt, "seed": s.Seed, "steps": s.Steps,
		"guidance": s.Guidance, "height": s.Height, "width": s.Width, "max_sequence_length": s.MaxSequenceLength, "scheduler": s.Scheduler,
		"rng": cmp.Or(s.RNG, "mlx"), "compute": s.Dtype, "device": s.Device, "generator": s.Generator,
		"passes": "calls", // the negative prompt has calls of its own, not rows of a batch
	}
	for name, value := range map[string]any{
		"guidance_interval": s.GuidanceInterval, "sigmas": s.Sigmas, "true_cfg_scale": s.TrueCFGScale,
		"cfg_normalization": s.CFGNormalization, "cfg_truncation": s.CFGTruncation, "step_cache": s.StepCache,
	} {
		if !reflect.ValueOf(value).IsZero() {
			settings[name] = value
		}
	}
	if dir, err := filepath.Abs(g.ModelFlags.Model); err == nil && disk.IsFolder(dir) {
		settings["model"] = dir
	}
	copies, err := copyImages(g.images, run.Dir)
	if err = d.Session.Tolerate(err); err != nil {
		return err
	}
	switch {
	case g.masked():
		settings["picture"], settings["image_strength"], settings["references"] = copies[0], s.ImageStrength, copies[1:]
		err = g.recordMask(settings, run.Dir)
	case g.edits:
		settings["references"] = copies
	case len(copies) > 0:
		settings["picture"], settings["image_strength"] = copies[0], s.ImageStrength
		settings["first_step"] = scheduler.FirstStep(s.Steps, s.ImageStrength)
	}
	if err = d.Session.Tolerate(err); err != nil {
		return err
	}
	return d.Session.Describe(settings)
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

// writeImage writes an image to a run's folder.
func writeImage(dir, name string, img image.Image) error {
	f, err := os.Create(filepath.Join(dir, "images", name))
	if err != nil {
		return err
	}
	return cmp.Or(picture.Encode(f, picture.PNG, img, nil), f.Close())
}

// explain explains the error of a run. It reports a run that ended at
// --debug-exit-after, whose error stays runs.ErrExit.
func (g *generation) explain(err error) error {
	s := g.debug.Session
	if s == nil {
		return err
	}
	if errors.Is(err, runs.ErrExit) {
		g.report.end()
		g.reportTensors(s.Last())
		return cmp.Or(s.Lost(), err)
	}
	if errors.Is(err, runs.ErrMismatch) {
		return cli.Coded(cli.ExitUsage, err)
	}
	return s.Explain(err)
}

// reportTensors reports the saved tensors, and warns of globs without a match.
func (g *generation) reportTensors(endedAfter string) {
	d := &g.debug
	t := record.SavedTensors{MessageType: "tensors", EndedAfter: endedAfter, Options: &d.Options}
	if run := d.Session.Run(); run != nil {
		t.Folder, t.Saved, t.Stats = run.Dir, run.Saved(), run.Recorded()
		for _, glob := range d.Session.UnmatchedGlobs() {
			near := ""
			if names := checkpoint.Similar(strings.TrimPrefix(glob.Pattern, "!"), d.Session.Seen(), 3); len(names) > 0 {
				near = " (near: " + strings.Join(names, ", ") + ")"
			}
			g.out.Warn("--debug-%s %s: no tensor name matches%s", glob.Option, glob.Pattern, near)
		}
	}
	g.report.tensors(t)
}

// endRecording ends the recorded run of a saved image.
func (g *generation) endRecording(r *gomflux.Result) error {
	d, s := &g.debug, g.debug.Session
	if s == nil {
		return nil
	}
	if run := s.Run(); run != nil {
		err := writeImage(run.Dir, "image.png", r.Image)
		if err == nil {
			made := map[string]any{"scheduler_name": r.Settings.Scheduler, "steps_run": r.StepsRun, "mlx": r.Settings.MLX}
			if g.masked() {
				made["first_step"] = r.Settings.Steps - r.StepsRun
			}
			err = s.Describe(made)
		}
		if err = s.Tolerate(err); err != nil {
			return err
		}
	}
	if d.Options.Records() {
		g.reportTensors("")
	}
	err := cmp.Or(s.Lost(), cli.Coded(cli.ExitUsage, record.OneLine(s.Unmatched())))
	if err != nil { // of a run that has made its image
		ui.Complain(&d.Log, err)
		d.End()
	}
	return err
}
