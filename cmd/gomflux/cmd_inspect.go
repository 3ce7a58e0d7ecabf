package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inspect"
)

// inspectOptions are the flags of gomflux inspect.
type inspectOptions struct {
	modelFlags
	component, against string
	tolerance          optional[float64]
	loaded, all, json  bool
}

func newInspectCommand() *cobra.Command {
	o := &inspectOptions{modelFlags: newModelFlags(), tolerance: parsed("number", parseTolerance)}
	cmd := &cobra.Command{
		Use:   "inspect MODEL",
		Short: "Look at a model's weights for what is wrong with them",
		Long: `Inspect reads every tensor of a model and says what is in it: number of
elements, dtypes, size, smallest and largest value, and the range of the
tensors' standard deviations, for each component; with --all also for each
tensor, with its mean. MODEL is a model as --model takes it, any other folder
with safetensors files or with folders of them, or one safetensors file. The
elements are read a few megabytes at a time, and MLX is not needed. Quantized
matrices are counted as the words that they are packed in, which have no values;
--against unpacks them.

What is or may be wrong is named on a line for each tensor. Errors are

  unreadable      files or configs that are missing or damaged
  missing         a tensor that the config asks for is not there
  unexpected      one is there that the config has no place for
  wrong shape     not the one that follows from the config
  wrong dtype     not F32, F16 or BF16
  not finite      NaN or infinite elements
  all zero        every element is 0, in anything but a bias or a single number
  constant        every element is the same, in anything of two axes or more

Names, shapes and dtypes are held against the config of a pipeline class that
this version knows, or of an autoencoder; for others a note says that they are
not. A tensor that nothing here needs is named by a note, and what is in it is
neither an error nor a warning. Warnings are

  all zero        of a bias
  constant        of one axis, as norms have before any training
  biases zero     every bias of a component is 0
  suspicious std  the standard deviation is more than 8 times off the median of
                  the same tensor in all layers: of those whose names differ by
                  numbers alone (layers.*.attention.to_q.weight), if there are 4

With --against the tensors are not judged but compared with those of the same
names in OTHER: the relative error is the length of the difference over the
length of OTHER's tensor, and elements of all dtypes are compared as the numbers
they stand for, those of quantized matrices as what they are unpacked to. Other
programs' names and orders of axes are brought to those of diffusers before.
They have to be equal, or within --tolerance. Tensors that are
in one of the two only, or that have other shapes, differ. What differs is
summed up for the same tensor in all layers, and for all tensors of a layer;
--all prints each tensor.

With --loaded the model is loaded with MLX as it is to make a picture, twice,
and the parameters are printed as they are in memory: name, field in the
program, what was done to it (oihw: channels were put last; last: of a
convolution in time only its last slice was kept), dtype, shape, first values.
That both loads gave the same is checked by the SHA-256 of dtype, shape and
values, as float32. Then the smallest picture is made in one step, and
parameters that it did not touch are named: they have no part in what this
version computes, or only in a way that was not taken. It takes the memory that
a picture takes, and with --component, which leaves the picture out, that of one
component.

With --json it prints one object, with every tensor:

  model, path, class       as it was found
  components               name, unchecked (why names and shapes were not
                           checked), parameters, bytes, dtypes (how many tensors
                           have each) and tensors: name, file, dtype, shape,
                           parameters, bytes, unused (nothing here needs it),
                           min, max, mean, std, nan, inf
  flags                    component, kind, severity, tensor, text
  errors, warnings         how many flags are which

and with --against, instead of these: against, tolerance, components (name,
only, only_in_model, only_in_other, and roles, layers and tensors with
relative_error, max_abs, cosine, differing, problem) and differing, the number
of tensors; with --loaded: device, identical, unused, not_run (why there was no
picture), and components with parameters. Numbers that JSON does not have are
the texts "NaN", "Infinity" and "-Infinity".

EXIT STATUS
  0    nothing is wrong; warnings do not count
  1    there are errors, or with --against a difference, or it failed while
       running
  2    something given was wrong: a flag, a component's name
  3    the model is not there, or has no weights that can be looked at; with
       --against and --loaded also one that is damaged, and with --loaded one
       that is not supported
  4    the MLX libraries are missing or cannot be used (--loaded)
  130  it was interrupted`,
		Example: `  gomflux inspect z-image-turbo
  gomflux inspect ./converted --against z-image-turbo --tolerance 0.004
  gomflux inspect ./z-image-4bit --against z-image-turbo --tolerance 0.2
  gomflux inspect ./model --json | jq -r '.flags[] | select(.severity == "error") | .tensor'
  gomflux inspect shapes --loaded --component transformer`,
		Args:              oneFile("a model: a name, a folder or a safetensors file"),
		ValidArgsFunction: completeModel,
		PreRunE:           func(cmd *cobra.Command, _ []string) error { return o.check(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.component, "component", "", "look at one component (`name`) only")
	f.BoolVar(&o.all, "all", false, "print every tensor")
	f.StringVar(&o.against, "against", "", "compare with another `model`")
	f.Var(&o.tolerance, "tolerance", "the relative error of a tensor that --against allows (default: 0, they must be equal)")
	f.BoolVar(&o.loaded, "loaded", false, "load the model and print its parameters as they are in memory")
	o.addPlace(f)
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	if err := cmd.RegisterFlagCompletionFunc("against", completeModel); err != nil {
		panic(err) // a flag that the command has not
	}
	return cmd
}

func parseTolerance(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0) || math.IsInf(v, 0) {
		return 0, errors.New("must be a number from 0")
	}
	return v, nil
}

// check refuses flags that do not go together.
func (o *inspectOptions) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case o.loaded && changed("against"):
		return usageErrorf("give either --loaded or --against")
	case changed("against") && o.against == "":
		return usageErrorf("against: the model's name is empty")
	case changed("component") && o.component == "":
		return usageErrorf("component: the name is empty")
	case changed("tolerance") && !changed("against"):
		return usageErrorf("--tolerance is for --against")
	case changed("dtype") && !o.loaded, changed("device") && !o.loaded:
		return usageErrorf("--dtype and --device are for --loaded")
	case o.loaded && o.all:
		return usageErrorf("--loaded prints every parameter anyway (leave --all out)")
	}
	return nil
}

