package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/profile"
)

// profileFlags are the flags of generate and edit that measure every module of the run.
type profileFlags struct {
	file      string
	overwrite bool

	out      *atomicfile.File
	profiler *profile.Profiler // nil without the flag
	facts    map[string]any
}

func (f *profileFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "profile", "",
		"measure time and memory of every module: write a trace for ui.perfetto.dev to this `file`, and print a table")
}

// validate refuses what cannot be profiled, which a run with debugging flags is, and a file that cannot
// be written.
func (f *profileFlags) validate(image fileFlags, debugged bool, given func(string) bool) error {
	f.overwrite = image.overwrite
	switch {
	case !given("profile"):
		return nil
	case debugged:
		return usageErrorf("--profile and debugging flags cannot be combined (the times would include their work)")
	case filepath.Clean(f.file) == filepath.Clean(image.output):
		return usageErrorf("--profile and --output are the same file: %s", f.file)
	}
	return f.validateFile()
}

// validateFile refuses a file that cannot be written.
func (f *profileFlags) validateFile() error {
	if f.file == "" {
		return usageErrorf("--profile: the file name is empty")
	}
	err := checkName(f.file, "profile.json")
	if err == nil {
		err = checkFolderOf(f.file)
	}
	return coded(exitUsage, err)
}

// begin begins the profile, before the model is loaded.
func (f *profileFlags) begin(ctx context.Context) (err error) {
	if f.file == "" {
		return nil
	}
	if f.out, err = newTemporary(f.file); err != nil {
		return usageErrorf("output %s: %w", f.file, err)
	}
	f.profiler = profile.New(f.out)
	return mlx.Do(ctx, func() error { f.profiler.Attach(); return nil })
}

// loaded describes the model for the profile.
func (f *profileFlags) loaded(m *gomflux.Model) {
	if f.profiler == nil {
		return
	}
	var classes []string
	for _, module := range m.Modules() {
		classes = append(classes, module.Class)
	}
	f.describe(classes, m.Class(), string(m.Device()), string(m.Dtype()))
}

// describe describes the model, whose modules have some classes.
func (f *profileFlags) describe(classes []string, pipeline, device, dtype string) {
	f.profiler.SetClasses(classes)
	f.facts = map[string]any{"program": version(), "pipeline": pipeline, "device": device, "dtype": dtype}
}

func (f *profileFlags) appendHook(all []hooks.Func) []hooks.Func {
	if f.profiler == nil {
		return all
	}
	return append(all, f.profiler.Hook)
}

// progress begins the phases and steps of the run.
func (f *profileFlags) progress(p gomflux.Progress) {
	switch {
	case f.profiler == nil:
	case p.Phase == gomflux.PhaseLoad:
		end := f.profiler.BeginOther("load " + p.Component)
		if p.Bytes == p.TotalBytes {
			end()
		}
	case p.Phase != gomflux.PhaseStep:
		f.profiler.BeginPhase(string(p.Phase))
	default:
		if p.Step == 0 {
			f.profiler.BeginPhase(string(p.Phase))
		}
		f.profiler.EndStep()
		if p.Step < p.Steps {
			f.profiler.BeginStep(fmt.Sprintf("step %d", p.Step+1))
		}
	}
}

// callback measures a callback of the run separately, until end.
func (f *profileFlags) callback() (end func()) {
	if f.profiler == nil {
		return func() {}
	}
	return f.profiler.BeginOther("preview")
}

// generate measures the generation of some images.
func (f *profileFlags) generate(m *gomflux.Model, seeds []uint64, run func() ([]*gomflux.Result, error)) ([]*gomflux.Result, error) {
	if f.profiler == nil {
		return run()
	}
	name := fmt.Sprintf("seed %d", seeds[0])
	if len(seeds) > 1 {
		name = fmt.Sprintf("seeds %d and %d more", seeds[0], len(seeds)-1)
	}
	f.profiler.BeginImage(name)
	results, err := run()
	f.profiler.EndImage()
	for _, r := range results {
		r.PeakMemory = max(r.PeakMemory, f.profiler.Peak())
		f.facts["mlx"] = r.Settings.MLX
	}
	return results, err
}

// end ends the profile of a run, whose error it gets, and reports it. A run that failed, or was interrupted, leaves
// the trace of what has run.
func (f *profileFlags) end(report func(profileReport), err error) error {
	if f.out == nil {
		return err
	}
	defer f.out.Discard()
	detach := mlx.Do(context.Background(), func() error { f.profiler.Detach(); return nil })
	summary, failed := f.profiler.Close(f.facts)
	if summary.Empty() {
		return err
	}
	name, failed := f.save(cmp.Or(detach, failed))
	report(profileReport{File: name, summary: summary, partial: err != nil})
	return cmp.Or(err, failed)
}

// save gives the trace its name, unless writing it has failed.
func (f *profileFlags) save(failed error) (name string, err error) {
	if failed == nil {
		failed = f.out.Sync()
	}
	if failed == nil {
		failed = f.out.Close()
	}
	switch {
	case failed != nil:
		return "", fmt.Errorf("output %s: %w", f.file, oserr.Bare(failed))
	case !f.overwrite:
		return linkToFree(f.out, nil, f.file)
	}
	if err := moveBoth(f.out, nil, f.file); err != nil {
		return "", err
	}
	return f.file, nil
}
