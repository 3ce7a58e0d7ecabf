// Package models has the commands about models, and about images without generating any.
package models

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

const modelsHelp = `Models lists the built-in models, the published models with a short name, and
what else is in the Hugging Face cache: diffusers pipelines and models saved by
mflux. The last are networks for gomflux upscale. Each line has the name for
--model, the size on disk, the location and a state:

  ready           all files are there, with the tensors that the configs need
  incomplete      files are missing, damaged or belong to another model; the
                  lines below name them
  not supported   this version cannot run the model
  not downloaded  not on this machine; the command that downloads it is shown

Only configs and headers of files are checked; no model is loaded.

The lines below a published model list its other names, its licence with what
it says of commercial use, unless that is allowed, and how to get access if it
is gated and not downloaded.

MACS
--mac estimates the memory of generating one image with each published model, of
its default size, on Macs with so much memory. A cell has the peak in GB and
what it takes to stay below the memory that Metal recommends for all programs
together, two thirds of the Mac's, or three quarters above 32 GB:

  *            one component at a time is in memory; gomflux does so by itself
  -q 8, -q 4   quantized weights
  WIDTHxHEIGHT a smaller image; for others the size is the model's default

The chips are an M1 up to 16 GB, an M1 Max up to 64 and an M1 Ultra above: they
compute in float16, which takes more memory than bfloat16 on later ones. Nothing
was measured on a Mac.

JSON
With --json models prints one array of objects:

  name               name for --model
  repo, revision     of a published model: repository and downloaded commit
  path               folder; none for a built-in model
  builtin            true for a model that is part of the program
  about              what a built-in model or a network is for
  class              pipeline class
  bytes              size on disk
  quantized          of most quantized layers: 4, 8, mxfp4 and so on
  packed             ComfyUI's format of most layers that are dequantized while
                     they are loaded: int8_tensorwise, mxfp8 and so on
  here               true if any file is on this machine
  complete           true if all files are there and whole
  supported          true if this version can run it
  problems           array of texts
  unfinished         files of unfinished downloads
  get                command that downloads what is missing
  aliases            other names for --model, an array of texts
  licence            of a published model, as an SPDX identifier if it has one
  licence_url        where the licence can be read
  commercial_use     allowed, conditional or forbidden
  licence_terms      what the licence says of commercial use, if not allowed
  gated              true if downloading needs a token, of an account that has
                     accepted the model's conditions

With --mac the objects have

  name               of the published model
  macs               array of memory_gib, working_set_bytes, fits, quantize (""
                     for none), width, height, low_ram and peak_bytes
` + cli.ExitStatus

func NewModelsCommand() *cobra.Command {
	var o cli.OutputFlags
	var macs []int
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List known models and their state on this machine",
		Long:  modelsHelp,
		Example: `  gomflux models
  gomflux models --mac 8,16
  gomflux models --json | jq -r '.[] | select(.complete and .supported) | .name'`,
		Args: cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(macs) > 0 {
				list, err := fitMacs(cmd.Context(), macs)
				if err != nil {
					return err
				}
				return o.Out(cmd).Result(list)
			}
			list, err := cli.ListAll()
			return cmp.Or(o.Out(cmd).Result(cli.ModelList(list)), err)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON array")
	cmd.Flags().IntSliceVar(&macs, "mac", nil, "estimate what fits Macs with so much memory, in `GB`")
	return cmd
}

const listHelp = `List prints the models on this machine: built-in models, models in the Hugging
Face cache, and folders here that have the name of a published model. gomflux
models lists the models that can be downloaded too; its help explains the states
and the fields of --json.
` + cli.ExitStatus

func NewListCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the models on this machine",
		Long:    listHelp,
		Example: "  gomflux list",
		Args:    cli.NoArgs(" (gomflux show takes a name)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := cli.ListModels()
			list = slices.DeleteFunc(list, func(m cli.ListedModel) bool { return !m.Here })
			return cmp.Or(o.Out(cmd).Result(cli.ModelList(list)), err)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON array")
	return cmd
}
