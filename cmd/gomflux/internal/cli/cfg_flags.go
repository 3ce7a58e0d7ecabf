package cli

import (
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/models/family"
)

// CFGFlags are the flags for what guidance has besides a scale, in diffusers' pipelines of some families.
type CFGFlags struct {
	TrueScale, Normalization, Truncation Optional[float64]
}

// NewCFGFlags returns flags that are not given.
func NewCFGFlags() CFGFlags {
	part := number("part", " above 0 and at most 1", func(v float64) bool { return v > 0 && v <= 1 })
	return CFGFlags{TrueScale: Scale("scale"), Normalization: Scale("factor"), Truncation: part}
}

// Add adds the flags to a set.
func (o *CFGFlags) Add(f *pflag.FlagSet) {
	bounded := family.NamesWith(family.HasBoundsCFG)
	f.Var(&o.TrueScale, "true-cfg-scale",
		"for "+family.NamesWith(family.HasTrueCFG)+", in addition to --guidance: classifier-free guidance with --negative-prompt, "+
			"above 1; steps take twice as long (default: 1)")
	f.Var(&o.Normalization, "cfg-normalization",
		"for "+bounded+": the largest norm of a guided prediction, relative to one without guidance (default: no limit; 1 is "+
			"diffusers' True)")
	f.Var(&o.Truncation, "cfg-truncation",
		"for "+bounded+": end guidance when this part of the noise is gone, above 0 (default: 1, which is never)")
}
