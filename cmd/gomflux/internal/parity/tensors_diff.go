package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsDiffHelp = `Diff compares two tensors, or the tensors of two files by name. The second is
the reference. An argument is the name of a saved tensor, or a safetensors, .npy
or .npz file, with :KEY for one of its tensors; @DTYPE casts first. Of a file
with one tensor the key does not matter. Of a name with statistics alone
(generate --debug-stats), the statistics are compared. --run and --reference-run
set the runs of the first and the second name.

It prints shapes, with a guess if they differ, dtypes, the largest and the mean
error, the relative error (reference values count as at least a thousandth of
the largest), cosine, relative L2 error, ranges and first values. Of two files
with several tensors it prints a line for each name that both have; names that
only one has are listed, and are no difference.

TOLERANCES
Without flags they are those of gomflux parity run for a module by itself: in
float32 2e-5 of the largest reference value and a relative L2 error of 1e-5, in
float16 1e-2 and 1e-2, in bfloat16 2e-2 and 1e-2. If the dtypes differ, those of
the coarser one. Whole numbers must be equal. With --atol or --rtol every value
may differ by ATOL + RTOL·|reference|, as in numpy.allclose (a limit that is not
given is 0), and equal infinities agree; NaN never does.

With --json it prints an object: ok, tensors, only_in (names that only the first
has) and only_in_reference. A tensor has name, reference_name, dtype, shape,
shape_guess, not_compared (why not), first_values (each but the name also as
reference_...), ok, and difference (ok, max_abs, mean_abs, max_reference,
max_rel, cosine, l2, at, count, beyond, atol, rtol, finite, allowed, range,
reference_range) or stats (errors of min, max, mean, std and first_values
relative to scale, allowed, range, reference_range). NaN, infinity and a limit
that does not apply are null.
` + parityStatus

// tensorsDiffOptions are the flags of gomflux tensors diff.
type tensorsDiffOptions struct {
	record.TreeFlags
	refRun     string // where the second name is looked up
	atol, rtol cli.Optional[float64]
}

func newTensorsDiffCommand() *cobra.Command {
	o := &tensorsDiffOptions{atol: cli.Scale("number"), rtol: cli.Scale("number")}
	cmd := &cobra.Command{
		Use:   "diff NAME|FILE[:KEY][@DTYPE] NAME|FILE[:KEY][@DTYPE]",
		Short: "Compare two tensors, or the tensors of two files",
		Long:  tensorsDiffHelp,
		Example: `  gomflux tensors diff latents@0 reference.npz:latents
  gomflux tensors diff latents@0 latents@0 --run gomflux --reference-run reference
  gomflux tensors diff ours.safetensors theirs.npz --atol 1e-3 --rtol 1e-3
  gomflux tensors diff a.npz b.npz --json | jq -r '.tensors[] | select(.ok | not) | .name'`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			found, _ := o.Complete(cmd, args, word)
			return found, cobra.ShellCompDirectiveDefault // files too
		},
		Args: cli.Args(2, 2, "give two tensors: names of saved ones, or files", ""),
		RunE: o.With(func(cmd *cobra.Command, tree *runs.Tree, args []string) error {
			reference := o.TreeFlags
			reference.Run = cmp.Or(o.refRun, reference.Run)
			refTree, err := reference.Open()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), o.Out(cmd), [2]*runs.Tree{tree, refTree}, args)
		}),
	}
	o.Add(cmd)
	o.AddRun(cmd)
	f := cmd.Flags()
	f.StringVar(&o.refRun, "reference-run", "", "the `run` of the second name (default: as for the first)")
	cmd.RegisterFlagCompletionFunc("reference-run", o.CompleteRuns)
	f.Var(&o.atol, "atol", "largest absolute error of a value")
	f.Var(&o.rtol, "rtol", "largest error of a value relative to the reference's")
	return cmd
}

// limits returns the limits of --atol and --rtol, nil without them.
func (o *tensorsDiffOptions) limits() *report.Limits {
	if !o.atol.Given() && !o.rtol.Given() {
		return nil
	}
	return &report.Limits{ATol: report.Number(o.atol.OrZero()), RTol: report.Number(o.rtol.OrZero())}
}

// A diffSide is one argument: tensors of a file, or a tensor's statistics.
type diffSide struct {
	ref    checkpoint.Reference
	names  []string // of the tensors in the file that are meant
	record *runs.Record
}

// openSide finds what an argument names.
func openSide(tree *runs.Tree, arg string) (s diffSide, err error) {
	if s.ref, err = findTensor(tree, arg); err != nil {
		if s.record = findRecord(tree, arg); s.record != nil {
			return s, nil
		}
		return s, err
	}
	f, err := checkpoint.OpenArrays(s.ref.File)
	if err != nil {
		return s, cli.Coded(cli.ExitUsage, err)
	}
	defer f.Close()
	if s.ref.Key != "" {
		s.names = []string{s.ref.Key}
		if _, ok := f.Tensor(s.ref.Key); !ok {
			_, _, err = s.ref.Open() // whose error lists names
		}
		return s, cli.Coded(cli.ExitUsage, err)
	}
	for _, t := range f.Tensors() {
		s.names = append(s.names, t.Name)
	}
	if len(s.names) == 0 {
		err = cli.UsageErrorf("%s: the file has no tensors", s.ref.File)
	}
	return s, err
}

