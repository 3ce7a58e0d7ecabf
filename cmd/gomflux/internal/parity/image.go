package parity

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/picture"
)

const parityImageHelp = `Image compares red, green and blue of two images of the same size, on a scale
from 0 to 255, and alpha too if one of them has transparent pixels.

  max     largest absolute difference
  mean    mean absolute difference
  psnr    peak signal-to-noise ratio in dB, inf for equal images
  ssim    structural similarity, 1 for equal images: the index with a Gaussian
          window of 11x11, averaged over the channels

The exit code is 0 if the images are equal, or differ by at most --max. With
--json it prints one object: max, mean, psnr (null for equal images), ssim,
width, height.
` + parityStatus

func newParityImageCommand() *cobra.Command {
	var o cli.OutputFlags
	most := cli.Count("number")
	cmd := &cobra.Command{
		Use:     "image IMAGE REFERENCE",
		Short:   "Compare two images",
		Long:    parityImageHelp,
		Example: `  gomflux parity image ours.png diffusers.png --max 1`,
		Args:    cli.Args(2, 2, "give two images", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := compareFiles(args[0], args[1])
			if err != nil {
				return cli.Coded(cli.ExitUsage, err)
			}
			if err := o.Out(cmd).Result(c); err != nil {
				return err
			}
			if c.Max > most.OrZero() {
				return errors.New("the images differ")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(&most, "max", "largest allowed difference of a value (default: 0)")
	o.AddJSON(f, "a JSON object")
	return cmd
}

// An imageComparison is what parity image prints.
type imageComparison struct{ report.ImageDifference }

func compareFiles(name, reference string) (c imageComparison, err error) {
	a, err := picture.ReadFile(name)
	if err != nil {
		return c, err
	}
	b, err := picture.ReadFile(reference)
	if err != nil {
		return c, err
	}
	c.ImageDifference, err = report.CompareImages(a.Pixels(), b.Pixels())
	return c, err
}

func (c imageComparison) Text(p *ui.Page) {
	p.Printf("max   %d\nmean  %.4f\npsnr  %.2f dB\nssim  %.6f\n", c.Max, c.Mean, c.PSNR, c.SSIM)
}
