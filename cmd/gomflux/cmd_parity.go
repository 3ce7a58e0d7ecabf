package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/picture"
)

func newParityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parity",
		Short: "Compare tensors and pictures with a reference's",
		Long: `Parity compares what gomflux computes with what a reference, such as diffusers, has
dumped (scripts/reference), and names the first module that computes something else.`,
		Args: noArgs(" (see gomflux parity --help)"),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newParityRunCommand(), newParityBisectCommand(), newParityDiffCommand(), newParityImageCommand())
	return cmd
}

func newParityRunCommand() *cobra.Command {
	o := &struct {
		modelFlags
		weightFlags
		reportFlags
		free, isolated bool
	}{modelFlags: newModelFlags(), weightFlags: newWeightFlags()}
	cmd := &cobra.Command{
		Use:   "run RUN",
		Short: "Run a reference's settings again and find the first tensor that differs",
		Long: `Run takes the folder of a reference's run (settings.json and safetensors files, as
scripts/reference dumps them), makes the same picture with gomflux, and compares all
tensors that both have. There are two readings of each:

  from the start   the run goes on with what gomflux computes, so errors add up
  by itself        every module gets the reference's inputs: the reference's tensor
                   takes the place of each that was compared. This takes one pass for
                   each depth of the module tree

The table has one line for each stage, backwards from the picture, with the largest
relative L2 error in it. The verdict names the first module that is wrong though what
it gets is right, what is inside it, and what is known to look like that. With --free,
when no module gets what is right, it names the first tensor that differs.

The model is the one that the settings name (a folder, seen from the run's folder, the
one around it, or the one around that), or --model. The initial noise is the
reference's, or drawn as PyTorch does where the run does not have it.

How much a tensor may differ depends on device, dtype and stage. On the CPU in float32
it is, for a module by itself, 2e-5 of the largest reference value and 1e-5 relative
L2, of all values and of each channel; in float16 1e-2, in bfloat16 2e-2 and 1e-2. From
the start of a run it is more. --tolerances changes that.

With --quantize it is how far each module is off because its weights are, and with
--lora the reference has to have the same LoRA.
` + parityStatus,
		Example: `  gomflux parity run models/testdata/zimage-ordinary/dump
  gomflux parity run logs/runs/latest/reference --model ./z-image --html parity.html`,
		Args: oneFile("the folder of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p := parity.Options{Model: o.model}
			switch {
			case o.free && o.isolated:
				return usageErrorf("--free and --isolated are both made without them")
			case o.free:
				p.Readings = []string{parity.Free}
			case o.isolated:
				p.Readings = []string{parity.Isolated}
			}
			if err := o.weightFlags.parity(cmd, &p); err != nil {
				return err
			}
			if err := checkRun(args[0]); err != nil {
				return err
			}
			return runParity(cmd.Context(), args[0], &o.modelFlags, &o.reportFlags, p, parity.Replay, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.model, "model", "m", "", "the model (`name` or folder), if it is not the one that the run names")
	f.BoolVar(&o.free, "free", false, "make only the reading from the start")
	f.BoolVar(&o.isolated, "isolated", false, "make only the readings of modules by themselves")
	o.reportFlags.add(cmd)
	o.weightFlags.add(f, true)
	o.addPlace(f)
	return cmd
}

func newParityDiffCommand() *cobra.Command {
	o := &reportFlags{}
	cmd := &cobra.Command{
		Use:   "diff RUN REFERENCE",
		Short: "Compare the tensors of two runs",
		Long: `Diff compares the tensors that two folders of runs both have, name by name. The second
one counts as the reference. Nothing is computed again, so errors add up from tensor to
tensor: a module may differ only because of one before it, which gomflux parity run can
tell and a diff cannot.

The verdict names the first tensor that differs, in the order in which they were made.
That is in traces/taps.jsonl of runs that gomflux generate --debug-save recorded, of the
first folder or else of the second. Tensors that neither has there come last, by stage,
depth and name.
` + parityStatus,
		Example: `  gomflux parity diff logs/runs/latest/gomflux logs/runs/latest/reference`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageErrorf("give two folders of runs")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := checkRun(name); err != nil {
					return err
				}
			}
			table, err := o.table()
			if err != nil {
				return err
			}
			if _, err := mlx.Open(); err != nil {
				return coded(exitLibrary, err)
			}
			r, err := parity.DiffRuns(cmd.Context(), args[0], args[1], table)
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().SortFlags = false
	o.add(cmd)
	return cmd
}

func newParityImageCommand() *cobra.Command {
	var asJSON bool
	most := count("number")
	cmd := &cobra.Command{
		Use:   "image PICTURE REFERENCE",
		Short: "Compare two pictures",
		Long: `Image compares red, green and blue of two pictures of one size, on a scale from 0 to
255; transparency is laid over white.

  max     largest absolute difference
  mean    mean absolute difference
  psnr    peak signal-to-noise ratio in dB, inf for equal pictures
  ssim    structural similarity, 1 for equal pictures: the mean over the three of
          the index with a Gaussian window of 11x11

They must be equal for exit code 0, or differ by no more than --max says. With --json
it prints one object: max, mean, psnr (null for equal pictures), ssim, width, height.
` + parityStatus,
		Example: `  gomflux parity image ours.png diffusers.png --max 1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageErrorf("give two pictures")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := picture.ReadFile(args[0])
			if err != nil {
				return coded(exitUsage, err)
			}
			b, err := picture.ReadFile(args[1])
			if err != nil {
				return coded(exitUsage, err)
			}
			d, err := parity.CompareImages(a.Image, b.Image)
			if err != nil {
				return coded(exitUsage, err)
			}
			stdout := cmd.OutOrStdout()
			if asJSON {
				var psnr *float64
				if !math.IsInf(d.PSNR, 0) {
					psnr = &d.PSNR
				}
				err = writeJSON(stdout, struct {
					Max    int      `json:"max"`
					Mean   float64  `json:"mean"`
					PSNR   *float64 `json:"psnr"`
					SSIM   float64  `json:"ssim"`
					Width  int      `json:"width"`
					Height int      `json:"height"`
				}{d.Max, d.Mean, psnr, d.SSIM, a.Image.Rect.Dx(), a.Image.Rect.Dy()})
			} else {
				_, err = fmt.Fprintf(stdout, "max   %d\nmean  %.4f\npsnr  %.2f dB\nssim  %.6f\n", d.Max, d.Mean, d.PSNR, d.SSIM)
			}
			if err == nil && d.Max > most.orZero() {
				err = errors.New("the pictures differ")
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&most, "max", "how much a value may differ (default: 0)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}