// findRecord finds the statistics of a tensor in the latest runs, or nil.
func findRecord(tree *runs.Tree, name string) *runs.Record {
	var newest *runs.Record
	for _, run := range tree.Places() {
		records, err := runs.ReadStats(os.DirFS(run.Dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // of a damaged file there are no statistics; the error about the name follows
		}
		for _, rec := range records {
			if rec.Name == name && (newest == nil || rec.Timestamp > newest.Timestamp) {
				newest = &rec
			}
		}
	}
	return newest
}

// read reads a tensor of a side.
func (s *diffSide) read(name string) (*checkpoint.Array, error) {
	ref := s.ref
	ref.Key = name
	return ref.Read()
}

// describe returns the statistics of a side's only tensor.
func (s *diffSide) describe() (runs.Record, error) {
	if s.record != nil {
		return *s.record, nil
	}
	if len(s.names) > 1 {
		return runs.Record{}, fmt.Errorf("%s: the file has %d tensors: append :NAME to compare one with statistics",
			s.ref.File, len(s.names))
	}
	a, err := s.read(s.names[0])
	if err != nil {
		return runs.Record{}, err
	}
	return runs.RecordOf(a, runs.Location{}), nil
}

// A tensorsDiff is what tensors diff prints.
type tensorsDiff struct {
	OK        bool                `json:"ok"`
	Tensors   []*report.ArrayDiff `json:"tensors"`
	OnlyIn    []string            `json:"only_in"`
	OnlyInRef []string            `json:"only_in_reference"`

	single bool // two tensors, not the tensors of two files
	files  [2]string
}

func (o *tensorsDiffOptions) run(ctx context.Context, out *ui.Output, trees [2]*runs.Tree, args []string) error {
	var sides [2]diffSide
	for i, arg := range args {
		var err error
		if sides[i], err = openSide(trees[i], arg); err != nil {
			return err
		}
	}
	d := &tensorsDiff{OK: true, Tensors: []*report.ArrayDiff{}, OnlyIn: []string{}, OnlyInRef: []string{},
		files: [2]string{args[0], args[1]}}
	if err := d.compare(ctx, &sides[0], &sides[1], o.limits()); err != nil {
		return err
	}
	if err := out.Result(d); err != nil {
		return err
	}
	if !d.OK {
		return cli.ErrDiffers
	}
	return nil
}

// compare fills in the result.
func (d *tensorsDiff) compare(ctx context.Context, got, want *diffSide, limits *report.Limits) error {
	if got.record != nil || want.record != nil {
		a, err := got.describe()
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		b, err := want.describe()
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		if limits != nil {
			return cli.UsageErrorf("--atol and --rtol are limits of values, and only statistics of %s are known", a.Name)
		}
		d.add(report.DiffRecords(a, b))
		d.single = true
		return nil
	}
	pairs, err := d.pair(got, want)
	if err != nil {
		return err
	}
	for _, p := range pairs {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		a, err := got.read(p[0])
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		b, err := want.read(p[1])
		if err != nil {
			return cli.Coded(cli.ExitUsage, err)
		}
		d.add(report.DiffArrays(a, b, limits))
	}
	return nil
}

func (d *tensorsDiff) add(t *report.ArrayDiff) {
	d.Tensors = append(d.Tensors, t)
	d.OK = d.OK && t.OK()
}

// pair returns the names of the tensors to compare: two tensors whatever their names are, or those
// that both files have.
func (d *tensorsDiff) pair(got, want *diffSide) (pairs [][2]string, err error) {
	if len(got.names) == 1 && len(want.names) == 1 {
		d.single = true
		return [][2]string{{got.names[0], want.names[0]}}, nil
	}
	for _, one := range []struct{ key, other *diffSide }{{got, want}, {want, got}} {
		if one.key.ref.Key == "" {
			continue
		}
		// a tensor of a file, and a file with several: the same name there, or an error that lists them
		f, t, err := one.other.ref.Open(one.key.names...)
		if err != nil {
			return nil, cli.Coded(cli.ExitUsage, err)
		}
		f.Close()
		one.other.names = []string{t.Name}
		return d.pair(got, want)
	}
	in := map[string]bool{}
	for _, name := range want.names {
		in[name] = true
	}
	for _, name := range got.names {
		if in[name] {
			pairs = append(pairs, [2]string{name, name})
			delete(in, name)
		} else {
			d.OnlyIn = append(d.OnlyIn, name)
		}
	}
	for _, name := range want.names {
		if in[name] {
			d.OnlyInRef = append(d.OnlyInRef, name)
		}
	}
	d.OK = len(pairs) > 0
	return pairs, nil
}

func (d *tensorsDiff) Text(p *ui.Page) {
	if d.single {
		d.Tensors[0].Print(p.Fields(9))
		return
	}
	var t ui.Table
	differ := 0
	for _, x := range d.Tensors {
		errors := ""
		if x.Difference != nil {
			errors = x.Difference.String()
		}
		if !x.OK() {
			differ++
		}
		t.Row(x.Name, x.Dtype, fmt.Sprint(x.Shape), errors, x.Verdict())
	}
	p.Table(t)
	for i, names := range [][]string{d.OnlyIn, d.OnlyInRef} {
		for _, name := range names {
			p.Printf("only in %s: %s\n", quote.Printable(d.files[i]), quote.Printable(name))
		}
	}
	switch {
	case len(d.Tensors) == 0:
		p.Printf("nothing was compared: both files have no name in common\n")
	case differ > 0:
		p.Printf("%d of %d tensors differ\n", differ, len(d.Tensors))
	default:
		p.Printf("all %d tensors are within tolerance\n", len(d.Tensors))
	}
}
