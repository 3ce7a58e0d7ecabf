package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/debug"
)

func newTensorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tensors",
		Short: "Show and remove tensors that were saved of runs",
		Long: `Tensors shows what gomflux generate --debug-save and the reference side
(scripts/reference) saved. Both write into one tree of folders, logs in the
current folder unless --log-dir or GOMFLUX_LOG_DIR says otherwise:

  logs/runs/latest/gomflux      the latest run, with settings.json, tensors,
  logs/runs/latest/reference    checkpoints, traces and images
  logs/runs/archive/TIME-SIDE   earlier ones

A name is looked up in the latest runs of both sides; of two of one name the
newer is meant. The files are safetensors; NumPy's .npy and .npz are read too.

A tree of 1 GB is warned of, and at 10 GB nothing more is saved;
GOMFLUX_LOG_WARN and GOMFLUX_LOG_LIMIT set other limits, in bytes.
` + exitStatus,
		Example: `  gomflux generate -p "a lighthouse" --debug-save 'latents' --debug-save 'transformer.layers.0.*'
  gomflux tensors list
  gomflux tensors show latents@0
  gomflux tensors clear --archive`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageErrorf("unknown command %q (list, info, show or clear)", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageErrorf("give one of the commands list, info, show and clear (gomflux tensors --help)")
		},
	}
	cmd.AddCommand(newTensorsListCommand(), newTensorsInfoCommand(), newTensorsShowCommand(), newTensorsClearCommand())
	return cmd
}

// treeFlags are those of every command about a tree.
type treeFlags struct {
	logDir string
	json   bool
}

func (t *treeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&t.logDir, "log-dir", "", "the `folder` of the runs (default: $GOMFLUX_LOG_DIR, or logs)")
	f.BoolVar(&t.json, "json", false, "print a JSON object")
}

func (t *treeFlags) open() (*debug.Tree, error) {
	tree, err := debug.Open(t.logDir)
	return tree, coded(exitUsage, err)
}

// complete offers the names of saved tensors.
func (t *treeFlags) complete(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	tree, err := t.open()
	if err == nil {
		all, _ := tree.List() // what cannot be read is not offered
		for _, e := range all {
			found = append(found, e.Name)
		}
	}
	return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
}

// jsonEntry is a saved tensor.
type jsonEntry struct {
	Name  string        `json:"name"`
	Side  string        `json:"side"`
	File  string        `json:"file"`
	Dtype string        `json:"dtype"`
	Shape []int         `json:"shape"`
	Bytes int64         `json:"bytes"`
	Saved string        `json:"saved"`
	About *debug.Record `json:"record,omitempty"`
}

func entryJSON(e debug.Entry) jsonEntry {
	return jsonEntry{e.Name, e.Side, e.Path, string(e.Dtype), append([]int{}, e.Shape...), e.Bytes(), e.Modified.UTC().Format("2006-01-02T15:04:05Z"), nil}
}

func newTensorsListCommand() *cobra.Command {
	var flags treeFlags
	cmd := &cobra.Command{
		Use:   "list [GLOB...]",
		Short: "List saved tensors",
		Long: `List prints the tensors of the latest runs: name, side, dtype, shape and size.
With globs it is those whose names one of them matches; * stands for anything.

With --json it prints one object: root, bytes (of the whole tree), tensors
(name, side, file, dtype, shape, bytes, saved).
` + exitStatus,
		Example: `  gomflux tensors list
  gomflux tensors list 'transformer.layers.0.*' --json`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, glob := range args {
				if _, err := path.Match(glob, ""); err != nil {
					return usageErrorf("%q is no pattern of names (such as 'transformer.layers.*')", glob)
				}
			}
			return nil
		},
		ValidArgsFunction: flags.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := flags.open()
			if err != nil {
				return err
			}
			return listTensors(cmd.OutOrStdout(), cmd.ErrOrStderr(), tree, args, flags.json)
		},
	}
	flags.add(cmd)
	return cmd
}

