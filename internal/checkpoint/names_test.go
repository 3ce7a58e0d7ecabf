package checkpoint

import (
	"slices"
	"testing"
)

func TestCompareNames(t *testing.T) {
	want := []string{"a", "a.2", "a.2.b", "a.10", "a.10.b", "a.b", "a2", "b"}
	got := slices.Sorted(slices.Values(want))
	slices.SortFunc(got, CompareNames)
	if !slices.Equal(got, want) {
		t.Errorf("found %q, expected %q", got, want)
	}
}
