package checkpoint

import (
	"cmp"
	"strconv"
	"strings"
)

// CompareNames compares names with their numbers in numerical order: layers.2
// comes before layers.10.
func CompareNames(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		order := strings.Compare(as[i], bs[i])
		if errX == nil && errY == nil {
			order = cmp.Or(cmp.Compare(x, y), order)
		}
		if order != 0 {
			return order
		}
	}
	return cmp.Compare(len(as), len(bs))
}