func (o *inspectOptions) run(ctx context.Context, name string, stdout, stderr io.Writer) error {
	show := &display{}
	if !o.json {
		show = newDisplay(ctx, stderr, nil)
	}
	defer show.close()
	if o.loaded {
		return o.runLoaded(ctx, name, show, stdout, stderr)
	}
	model, err := o.open(name)
	if err != nil {
		return err
	}
	defer model.Close()
	if o.against != "" {
		return o.compare(ctx, model, show, stdout)
	}
	if err := model.Read(ctx, show.loading); err != nil {
		return err
	}
	show.close()
	r := newInspection(model)
	write := r.print
	if o.json {
		write = func(w io.Writer, _ bool) error { return writeJSON(w, r) }
	}
	if err := write(stdout, o.all); err != nil {
		return err
	}
	if r.Errors > 0 {
		return fmt.Errorf("%s in the weights of %s", plural(r.Errors, "error"), quote.Printable(model.name))
	}
	return nil
}

// openWeights are the weights of a model and where they were found.
type openWeights struct {
	*inspect.Weights
	name, path string
}

// open opens a model by its name, or a safetensors file.
func (o *inspectOptions) open(name string) (*openWeights, error) {
	model, err := openModelWeights(name)
	if err != nil {
		return nil, coded(exitModel, err)
	}
	if o.component == "" {
		return model, nil
	}
	if err := model.Select(o.component); err != nil {
		model.Close()
		if errors.Is(err, gomflux.ErrRequest) {
			err = coded(exitUsage, err)
		}
		return nil, err
	}
	return model, nil
}

func openModelWeights(name string) (*openWeights, error) {
	file := catalog.ExpandHome(name)
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
		w, err := inspect.OpenWeightsFile(file)
		return &openWeights{w, name, file}, err
	}
	source, err := gomflux.Find(name)
	if err != nil {
		return nil, err
	}
	w, err := inspect.OpenWeights(source.FS())
	if err != nil {
		return nil, err
	}
	readable := func(c *inspect.ComponentWeights) bool { return c.Err == nil }
	if !slices.ContainsFunc(w.Components, readable) {
		return nil, w.Components[0].Err
	}
	return &openWeights{w, source.Name(), source.Path()}, nil
}

