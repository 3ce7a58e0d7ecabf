// Package stepcache leaves out most of the transformer in steps whose prediction changes little,
// and uses results of an earlier step instead.
package stepcache

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MinSteps is the smallest number of steps for which a run may have a step cache. With fewer steps,
// neighbouring steps differ too much.
const MinSteps = 12

// FirstBlock is the rule of diffusers' FirstBlockCacheConfig, which is from ParaAttention: if the
// output of the first block, minus its input, differs from that of the last complete evaluation by
// at most the threshold (mean absolute difference, relative to the mean absolute value), the other
// blocks add what they added then.
const FirstBlock = "first-block"

// Easy is the rule of EasyCache (Zhou et al. 2025): it sees only the inputs and outputs of the
// transformer. The change of an output relative to that of its input is taken from the last two
// complete evaluations; while the relative changes that it predicts sum to less than the
// threshold, the output is the input with what the last complete evaluation added to it.
const Easy = "easy"

// Names lists the rules.
var Names = []string{FirstBlock, Easy}

// A Rule decides in which evaluations the transformer is left out.
type Rule struct {
	Name      string
	Threshold float64 // above 0 and below 1; the larger, the more is left out
}

// ParseRule parses the form of String.
func ParseRule(s string) (Rule, error) {
	name, text, ok := strings.Cut(s, ":")
	if !ok {
		return Rule{}, fmt.Errorf("expected a rule and its threshold (such as %s:0.1)", FirstBlock)
	}
	switch threshold, err := strconv.ParseFloat(text, 64); {
	case !slices.Contains(Names, name):
		return Rule{}, fmt.Errorf("unknown rule %q, expected one of %s", name, strings.Join(Names, ", "))
	case err != nil || !(threshold > 0 && threshold < 1):
		return Rule{}, fmt.Errorf("the threshold of %s must be a number above 0 and below 1", name)
	default:
		return Rule{name, threshold}, nil
	}
}

// String returns the name and the threshold with a colon between them.
func (r Rule) String() string { return fmt.Sprintf("%s:%g", r.Name, r.Threshold) }