func listTensors(stdout, stderr io.Writer, tree *debug.Tree, globs []string, asJSON bool) error {
	all, err := tree.List()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(e debug.Entry) bool {
		return len(globs) > 0 && !slices.ContainsFunc(globs, func(glob string) bool {
			ok, err := path.Match(glob, strings.ReplaceAll(e.Name, "/", "\\"))
			return err == nil && ok
		})
	})
	size, err := tree.Size()
	if err != nil {
		return err
	}
	if asJSON {
		list := []jsonEntry{}
		for _, e := range all {
			list = append(list, entryJSON(e))
		}
		return writeJSON(stdout, struct {
			Root    string      `json:"root"`
			Bytes   int64       `json:"bytes"`
			Tensors []jsonEntry `json:"tensors"`
		}{tree.Root, size, list})
	}
	archived, err := tree.Archived()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, e := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%s\n", quote.Printable(e.Name), e.Side, e.Dtype, e.Shape, units.Bytes(e.Bytes()))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d tensors; %s holds %s, with %d earlier runs\n", len(all), tree.Root, units.Bytes(size), len(archived))
	return nil
}

func newTensorsInfoCommand() *cobra.Command {
	var flags treeFlags
	cmd := &cobra.Command{
		Use:   "info NAME...",
		Short: "Say what is known of saved tensors",
		Long: `Info prints what is known of tensors, by their names: where they are, when they
were saved and where in the program, shape, dtype, least and largest value,
mean, standard deviation, how many values are NaN and infinite, and the first
ones.

With --json it prints an object on a line for each: name, side, file, dtype,
shape, bytes, saved, record (name, hit_count, timestamp, location, point, shape,
dtype, stats, preview; not for what another program saved without it).
` + exitStatus,
		Example: `  gomflux tensors info latents@0
  gomflux tensors info prompt.embeds --json | jq .record.stats`,
		ValidArgsFunction: flags.complete,
		Args:              names("give the names of tensors (gomflux tensors list has them)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := flags.open()
			if err != nil {
				return err
			}
			for i, name := range args {
				e, err := tree.Find(name)
				if err != nil {
					return notFound(err)
				}
				if i > 0 && !flags.json {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				if err := infoTensor(cmd.OutOrStdout(), e, flags.json); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags.add(cmd)
	return cmd
}

// names takes one argument or several.
func names(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageErrorf("%s", hint)
		}
		return nil
	}
}

func notFound(err error) error {
	if errors.Is(err, debug.ErrNotFound) {
		return coded(exitUsage, err)
	}
	return err
}

func infoTensor(w io.Writer, e debug.Entry, asJSON bool) error {
	if asJSON {
		j := entryJSON(e)
		j.About = e.Record
		return writeJSON(w, j)
	}
	var b strings.Builder
	line := liner(&b, 9)
	line("name", "%s", quote.Printable(e.Name))
	line("side", "%s", e.Side)
	line("file", "%s", quote.Printable(e.Path))
	line("tensor", "%s, %s", e.Type(), units.Bytes(e.Bytes()))
	line("saved", "%s", e.Modified.Format("2006-01-02 15:04:05"))
	if r := e.Record; r != nil {
		line("point", "%s, hit %d", r.Point, r.HitCount)
		if r.Location.File != "" {
			line("made at", "%s:%d (%s)", quote.Printable(r.Location.File), r.Location.Line, quote.Printable(r.Location.Function))
		}
		var first []float64
		for _, v := range r.Preview {
			first = append(first, float64(v))
		}
		statLines(line, r.Stats, first)
	} else {
		f, err := checkpoint.OpenArrays(e.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		stats, first, err := f.Stats(e.Key, defaultValues)
		if err != nil {
			return err
		}
		statLines(line, stats, first)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// defaultValues is how many values are shown of a tensor.
const defaultValues = 10

// liner returns a function that writes lines: a name, and a text that begins in
// the same column in all of them.
func liner(w io.Writer, width int) func(name, format string, args ...any) {
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-*s %s\n", width, name, fmt.Sprintf(format, args...))
	}
}

func statLines(line func(name, format string, args ...any), s checkpoint.Stats, first []float64) {
	line("range", "%s", s.Range())
	line("mean", "%.6g", float64(s.Mean))
	line("std", "%.6g", float64(s.Std))
	line("NaN", "%d, infinite %d", s.NaN, s.Inf)
	var words []string
	for _, v := range first {
		words = append(words, fmt.Sprintf("%.6g", v))
	}
	line("first", "%s", strings.Join(words, " "))
}

func newTensorsShowCommand() *cobra.Command {
	var flags treeFlags
	values := count("number")
	cmd := &cobra.Command{
		Use:   "show NAME|FILE[:KEY][@DTYPE]",
		Short: "Show the values of a tensor or a file of tensors",
		Long: `Show prints a tensor's shape, dtype, statistics and first values (--values says
how many). It is a saved one, by its name, or one in a safetensors, .npy or .npz
file. Of a file with several tensors and no key it prints statistics of each.
@DTYPE casts it first, as --debug-load would.

With --json it prints one object for each tensor: name, file, dtype, shape,
bytes, stats (min, max, mean, std, nan, inf) and values, of which NaN and the
infinite are strings.
` + exitStatus,
		Example: `  gomflux tensors show latents@0 --values 20
  gomflux tensors show reference.npz:latents@bf16
  gomflux tensors show model.safetensors --json | jq -r 'select(.stats.nan > 0) | .name'`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			found, _ := flags.complete(cmd, args, word)
			return found, cobra.ShellCompDirectiveDefault // files too
		},
		Args: oneFile("the name of a tensor, or a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := flags.open()
			if err != nil {
				return err
			}
			n := defaultValues
			if values.value != nil {
				n = *values.value
			}
			return showTensors(cmd.Context(), cmd.OutOrStdout(), tree, args[0], n, flags.json)
		},
	}
	flags.add(cmd)
	cmd.Flags().Var(&values, "values", "how many values to print (default: 10)")
	return cmd
}

func showTensors(ctx context.Context, w io.Writer, tree *debug.Tree, arg string, values int, asJSON bool) error {
	ref, err := checkpoint.ParseReference(arg)
	if err != nil {
		return coded(exitUsage, err)
	}
	if _, err := os.Stat(ref.File); err != nil && ref.Key == "" && !hasSuffix(ref.File) {
		e, err := tree.Find(ref.File)
		if err != nil {
			return notFound(err)
		}
		ref.File, ref.Key = e.Path, e.Key
	}
	f, err := checkpoint.OpenArrays(ref.File)
	if err != nil {
		return coded(exitUsage, err)
	}
	defer f.Close()
	show := f.Tensors()
	if ref.Key != "" {
		f, i, err := ref.Open()
		if err != nil {
			return coded(exitUsage, err)
		}
		f.Close()
		show = []checkpoint.Tensor{i}
	}
	several := len(show) > 1
	for i, info := range show {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var stats checkpoint.Stats
		var first []float64
		switch {
		case ref.Cast != "":
			ref.Key = info.Name
			t, err := ref.Read()
			if err != nil {
				return coded(exitUsage, err)
			}
			info, stats, first = t.Tensor(), t.Stats(), t.First(values)
		default:
			if stats, first, err = f.Stats(info.Name, values); err != nil {
				return err
			}
		}
		if asJSON {
			list := []checkpoint.Float{}
			for _, v := range first {
				list = append(list, checkpoint.Float(v))
			}
			err = writeJSON(w, struct {
				Name   string             `json:"name"`
				File   string             `json:"file"`
				Dtype  string             `json:"dtype"`
				Shape  []int              `json:"shape"`
				Bytes  int64              `json:"bytes"`
				Stats  checkpoint.Stats   `json:"stats"`
				Values []checkpoint.Float `json:"values"`
			}{info.Name, ref.File, string(info.Dtype), append([]int{}, info.Shape...), info.Bytes(), stats, list})
		} else {
			var b strings.Builder
			line := liner(&b, 9)
			if several && i > 0 {
				b.WriteByte('\n')
			}
			line("name", "%s", quote.Printable(info.Name))
			line("file", "%s", quote.Printable(ref.File))
			line("tensor", "%s, %s", info.Type(), units.Bytes(info.Bytes()))
			statLines(line, stats, first)
			_, err = io.WriteString(w, b.String())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func hasSuffix(name string) bool { return trimTensorSuffix(name) != name }

// trimTensorSuffix takes from a file's name what says that tensors are in it.
func trimTensorSuffix(name string) string {
	for _, suffix := range []string{".safetensors", ".npy", ".npz"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

func newTensorsClearCommand() *cobra.Command {
	var flags treeFlags
	var archive, yes bool
	side := oneOf("side", debug.Gomflux, debug.Reference, "both")
	cmd := &cobra.Command{
		Use:   "clear [NAME...]",
		Short: "Remove saved tensors or earlier runs",
		Long: `Clear removes tensors of the latest run: those with the given names or, without
names, all of them. It is gomflux's run unless --side says otherwise. With
--archive it removes all earlier runs instead, of both sides unless --side is
given.

Without names it asks first; --yes answers that, and is needed where nobody can
be asked.

With --json it prints one object: removed (how many files, or runs) and bytes.
` + exitStatus,
		Example: `  gomflux tensors clear latents@0
  gomflux tensors clear --side both --yes
  gomflux tensors clear --archive`,
		ValidArgsFunction: flags.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := flags.open()
			if err != nil {
				return err
			}
			if archive && len(args) > 0 {
				return usageErrorf("--archive removes runs, not tensors: give no names with it")
			}
			sides := []string{debug.Gomflux}
			switch v := side.orZero(); {
			case v == "both" || v == "" && archive:
				sides = debug.Sides
			case v != "":
				sides = []string{v}
			}
			return clearTensors(cmd, tree, sides, args, archive, yes, flags.json)
		},
	}
	flags.add(cmd)
	f := cmd.Flags()
	f.Var(&side, "side", "whose tensors: gomflux, reference or both")
	f.BoolVar(&archive, "archive", false, "remove the earlier runs")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func clearTensors(cmd *cobra.Command, tree *debug.Tree, sides, names []string, archive, yes, asJSON bool) error {
	var runs []debug.Archive
	what := "all tensors of the latest run of " + strings.Join(sides, " and ")
	if archive {
		all, err := tree.Archived()
		if err != nil {
			return err
		}
		runs = slices.DeleteFunc(all, func(a debug.Archive) bool { return !slices.Contains(sides, a.Side) })
		what = fmt.Sprintf("%d earlier runs in %s", len(runs), tree.Root)
	}
	for _, side := range sides {
		if !archive && tree.Busy(side) {
			return fmt.Errorf("a run of %s is going on in %s: its tensors stay until it has ended", side, tree.Root)
		}
	}
	if len(names) == 0 && !yes {
		ok, err := confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), what)
		if err != nil || !ok {
			return err
		}
	}
	var removed int
	var size int64
	var err error
	if archive {
		for _, a := range runs {
			size += a.Size
		}
		removed, err = len(runs), tree.Prune(runs)
	} else {
		removed, size, err = tree.Clear(sides, names)
	}
	if err != nil {
		return notFound(err)
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), struct {
			Removed int   `json:"removed"`
			Bytes   int64 `json:"bytes"`
		}{removed, size})
	}
	kind := "files"
	if archive {
		kind = "runs"
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%d %s removed, %s\n", removed, kind, units.Bytes(size))
	return err
}

// confirm asks before something is removed.
func confirm(ctx context.Context, stdin io.Reader, stderr io.Writer, what string) (bool, error) {
	f, ok := stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return false, usageErrorf("this removes %s: give --yes", what)
	}
	fmt.Fprintf(stderr, "remove %s? [y/N] ", what)
	answer := make(chan string, 1)
	go func() { // a read cannot be interrupted
		line, _ := bufio.NewReader(f).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case line := <-answer:
		line = strings.ToLower(strings.TrimSpace(line))
		return line == "y" || line == "yes", nil
	}
}
