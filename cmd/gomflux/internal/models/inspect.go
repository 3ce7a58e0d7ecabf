package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inspect"
)

const inspectHelp = `Inspect reads every tensor of a model and checks it. For each component it
prints the number of elements, dtypes, size, smallest and largest value, and the
range of the tensors' standard deviations; with --all also each tensor. MODEL is
a model as --model takes it, any folder with safetensors files or with folders
of them, or a safetensors file. Tensors are read in small pieces, and MLX is not
needed. A safetensors file is checked by itself, without a config, unless it is
that of gomflux upscale; with --base-model it is checked as a part of the model
that --model FILE uses.
Elements of quantized matrices are counted as packed words, and their
values are not checked; --against dequantizes them.

ERRORS AND WARNINGS
Each problem has a line. Errors are

  unreadable      files or configs that are missing or damaged
  missing         a tensor that the config needs
  unexpected      a tensor that the config has no place for
  wrong shape     a shape other than the config's
  wrong dtype     other than F32, F16 or BF16
  not finite      NaN or infinite elements
  all zero        every element is 0, except in biases and single numbers
  constant        every element is the same, in tensors of two or more axes

Names, shapes and dtypes are checked against the config if this version knows
the pipeline class, or the component is an autoencoder; otherwise a note is
printed. Tensors that gomflux does not need are named in a note and not checked.
Warnings are

  all zero        of a bias
  constant        of one axis, as in norms before training
  biases zero     every bias of a component is 0
  suspicious std  a standard deviation more than 8 times off the median of the
                  same tensor in all layers (names that differ by numbers alone:
                  layers.*.attention.to_q.weight), if there are at least 4

COMPARING
With --against OTHER tensors are compared by name with those of another model.
The relative error is the norm of the difference divided by the norm of OTHER's
tensor. Elements are compared as numbers, whatever their dtypes; quantized
matrices are dequantized; names and axis orders of other programs are converted
to those of diffusers first. Tensors must be equal, or within --tolerance.
Tensors that only one model has, or whose shapes differ, count as different.
Differences are summed up for the same tensor in all layers, and for all tensors
of a layer; --all prints each tensor.

LOADING
With --loaded the model is loaded twice with MLX, as to generate an image, and
its parameters are printed as they are in memory: name, field in the program,
what was done to it (oihw: channels moved last; last: only the last slice of a
convolution in time is kept), dtype, shape and first values. Both loads must
have the same SHA-256 of dtype, shape and values as float32. Then the smallest
image is generated in one step, and parameters that it does not use are named.
This needs the memory of generating an image; with --component, which skips the
image, only that of one component.

JSON
With --json inspect prints one object, with every tensor:

  model, path, class       name, folder and pipeline class
  components               name, unchecked (why names and shapes were not
                           checked), parameters, bytes, dtypes (number of
                           tensors of each) and tensors: name, file, dtype,
                           shape, parameters, bytes, unused (not needed), min,
                           max, mean, std, nan, inf
  flags                    component, kind, severity, tensor, text
  errors, warnings         their numbers in flags

With --against it is instead: against, tolerance, components (name, only,
only_in_model, only_in_other, and roles, layers and tensors with relative_error,
max_abs, cosine, differing, problem) and differing, the number of tensors. With
--loaded: device, identical, unused, not_run (why no image was generated), and
components with parameters. Numbers that JSON lacks are the texts "NaN",
"Infinity" and "-Infinity".

EXIT STATUS
  0    no errors; warnings do not count
  1    errors, or with --against a difference, or an error while running
  2    invalid input: a flag, a component's name
  3    the model is missing or has no readable weights; with --against and
       --loaded also if it is damaged, with --loaded if it is not supported
  4    the MLX libraries are missing or unusable (--loaded)
  130  interrupted`

// inspectOptions are the flags of gomflux inspect.
type inspectOptions struct {
	cli.ModelFlags
	cli.OutputFlags
	component, against string
	tolerance          cli.Optional[float64]
	loaded, all        bool
}