// relative is a file's name within the model.
func (w *openWeights) relative(file string) string {
	if rel, err := filepath.Rel(cmp.Or(w.path, w.name), file); err == nil && filepath.IsLocal(rel) && rel != "." {
		return rel
	}
	return filepath.Base(file)
}

// The object of inspect --json.
type (
	inspection struct {
		Model      string           `json:"model"`
		Path       string           `json:"path,omitempty"`
		Class      string           `json:"class,omitempty"`
		Components []*inspectedPart `json:"components"`
		Flags      []inspectedFlag  `json:"flags"`
		Errors     int              `json:"errors"`
		Warnings   int              `json:"warnings"`
	}
	inspectedPart struct {
		Name       string            `json:"name"`
		Unchecked  string            `json:"unchecked,omitempty"`
		Parameters int               `json:"parameters"`
		Bytes      int64             `json:"bytes"`
		Dtypes     map[string]int    `json:"dtypes"`
		Tensors    []inspectedTensor `json:"tensors"`
	}
	inspectedTensor struct {
		Name       string `json:"name"`
		File       string `json:"file"`
		Dtype      string `json:"dtype"`
		Shape      []int  `json:"shape"`
		Parameters int    `json:"parameters"`
		Bytes      int64  `json:"bytes"`
		Unused     bool   `json:"unused,omitempty"`
		*checkpoint.Stats
	}
	inspectedFlag struct {
		Component string `json:"component"`
		Kind      string `json:"kind"`
		Severity  string `json:"severity"` // error or warning
		Tensor    string `json:"tensor,omitempty"`
		Text      string `json:"text"`
	}
)

func newInspection(w *openWeights) *inspection {
	r := &inspection{Model: w.name, Path: w.path, Class: w.Class, Components: []*inspectedPart{}, Flags: []inspectedFlag{}}
	for _, c := range w.Components {
		part := &inspectedPart{Name: c.Name, Dtypes: map[string]int{}, Tensors: []inspectedTensor{}}
		if c.Unchecked != nil {
			part.Unchecked = c.Unchecked.Error()
		}
		for _, t := range c.Tensors {
			part.Parameters += t.Len()
			part.Bytes += t.Bytes()
			part.Dtypes[string(t.Dtype)]++
			one := inspectedTensor{t.Name, w.relative(t.File), string(t.Dtype), t.Shape, t.Len(), t.Bytes(), t.Unused, t.Stats}
			if t.Dtype == checkpoint.U32 || t.Dtype == checkpoint.U8 {
				one.Stats = nil // of packed numbers their words say nothing
			}
			part.Tensors = append(part.Tensors, one)
		}
		r.Components = append(r.Components, part)
		for _, f := range c.Flags() {
			severity := "warning"
			if f.Error {
				severity = "error"
				r.Errors++
			} else {
				r.Warnings++
			}
			r.Flags = append(r.Flags, inspectedFlag{c.Name, string(f.Kind), severity, f.Tensor, f.Text})
		}
	}
	return r
}

