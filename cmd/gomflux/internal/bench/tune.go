package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/tuning"
)

// tuneFlags are the flags that have an effect with --tune.
var tuneFlags = []string{"tune", "device", "repeat", "json", "share", "quiet"}

// validateTune refuses flags that have no effect with --tune.
func (o *benchOptions) validateTune(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && !slices.Contains(tuneFlags, f.Name) {
			err = cli.UsageErrorf("--%s has no effect with --tune", f.Name)
		}
	})
	if err == nil && o.JSON && o.share {
		err = cli.UsageErrorf("give either --json or --share")
	}
	return err
}

// runTune runs bench --tune.
func (o *benchOptions) runTune(cmd *cobra.Command) error {
	if err := o.validateTune(cmd.Flags()); err != nil {
		return err
	}
	out := o.Out(cmd)
	r, err := o.tune(cmd.Context(), out)
	if err != nil {
		return err
	}
	return out.Result(r)
}

// A tuneReport is what bench --tune prints.
type tuneReport struct {
	Tuning   string          `json:"tuning"`
	File     string          `json:"file"`
	Profile  *tuning.Profile `json:"profile"`
	Versions benchVersions   `json:"versions"`

	share bool
}

// tune compares what can only be known on this machine, and keeps the result.
func (o *benchOptions) tune(ctx context.Context, out *ui.Output) (*tuneReport, error) {
	lib, err := o.CheckLibrary(ctx, out)
	if err != nil {
		return nil, err
	}
	r := &tuneReport{Profile: &tuning.Profile{}, Versions: newBenchVersions(lib), share: o.share}
	device, _, err := o.Place()
	if err != nil {
		return nil, err
	}
	err = mlx.Do(ctx, func() error {
		if device != nil {
			if err := mlx.Use(*device); err != nil {
				return err
			}
		}
		return r.measure(lib, o.repeat, out)
	})
	out.ClearStatus()
	return r, err
}

// measure measures everything on the current device, and writes the profile.
func (r *tuneReport) measure(lib mlx.Library, rounds int, out *ui.Output) error {
	p := r.Profile
	p.Machine, p.Created = cli.NewTuningMachine(lib, mlx.CurrentDevice()), time.Now().UTC().Truncate(time.Second)
	r.Versions.MLX = p.Machine.MLX
	w, err := tuning.NewWriter(p.Machine)
	if err != nil {
		return err
	}
	defer w.Close()
	meter := tuning.Meter{Rounds: rounds, Progress: func(comparison, name string) {
		mlx.Call(func() { out.Status("comparing %s, %s", comparison, name) })
	}}
	start := time.Now()
	p.Settings, p.Measured = meter.Measure(tuning.Comparisons())
	p.Seconds, r.Tuning = ui.Seconds(time.Since(start)), p.Settings.String()
	path, err := w.Write(p)
	r.File = catalog.TildePath(path)
	return err
}

func (r *tuneReport) Text(p *ui.Page) {
	if r.share {
		p.Printf("```\ngomflux bench --tune\n")
	}
	m, v := r.Profile.Machine, r.Versions
	words := []string{m.Device + ": " + m.Name, m.Architecture, fmt.Sprintf("%d GiB of memory", m.Memory)}
	if m.CPUs > 0 {
		words = append(words, ui.Plural(m.CPUs, "CPU"))
	}
	if m.Driver != "" {
		words = append(words, "driver "+m.Driver)
	}
	words = append(words, m.System, m.BLAS)
	p.Printf("%s\n", strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), ", "))
	p.Printf("gomflux %s, MLX %s, measured in %.0f s\n\n", v.Gomflux, v.MLX, r.Profile.Seconds)
	p.Table(tuneTable(r.Profile.Measured))
	p.Printf("\ntuned: %s\n", cli.TunedText(r.Profile.Settings))
	if r.share {
		p.Printf("```\n")
		return
	}
	p.Printf("in %s, which %s=0 ignores\n", r.File, tuning.Env)
}

// tuneTable lists the times of all candidates.
func tuneTable(measured []tuning.Result) ui.Table {
	table := ui.Table{{"", "", "times", "used"}}
	for _, r := range measured {
		if r.LeftOut != "" {
			table.Row(r.Name, "", "left out: "+r.LeftOut)
		}
		for i, c := range r.Cases {
			var times []string
			for _, t := range c.Times {
				times = append(times, fmt.Sprintf("%s %.3g ms", t.Candidate, 1e3*t.Median))
			}
			row := []string{"", c.Name, strings.Join(times, ", ")}
			if i == 0 {
				row = append(row, r.Chosen)
				row[0] = r.Name
			}
			table.Row(row...)
		}
	}
	return table
}
