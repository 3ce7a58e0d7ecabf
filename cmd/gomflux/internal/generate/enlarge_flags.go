package generate

import (
	"cmp"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/models/catalog"
)

// enlargeFlags are the flags that enlarge generated images.
type enlargeFlags struct {
	upscale  cli.Optional[float64]
	upscaler string
	refine   cli.Optional[float64]
}

func newEnlargeFlags() enlargeFlags {
	return enlargeFlags{upscale: cli.Scale("scale"), refine: cli.Strength("strength")}
}

func (o *enlargeFlags) add(f *pflag.FlagSet) {
	f.Var(&o.upscale, "upscale", "enlarge the image so many times, as gomflux upscale does")
	f.Var((*cli.ModelName)(&o.upscaler), "upscaler", "network for --upscale (`name`), or lanczos (default: "+gomflux.DefaultUpscaler+")")
	f.Var(&o.refine, "refine", "generate the enlarged image again, with so much new: above 0 and below 1")
}

func (o *enlargeFlags) validate(given func(string) bool) error {
	switch {
	case !o.upscale.Given():
		return cli.Without("upscale", given, "upscaler", "refine")
	case o.upscaler == gomflux.Lanczos:
		return nil
	}
	_, err := catalog.FindUpscaler(cmp.Or(o.upscaler, gomflux.DefaultUpscaler))
	return cli.Coded(cli.ExitModel, err)
}

// options returns nil if images are not enlarged.
func (o *enlargeFlags) options() *gomflux.EnlargeOptions {
	if !o.upscale.Given() {
		return nil
	}
	e := &gomflux.EnlargeOptions{Upscaler: o.upscaler, UpscaleOptions: gomflux.UpscaleOptions{Scale: *o.upscale.Value}}
	if o.refine.Given() {
		e.Refine = &gomflux.RefineOptions{Strength: *o.refine.Value}
	}
	return e
}
