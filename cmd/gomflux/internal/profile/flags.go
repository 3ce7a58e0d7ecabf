// Package profile is the flag --profile of commands that run a model.
package profile

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/profile"
)

// Flags are the flags of generate and edit that measure every module of the run.
type Flags struct {
	File      string
	overwrite bool

	out      *atomicfile.File
	Profiler *profile.Profiler // nil without the flag
	Facts    map[string]any
}

func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.File, "profile", "",
		"measure time and memory of every module: write a trace for ui.perfetto.dev to this `file`, and print a table")
}

// Validate refuses what cannot be profiled, which a run with debugging flags is, and a file that cannot
// be written.
func (f *Flags) Validate(image cli.FileFlags, debugged bool, given func(string) bool) error {
	f.overwrite = image.Overwrite
	switch {
	case !given("profile"):
		return nil
	case debugged:
		return cli.UsageErrorf("--profile and debugging flags cannot be combined (the times would include their work)")
	case filepath.Clean(f.File) == filepath.Clean(image.Output):
		return cli.UsageErrorf("--profile and --output are the same file: %s", f.File)
	}
	return f.ValidateFile()
}

// ValidateFile refuses a file that cannot be written.
func (f *Flags) ValidateFile() error {
	if f.File == "" {
		return cli.UsageErrorf("--profile: the file name is empty")
	}
	err := cli.CheckName(f.File, "profile.json")
	if err == nil {
		err = cli.CheckFolderOf(f.File)
	}
	return cli.Coded(cli.ExitUsage, err)
}

// OfRank gives the file of a rank of a group a name of its own, except that of rank 0.
func (f *Flags) OfRank(rank int) {
	if ext := filepath.Ext(f.File); f.File != "" && rank > 0 {
		f.File = fmt.Sprintf("%s-rank%d%s", strings.TrimSuffix(f.File, ext), rank, ext)
	}
}

// Begin begins the profile, before the model is loaded.
func (f *Flags) Begin(ctx context.Context) (err error) {
	if f.File == "" {
		return nil
	}
	if f.out, err = cli.NewTemporary(f.File); err != nil {
		return cli.UsageErrorf("output %s: %w", f.File, err)
	}
	f.Profiler = profile.New(f.out)
	return mlx.Do(ctx, func() error { f.Profiler.Attach(); return nil })
}

// Loaded describes the model for the profile.
func (f *Flags) Loaded(m *gomflux.Model) {
	if f.Profiler == nil {
		return
	}
	var classes []string
	for _, module := range m.Modules() {
		classes = append(classes, module.Class)
	}
	f.Describe(classes, m.Class(), string(m.Device()), string(m.Dtype()))
}

// Describe describes the model, whose modules have some classes.
func (f *Flags) Describe(classes []string, pipeline, device, dtype string) {
	f.Profiler.SetClasses(classes)
	f.Facts = map[string]any{"program": cli.Version(), "pipeline": pipeline, "device": device, "dtype": dtype}
}

func (f *Flags) AppendHook(all []hooks.Func) []hooks.Func {
	if f.Profiler == nil {
		return all
	}
	return append(all, f.Profiler.Hook)
}

// Progress begins the phases and steps of the run.
func (f *Flags) Progress(p gomflux.Progress) {
	switch {
	case f.Profiler == nil:
	case p.Phase == gomflux.PhaseLoad:
		end := f.Profiler.BeginOther("load " + p.Component)
		if p.Bytes == p.TotalBytes {
			end()
		}
	case p.Phase != gomflux.PhaseStep:
		f.Profiler.BeginPhase(string(p.Phase))
	default:
		if p.Step == 0 {
			f.Profiler.BeginPhase(string(p.Phase))
		}
		f.Profiler.EndStep()
		if p.Step < p.Steps {
			f.Profiler.BeginStep(fmt.Sprintf("step %d", p.Step+1))
		}
	}
}

// Callback measures a callback of the run separately, until end.
func (f *Flags) Callback() (end func()) {
	if f.Profiler == nil {
		return func() {}
	}
	return f.Profiler.BeginOther("preview")
}

// Generate measures the generation of some images.
func (f *Flags) Generate(seeds []uint64, run func() ([]*gomflux.Result, error)) ([]*gomflux.Result, error) {
	if f.Profiler == nil {
		return run()
	}
	name := fmt.Sprintf("seed %d", seeds[0])
	if len(seeds) > 1 {
		name = fmt.Sprintf("seeds %d and %d more", seeds[0], len(seeds)-1)
	}
	f.Profiler.BeginImage(name)
	results, err := run()
	f.Profiler.EndImage()
	for _, r := range results {
		r.PeakMemory = max(r.PeakMemory, f.Profiler.Peak())
		f.Facts["mlx"] = r.Settings.MLX
	}
	return results, err
}

// End ends the profile of a run, whose error it gets, and reports it. A run that failed, or was interrupted, leaves
// the trace of what has run.
func (f *Flags) End(report func(Report), err error) error {
	if f.out == nil {
		return err
	}
	defer f.out.Discard()
	detach := mlx.Do(context.Background(), func() error { f.Profiler.Detach(); return nil })
	summary, failed := f.Profiler.Close(f.Facts)
	if summary.Empty() {
		return err
	}
	name, failed := f.save(cmp.Or(detach, failed))
	report(Report{File: name, summary: summary, partial: err != nil})
	return cmp.Or(err, failed)
}

// save gives the trace its name, unless writing it has failed.
func (f *Flags) save(failed error) (name string, err error) {
	if failed == nil {
		failed = f.out.Sync()
	}
	if failed == nil {
		failed = f.out.Close()
	}
	if failed != nil {
		return "", fmt.Errorf("output %s: %w", f.File, oserr.Bare(failed))
	}
	return cli.Place(f.out, nil, f.File, f.overwrite)
}
