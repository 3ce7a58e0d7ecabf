package picture

import (
	"fmt"
	"strconv"
)

// A GuidanceUnit is how a guidance scale counts. "" stands for the unit of the model that it is used with.
type GuidanceUnit string

// The units of guidance scales.
const (
	// CFGScale is the unit of most programs and pipelines: 1 is without classifier-free guidance.
	CFGScale GuidanceUnit = "cfg"
	// CFGScaleMinusOne is that of pipelines in which 0 is without it.
	CFGScaleMinusOne GuidanceUnit = "cfg-1"
	// DistilledCFGScale is the unit of models that take the scale as an input of the transformer, without
	// classifier-free guidance.
	DistilledCFGScale GuidanceUnit = "distilled"
)

// Convert converts a guidance scale to another unit. ok is false if there is no such value: distilled
// scales have no counterpart in other units, and CFG scale 1 means that a distilled scale is not recorded. Other CFG
// scales are taken for distilled ones, since programs without a distilled scale write it there.
func (u GuidanceUnit) Convert(scale float64, to GuidanceUnit) (converted float64, ok bool) {
	if u == to || u == "" || to == "" {
		return scale, true
	}
	switch u {
	case CFGScale:
	case CFGScaleMinusOne:
		scale = rounded(scale + 1)
	default:
		return 0, false
	}
	switch to {
	case CFGScaleMinusOne:
		return rounded(max(0, scale-1)), true
	case DistilledCFGScale:
		return scale, scale != 1
	}
	return scale, to == CFGScale // not one of a later version
}

// rounded drops the digits in which 4.2 - 1 differs from 3.2.
func rounded(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'f', 12, 64), 64)
	return x
}

// guidance returns the guidance scale as Forge writes it.
func (s *Settings) guidance() string {
	write := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	cfg, ok := s.GuidanceUnit.Convert(s.Guidance, CFGScale)
	switch {
	case ok:
		return ", CFG scale: " + write(cfg)
	case s.TrueCFGScale > 1:
		return fmt.Sprintf(", CFG scale: %s, Distilled CFG Scale: %s", write(s.TrueCFGScale), write(s.Guidance))
	case s.Guidance == 0: // the model has no guidance
		return ", CFG scale: 1"
	}
	return fmt.Sprintf(", CFG scale: 1, Distilled CFG Scale: %s", write(s.Guidance))
}
