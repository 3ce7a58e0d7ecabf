package parity

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsInfoHelp = `Info describes saved tensors: file, shape, dtype, when and where in the program
they were saved, smallest and largest value, mean, standard deviation, the
number of NaN and infinite values, and the first values. Of a tensor of which
only statistics were recorded (gomflux generate --debug-stats) there is no file.

With --json it prints an object per line for each: name, side, file, dtype,
shape, bytes, saved and record (name, hit_count, timestamp, location, point,
class, shape, dtype, stats, preview; left out for files without such a record).
` + cli.ExitStatus

func newTensorsInfoCommand() *cobra.Command {
	var flags record.TreeFlags
	cmd := &cobra.Command{
		Use:   "info NAME...",
		Short: "Describe saved tensors",
		Long:  tensorsInfoHelp,
		Example: `  gomflux tensors info latents@0
  gomflux tensors info prompt.embeds --json | jq .record.stats`,
		ValidArgsFunction: flags.Complete,
		Args:              cli.SomeArgs("give the names of tensors (gomflux tensors list prints them)"),
		RunE: flags.With(func(cmd *cobra.Command, tree *runs.Tree, args []string) error {
			out := flags.Out(cmd)
			for _, name := range args {
				e, err := findEntry(tree, name)
				if err != nil {
					return notFound(err)
				}
				info, err := newTensorInfo(e, flags.JSON)
				if err == nil {
					err = out.Next(info)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	flags.Add(cmd)
	flags.AddRun(cmd)
	return cmd
}

// findEntry finds a saved tensor, or else one of which only statistics were recorded.
func findEntry(tree *runs.Tree, name string) (runs.Entry, error) {
	e, err := tree.Find(name)
	if err == nil {
		return e, nil
	}
	r := findRecord(tree, name)
	if r == nil {
		return e, err
	}
	dtype, _ := checkpoint.ParseDtype(r.Dtype) // "" for one that tensors cannot have
	return runs.Entry{Tensor: checkpoint.Tensor{Name: name, Dtype: dtype, Shape: r.Shape}, Record: r}, nil
}

// A tensorInfo is what tensors info prints of a tensor.
type tensorInfo struct {
	jsonEntry
	entry   runs.Entry
	summary runs.Record
}

// newTensorInfo reads what a record or else, unless there is only JSON to print,
// the tensor has to tell.
func newTensorInfo(e runs.Entry, asJSON bool) (*tensorInfo, error) {
	info := &tensorInfo{jsonEntry: newEntry(e), entry: e}
	info.About = e.Record
	var err error
	if !asJSON {
		info.summary, err = e.Summary()
	}
	return info, err
}

func (i *tensorInfo) Text(p *ui.Page) {
	line := p.Fields(9)
	line("name", "%s", quote.Printable(i.Name))
	if i.File == "" {
		line("tensor", "%s, of which only statistics were recorded", i.entry.Type())
	} else {
		line("side", "%s", i.Side)
		line("file", "%s", quote.Printable(i.File))
		line("tensor", "%s, %s", i.entry.Type(), units.Bytes(i.Bytes))
		line("saved", "%s", i.entry.Modified.Format("2006-01-02 15:04:05"))
	}
	if r := i.About; r != nil {
		line("point", "%s, hit %d", r.Point, r.HitCount)
		if r.Class != "" {
			line("class", "%s", quote.Printable(r.Class))
		}
		if r.Location.File != "" {
			line("made at", "%s:%d (%s)", quote.Printable(r.Location.File), r.Location.Line, quote.Printable(r.Location.Function))
		}
	}
	statLines(line, i.summary.Stats, i.summary.Preview)
}
