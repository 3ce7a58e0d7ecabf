package parity

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsShowHelp = `Show prints a tensor's shape, dtype, statistics and first values (--values sets
their number). The argument is the name of a saved tensor, or a safetensors,
.npy or .npz file. For a file with several tensors and without :KEY it prints
each of them. @DTYPE casts the tensor first, as --debug-load does.

With --json it prints one object per line for each tensor: name, file, dtype,
shape, bytes, stats (min, max, mean, std, nan, inf) and values. NaN and infinite
values are strings.
` + cli.ExitStatus

func newTensorsShowCommand() *cobra.Command {
	var flags record.TreeFlags
	values := cli.Count("number")
	cmd := &cobra.Command{
		Use:   "show NAME|FILE[:KEY][@DTYPE]",
		Short: "Show the values of a saved tensor or a file of tensors",
		Long:  tensorsShowHelp,
		Example: `  gomflux tensors show latents@0 --values 20
  gomflux tensors show reference.npz:latents@bf16
  gomflux tensors show model.safetensors --json | jq -r 'select(.stats.nan > 0) | .name'`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			found, _ := flags.Complete(cmd, args, word)
			return found, cobra.ShellCompDirectiveDefault // files too
		},
		Args: cli.OneArg("the name of a tensor, or a file"),
		RunE: flags.With(func(cmd *cobra.Command, tree *runs.Tree, args []string) error {
			return showTensors(cmd.Context(), flags.Out(cmd), tree, args[0], values.OrElse(runs.Previewed))
		}),
	}
	flags.Add(cmd)
	flags.AddRun(cmd)
	cmd.Flags().Var(&values, "values", "number of values to print (default: 10)")
	return cmd
}

// A shownTensor is what tensors show prints of a tensor.
type shownTensor struct {
	Name   string             `json:"name"`
	File   string             `json:"file"`
	Dtype  string             `json:"dtype"`
	Shape  []int              `json:"shape"`
	Bytes  int64              `json:"bytes"`
	Stats  checkpoint.Stats   `json:"stats"`
	Values []checkpoint.Float `json:"values"`

	kind string // dtype and shape
}

func showTensors(ctx context.Context, out *ui.Output, tree *runs.Tree, arg string, values int) error {
	ref, err := findTensor(tree, arg)
	if err != nil {
		return err
	}
	f, err := checkpoint.OpenArrays(ref.File)
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	defer f.Close()
	tensors := f.Tensors()
	if ref.Key != "" {
		f, tensor, err := ref.Open()
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		f.Close()
		tensors = []checkpoint.Tensor{tensor}
	}
	for _, tensor := range tensors {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var stats checkpoint.Stats
		var first []float64
		if ref.Cast != "" {
			ref.Key = tensor.Name
			t, err := ref.Read()
			if err != nil {
				return cli.Coded(cli.ExitUsage, err)
			}
			tensor, stats, first = t.Tensor(), t.Stats(), t.First(values)
		} else if stats, first, err = f.Stats(tensor.Name, values); err != nil {
			return err
		}
		shown := &shownTensor{
			Name: tensor.Name, File: ref.File, Dtype: string(tensor.Dtype), Shape: append([]int{}, tensor.Shape...), Bytes: tensor.Bytes(),
			Stats: stats, Values: checkpoint.Floats(first), kind: tensor.Type(),
		}
		if err := out.Next(shown); err != nil {
			return err
		}
	}
	return nil
}

// findTensor reads FILE[:KEY][@DTYPE], or finds a saved tensor by its name.
func findTensor(tree *runs.Tree, arg string) (ref checkpoint.Reference, err error) {
	if ref, err = checkpoint.ParseReference(arg); err != nil {
		return ref, cli.Coded(cli.ExitUsage, err)
	}
	if _, err := os.Stat(ref.File); err != nil && ref.Key == "" && cli.TrimTensorSuffix(ref.File) == ref.File {
		e, err := tree.Find(ref.File)
		if err != nil {
			return ref, notFound(err)
		}
		ref.File, ref.Key = e.Path, e.Key
	}
	return ref, nil
}

func (s *shownTensor) Text(p *ui.Page) {
	line := p.Fields(9)
	line("name", "%s", quote.Printable(s.Name))
	line("file", "%s", quote.Printable(s.File))
	line("tensor", "%s, %s", s.kind, units.Bytes(s.Bytes))
	statLines(line, s.Stats, s.Values)
}