func NewInspectCommand() *cobra.Command {
	o := &inspectOptions{ModelFlags: cli.NewModelFlags(), tolerance: cli.Scale("number")}
	cmd := &cobra.Command{
		Use:   "inspect MODEL",
		Short: "Check a model's weights for problems",
		Long:  inspectHelp,
		Example: `  gomflux inspect z-image-turbo
  gomflux inspect ./converted --against z-image-turbo --tolerance 0.004
  gomflux inspect ./z-image-4bit --against z-image-turbo --tolerance 0.2
  gomflux inspect ./model --json | jq -r '.flags[] | select(.severity == "error") | .tensor'
  gomflux inspect shapes --loaded --component transformer`,
		Args:              cli.OneArg("a model: a name, a folder or a safetensors file"),
		ValidArgsFunction: cli.CompleteModel,
		PreRunE:           func(cmd *cobra.Command, _ []string) error { return o.validate(cmd.Flags().Changed) },
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), o.Out(cmd), args[0]) },
	}
	o.addFlags(cmd.Flags())
	if err := cmd.RegisterFlagCompletionFunc("against", cli.CompleteModel); err != nil {
		panic(err) // the command does not have the flag
	}
	return cmd
}

func (o *inspectOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.component, "component", "", "check only one component (`name`)")
	f.BoolVar(&o.all, "all", false, "print every tensor")
	f.StringVar(&o.against, "against", "", "compare with another `model`")
	f.Var(&o.tolerance, "tolerance", "largest relative error of a tensor with --against (default: 0, equal)")
	f.BoolVar(&o.loaded, "loaded", false, "load the model and print its parameters as they are in memory")
	cli.AddBaseModel(f, &o.Base)
	o.AddCompute(f)
	o.AddJSON(f, "a JSON object")
}

// validate refuses flags that do not go together.
func (o *inspectOptions) validate(given func(string) bool) error {
	switch {
	case o.loaded && given("against"):
		return cli.UsageErrorf("give either --loaded or --against")
	case given("against") && o.against == "":
		return cli.UsageErrorf("--against: the model's name is empty")
	case given("component") && o.component == "":
		return cli.UsageErrorf("--component: the name is empty")
	case given("tolerance") && !given("against"):
		return cli.UsageErrorf("--tolerance has no effect without --against")
	case given("dtype") && !o.loaded, given("device") && !o.loaded:
		return cli.UsageErrorf("--dtype and --device have no effect without --loaded")
	case o.loaded && o.all:
		return cli.UsageErrorf("--loaded always prints every parameter (leave --all out)")
	}
	return nil
}

func (o *inspectOptions) run(ctx context.Context, out *ui.Output, name string) error {
	progress := out.StartProgress(ctx)
	defer progress.Close()
	if o.loaded {
		return o.inspectLoaded(ctx, out, progress, name)
	}
	model, err := o.openWeights(name, o.Base)
	if err != nil {
		return err
	}
	defer model.Close()
	if o.against != "" {
		return o.compare(ctx, out, progress, model)
	}
	if err := model.Read(ctx, progress.Loading); err != nil {
		return err
	}
	progress.Close()
	r := newInspection(model, o.all)
	if err := out.Result(r); err != nil {
		return err
	}
	if r.Errors > 0 {
		return fmt.Errorf("%s in the weights of %s", ui.Plural(r.Errors, "error"), quote.Printable(model.name))
	}
	return nil
}

// openWeights are the weights of a model, with its name and folder.
type openWeights struct {
	*inspect.Weights
	name, path string
}

// open opens the weights of a model or of a safetensors file.
func (o *inspectOptions) openWeights(name, base string) (*openWeights, error) {
	model, err := openModelWeights(name, base)
	if err != nil {
		return nil, cli.Coded(cli.ExitModel, cli.ModelError(err))
	}
	if o.component == "" {
		return model, nil
	}
	if err := model.Select(o.component); err != nil {
		model.Close()
		if errors.Is(err, gomflux.ErrRequest) {
			err = cli.Coded(cli.ExitUsage, err)
		}
		return nil, err
	}
	return model, nil
}

func openModelWeights(name, base string) (*openWeights, error) {
	if source := catalog.OnlyUpscaler(name); source != nil && base == "" {
		w, err := inspect.OpenWeights(source.FS)
		return &openWeights{w, source.Name, source.Folder}, err
	}
	file := disk.ExpandHome(name)
	if info, err := os.Stat(file); err == nil && base == "" && info.Mode().IsRegular() {
		w, err := inspect.OpenWeightsFile(file)
		return &openWeights{w, name, file}, err
	}
	source, err := gomflux.FindWith(name, base)
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

// relative returns a file's name within the model.
func (w *openWeights) relative(file string) string {
	if rel, err := filepath.Rel(cmp.Or(w.path, w.name), file); err == nil && filepath.IsLocal(rel) && rel != "." {
		return rel
	}
	return filepath.Base(file)
}