func (r *inspection) print(w io.Writer, all bool) error {
	var b strings.Builder
	t := table{{"component", "tensors", "parameters", "dtype", "size", "values", "std"}}
	for _, c := range r.Components {
		lowest, highest, std := math.Inf(1), math.Inf(-1), []float64{}
		for _, tensor := range c.Tensors {
			if s := tensor.Stats; s != nil && !math.IsNaN(float64(s.Std)) {
				lowest, highest = min(lowest, float64(s.Min)), max(highest, float64(s.Max))
				std = append(std, float64(s.Std))
			}
		}
		values, deviations := "-", "-"
		if len(std) > 0 {
			values = fmt.Sprintf("%.4g to %.4g", lowest, highest)
			deviations = fmt.Sprintf("%.3g to %.3g", slices.Min(std), slices.Max(std))
		}
		dtypes := strings.Join(slices.Sorted(maps.Keys(c.Dtypes)), ", ")
		t = append(t, []string{c.Name, strconv.Itoa(len(c.Tensors)), strconv.Itoa(c.Parameters), cmp.Or(dtypes, "-"), units.Bytes(c.Bytes), values, deviations})
	}
	t.print(&b)
	if all {
		for _, c := range r.Components {
			t := table{{c.Name, "dtype", "shape", "min", "max", "mean", "std", "NaN", "inf", "file"}}
			for _, tensor := range c.Tensors {
				row := []string{tensor.Name, tensor.Dtype, fmt.Sprint(tensor.Shape), "-", "-", "-", "-", "-", "-", tensor.File}
				if s := tensor.Stats; s != nil {
					for i, v := range []checkpoint.Float{s.Min, s.Max, s.Mean, s.Std} {
						row[3+i] = fmt.Sprintf("%.4g", float64(v))
					}
					row[7], row[8] = strconv.Itoa(s.NaN), strconv.Itoa(s.Inf)
				}
				t = append(t, row)
			}
			fmt.Fprintln(&b)
			t.print(&b)
		}
	}
	fmt.Fprintln(&b)
	for _, c := range r.Components {
		if c.Unchecked != "" {
			fmt.Fprintf(&b, "note: %s: names and shapes are not checked: %s\n", quote.Printable(c.Name), quote.Printable(c.Unchecked))
		}
		var unused []string
		for _, tensor := range c.Tensors {
			if tensor.Unused {
				unused = append(unused, quote.Printable(tensor.Name))
			}
		}
		if len(unused) > 0 {
			fmt.Fprintf(&b, "note: %s: %s not needed: %s\n", quote.Printable(c.Name), plural(len(unused), "tensor"), some(unused, 3))
		}
	}
	for _, f := range r.Flags {
		words := []string{f.Severity, quote.Printable(f.Component), f.Kind}
		if f.Tensor != "" {
			words = append(words, quote.Printable(f.Tensor))
		}
		fmt.Fprintln(&b, strings.Join(append(words, quote.Printable(f.Text)), ": "))
	}
	fmt.Fprintf(&b, "%s, %s\n", plural(r.Errors, "error"), plural(r.Warnings, "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}

// some joins the first words of a list.
func some(words []string, most int) string {
	if len(words) > most {
		return strings.Join(words[:most], ", ") + ", …"
	}
	return strings.Join(words, ", ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// A table is printed in columns. Its first row is the heads.
type table [][]string

func (t table) print(b *strings.Builder) {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i := range row {
			row[i] = quote.Printable(row[i])
			width[i] = max(width[i], len([]rune(row[i])))
		}
	}
	for _, row := range t {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", width[i], cell)
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
}

// The object of inspect --against --json.
type (
	comparison struct {
		Model      string          `json:"model"`
		Against    string          `json:"against"`
		Tolerance  float64         `json:"tolerance"`
		Components []*comparedPart `json:"components"`
		Differing  int             `json:"differing"` // tensors, with those that only one has
	}
	comparedPart struct {
		Name    string           `json:"name"`
		Only    string           `json:"only,omitempty"` // model or other
		OnlyA   []string         `json:"only_in_model"`
		OnlyB   []string         `json:"only_in_other"`
		Roles   comparedGroups   `json:"roles"`
		Layers  comparedGroups   `json:"layers"`
		Tensors []comparedTensor `json:"tensors"`
	}
	comparedGroups []*comparedGroup
	comparedGroup  struct {
		Name      string           `json:"name"`
		Tensors   int              `json:"tensors"`
		Differing int              `json:"differing"`
		Relative  checkpoint.Float `json:"relative_error"` // the largest
		MaxAbs    checkpoint.Float `json:"max_abs"`        // the largest
		Cosine    checkpoint.Float `json:"cosine"`         // the smallest
		compared  int
		problem   string
	}
	comparedTensor struct {
		Name      string           `json:"name"`
		Dtype     string           `json:"dtype"`
		Other     string           `json:"other_dtype"`
		Shape     []int            `json:"shape"`
		Relative  checkpoint.Float `json:"relative_error"`
		MaxAbs    checkpoint.Float `json:"max_abs"`
		Cosine    checkpoint.Float `json:"cosine"`
		Differing int              `json:"differing"` // elements
		Problem   string           `json:"problem,omitempty"`
		Within    bool             `json:"within_tolerance"`
	}
)

// compare compares two models.
func (o *inspectOptions) compare(ctx context.Context, model *openWeights, show *display, stdout io.Writer) error {
	other, err := o.open(o.against)
	if err != nil {
		return err
	}
	defer other.Close()
	for _, part := range slices.Concat(model.Components, other.Components) {
		if part.Err != nil {
			return coded(exitModel, part.Err)
		}
	}
	if err := checkCommon(model, other); err != nil {
		return err
	}
	c, err := inspect.Compare(ctx, model.Weights, other.Weights, show.loading)
	if err != nil {
		return err
	}
	show.close()
	r := newComparison(c, model.name, other.name, o.tolerance.orZero())
	if o.json {
		err = writeJSON(stdout, r)
	} else {
		err = r.print(stdout, o.all)
	}
	if err == nil && r.Differing > 0 {
		err = fmt.Errorf("%s of %s and %s differ by more than the tolerance of %g", plural(r.Differing, "tensor"), quote.Printable(r.Model), quote.Printable(r.Against), r.Tolerance)
	}
	return err
}

// checkCommon refuses what has no component that the other one has too, such as a
// single file and a whole model.
func checkCommon(a, b *openWeights) error {
	names := func(w *openWeights) (list []string) {
		for _, c := range w.Components {
			list = append(list, c.Name)
		}
		return list
	}
	of, against := names(a), names(b)
	if len(of) == 1 && len(against) == 1 || slices.ContainsFunc(of, func(name string) bool { return slices.Contains(against, name) }) {
		return nil
	}
	return usageErrorf("%s has %s, and %s has %s: there is nothing to compare (a file can be compared with the folder of one component, such as MODEL/transformer)",
		quote.Printable(a.name), some(of, 3), quote.Printable(b.name), some(against, 3))
}

func newComparison(c *inspect.Comparison, model, other string, tolerance float64) *comparison {
	r := &comparison{Model: model, Against: other, Tolerance: tolerance, Components: []*comparedPart{}}
	for _, c := range c.Components {
		part := &comparedPart{Name: c.Name, OnlyA: append([]string{}, c.OnlyA...), OnlyB: append([]string{}, c.OnlyB...), Roles: comparedGroups{}, Layers: comparedGroups{}, Tensors: []comparedTensor{}}
		part.Only = map[string]string{"a": "model", "b": "other"}[c.Only]
		if c.Only != "" {
			r.Differing++
		}
		r.Differing += len(c.OnlyA) + len(c.OnlyB)
		for _, d := range c.Tensors {
			within := d.Within(tolerance)
			if !within {
				r.Differing++
			}
			part.Roles.add(inspect.RoleOf(d.Name), d, within)
			part.Layers.add(inspect.LayerOf(d.Name), d, within)
			part.Tensors = append(part.Tensors, comparedTensor{
				d.Name, d.DtypeA, d.DtypeB, d.Shape, d.Relative, d.MaxAbs, d.Cosine, d.Differing, d.Mismatch, within,
			})
		}
		r.Components = append(r.Components, part)
	}
	return r
}

// add puts a difference into the group of that name.
func (g *comparedGroups) add(name string, d *inspect.TensorDifference, within bool) {
	i := slices.IndexFunc(*g, func(group *comparedGroup) bool { return group.Name == name })
	if i < 0 {
		i = len(*g)
		*g = append(*g, &comparedGroup{Name: name, Cosine: 1})
	}
	group := (*g)[i]
	group.Tensors++
	if !within {
		group.Differing++
	}
	group.problem = cmp.Or(group.problem, d.Mismatch)
	if d.Mismatch == "" {
		group.compared++
		group.Relative, group.MaxAbs, group.Cosine = max(group.Relative, d.Relative), max(group.MaxAbs, d.MaxAbs), min(group.Cosine, d.Cosine)
	}
}

// print prints the groups in which something differs, or all, and says how many
// tensors the others have.
func (g comparedGroups) print(b *strings.Builder, what string, all bool) (equal int) {
	t := table{{what, "differing", "relative error", "largest difference", "cosine", ""}}
	for _, group := range g {
		if group.Differing == 0 && group.MaxAbs == 0 && !all {
			equal += group.Tensors
			continue
		}
		row := []string{group.Name, fmt.Sprintf("%d of %d", group.Differing, group.Tensors), "-", "-", "-", group.problem}
		if group.compared > 0 {
			row[2], row[3], row[4] = number3(group.Relative), number3(group.MaxAbs), fmt.Sprintf("%.7g", float64(group.Cosine))
		}
		t = append(t, row)
	}
	if len(t) > 1 {
		t.print(b)
	}
	return equal
}

func number3(f checkpoint.Float) string { return fmt.Sprintf("%.3g", float64(f)) }

func (r *comparison) print(w io.Writer, all bool) error {
	var b strings.Builder
	for i, c := range r.Components {
		if i > 0 {
			fmt.Fprintln(&b)
		}
		if c.Only != "" {
			fmt.Fprintf(&b, "%s: only in %s\n", quote.Printable(c.Name), quote.Printable(map[string]string{"model": r.Model, "other": r.Against}[c.Only]))
			continue
		}
		fmt.Fprintf(&b, "%s\n", quote.Printable(c.Name))
		equal := c.Roles.print(&b, "tensor in all layers", all)
		c.Layers.print(&b, "layer", all)
		if all {
			t := table{{"tensor", "dtypes", "elements that differ", "relative error", "largest difference", "cosine"}}
			for _, d := range c.Tensors {
				dtypes := d.Dtype
				if d.Other != d.Dtype {
					dtypes += ", " + d.Other
				}
				row := []string{d.Name, dtypes, strconv.Itoa(d.Differing), number3(d.Relative), number3(d.MaxAbs), fmt.Sprintf("%.7g", float64(d.Cosine))}
				if d.Problem != "" {
					row = []string{d.Name, dtypes, d.Problem, "-", "-", "-"}
				}
				t = append(t, row)
			}
			t.print(&b)
		} else {
			fmt.Fprintf(&b, "%s equal\n", plural(equal, "tensor"))
		}
		for _, side := range []struct {
			model string
			names []string
		}{{r.Model, c.OnlyA}, {r.Against, c.OnlyB}} {
			if all {
				for _, name := range side.names {
					fmt.Fprintf(&b, "only in %s: %s\n", quote.Printable(side.model), quote.Printable(name))
				}
				continue
			}
			counts := map[string]int{}
			for _, name := range side.names {
				counts[inspect.RoleOf(name)]++
			}
			for _, name := range side.names { // in their order
				if n := counts[inspect.RoleOf(name)]; n > 0 {
					fmt.Fprintf(&b, "only in %s: %s: %s\n", quote.Printable(side.model), plural(n, "tensor"), quote.Printable(inspect.RoleOf(name)))
				}
				delete(counts, inspect.RoleOf(name))
			}
		}
	}
	fmt.Fprintf(&b, "\n%s beyond the tolerance of %g\n", plural(r.Differing, "difference"), r.Tolerance)
	_, err := io.WriteString(w, b.String())
	return err
}

// The object of inspect --loaded --json.
type (
	loadedModel struct {
		Model      string        `json:"model"`
		Path       string        `json:"path,omitempty"`
		Class      string        `json:"class"`
		Device     string        `json:"device"`
		Identical  bool          `json:"identical"`
		Unused     int           `json:"unused"`
		NotRun     string        `json:"not_run,omitempty"`
		Components []*loadedPart `json:"components"`
	}
	loadedPart struct {
		Name       string            `json:"name"`
		Parameters []loadedParameter `json:"parameters"`
	}
	loadedParameter struct {
		Name      string             `json:"name"`
		Tensor    string             `json:"tensor"`
		File      string             `json:"file"`
		Field     string             `json:"field"`
		Transform string             `json:"transform,omitempty"`
		Stored    string             `json:"stored_dtype"`
		Dtype     string             `json:"dtype"`
		Shape     []int              `json:"shape"`
		First     []checkpoint.Float `json:"first"`
		SHA256    string             `json:"sha256"`
		Identical bool               `json:"identical"`
		Unused    bool               `json:"unused,omitempty"` // by the smallest picture
	}
)

func (o *inspectOptions) runLoaded(ctx context.Context, name string, show *display, stdout, stderr io.Writer) error {
	source, err := gomflux.Find(name)
	if err != nil {
		return coded(exitModel, err)
	}
	if _, err := o.checkLibrary(ctx, warnings{stderr}); err != nil {
		return err
	}
	load, err := o.loadOptions()
	if err != nil {
		return coded(exitUsage, err)
	}
	load.Progress = func(component string, done, total int64) {
		mlx.Call(func() { show.loading(component, done, total) })
	}
	var loaded *inspect.LoadedModel
	err = mlx.Do(ctx, func() (err error) {
		loaded, err = inspect.Loaded(source.FS(), o.component, load)
		return err
	})
	if err != nil {
		return coded(exitModel, modelError(err))
	}
	show.close()
	r := newLoadedModel(loaded, &openWeights{name: source.Name(), path: source.Path()})
	if o.json {
		err = writeJSON(stdout, r)
	} else {
		err = r.print(stdout)
	}
	if err == nil && !r.Identical {
		err = fmt.Errorf("%s: two loads are not identical", quote.Printable(r.Model))
	}
	return err
}

// loadOptions are --dtype and --device.
func (o *inspectOptions) loadOptions() (load inspect.LoadOptions, err error) {
	load.Device, load.Dtype, err = o.place()
	return load, err
}

func newLoadedModel(l *inspect.LoadedModel, where *openWeights) *loadedModel {
	r := &loadedModel{Model: where.name, Path: where.path, Class: l.Class, Device: l.Device.String(), Identical: true, Components: []*loadedPart{}}
	if l.NotRun != nil {
		r.NotRun = l.NotRun.Error()
	}
	for _, c := range l.Components {
		part := &loadedPart{Name: c.Name, Parameters: []loadedParameter{}}
		for _, p := range c.Parameters {
			first := []checkpoint.Float{}
			for _, v := range p.First {
				first = append(first, checkpoint.Float(v))
			}
			identical, unused := p.SHA256 == p.Again, l.NotRun == nil && !p.Used
			part.Parameters = append(part.Parameters, loadedParameter{
				p.Name, p.Tensor.Name, where.relative(p.Tensor.File), p.Field, p.Transform, string(p.Tensor.Dtype), p.Dtype.String(), p.Shape, first, p.SHA256, identical, unused,
			})
			r.Identical = r.Identical && identical
			if unused {
				r.Unused++
			}
		}
		r.Components = append(r.Components, part)
	}
	return r
}

func (r *loadedModel) print(w io.Writer) error {
	var b strings.Builder
	for _, c := range r.Components {
		t := table{{c.Name, "field", "transform", "dtype", "shape", "first values"}}
		for _, p := range c.Parameters {
			var first []string
			for _, v := range p.First {
				first = append(first, fmt.Sprintf("%.4g", float64(v)))
			}
			dtype := p.Dtype
			if stored := checkpoint.Dtype(p.Stored).Long(); stored != dtype {
				dtype = stored + " as " + dtype
			}
			t = append(t, []string{p.Name, p.Field, cmp.Or(p.Transform, "-"), dtype, fmt.Sprint(p.Shape), strings.Join(first, " ")})
		}
		t.print(&b)
		fmt.Fprintln(&b)
	}
	parameters := 0
	for _, c := range r.Components {
		for _, p := range c.Parameters {
			if parameters++; !p.Identical {
				fmt.Fprintf(&b, "error: %s: not identical: %s: the second load gave other bytes\n", c.Name, p.Name)
			}
			if p.Unused {
				fmt.Fprintf(&b, "warning: %s: not used: %s\n", c.Name, p.Name)
			}
		}
	}
	if r.Identical {
		fmt.Fprintf(&b, "two loads are identical: the SHA-256 of %s\n", plural(parameters, "parameter"))
	}
	if r.NotRun != "" {
		fmt.Fprintf(&b, "no picture was made: %s\n", quote.Printable(r.NotRun))
	} else {
		fmt.Fprintf(&b, "%d of %s used by the smallest picture on %s\n", parameters-r.Unused, plural(parameters, "parameter"), r.Device)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
