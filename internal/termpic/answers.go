package termpic

import (
	"image"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The queries. Every terminal answers the request for its primary attributes
// (DA1), so that answer marks the end of the others.
const (
	askAttributes = "\x1b[c"                                     // DA1
	askKitty      = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\" // one pixel, which is not shown
	askName       = "\x1b[>q"                                    // XTVERSION
	askColors     = "\x1b[?1;1;0S"                               // XTSMGRAPHICS: colour registers of sixels
	askSizes      = "\x1b[14t\x1b[16t"                           // XTWINOPS: text area and cell in pixels
)

// answers are a terminal's answers to the queries.
type answers struct {
	level  int  // DA1's first attribute: 62 and above is a VT200 and later
	sixel  bool // DA1's attribute 4
	kitty  bool
	name   string      // with the version
	colors int         // of sixels, 0 if unknown
	cell   image.Point // in pixels, zero if unknown
	area   image.Point // of all cells, in pixels, zero if unknown
}

func (a answers) answered() bool { return a.level != 0 }

// answer matches DA1's and XTWINOPS's answers, XTSMGRAPHICS's, XTVERSION's, and kitty's.
var answer = regexp.MustCompile(`\x1b(?:\[(\??(?:\d{0,9};)*\d{0,9})([cSt])|P>\|([^\x1b]*)\x1b\\|_Gi=31;(OK)\x1b\\)`)

// parse adds the answers in data, which may also contain typed input, garbage and
// incomplete answers. done reports whether the answer to DA1 is complete.
func (a *answers) parse(data []byte) (done bool) {
	for _, m := range answer.FindAllStringSubmatch(string(data), -1) {
		params, private := strings.CutPrefix(m[1], "?")
		var n []int
		for s := range strings.SplitSeq(params, ";") {
			v, _ := strconv.Atoi(s) // kitty leaves the last one empty
			n = append(n, v)
		}
		switch final := m[2]; {
		case m[3] != "":
			a.name = m[3]
		case m[4] != "":
			a.kitty = true
		case final == "c" && private && n[0] > 0:
			a.level, a.sixel, done = n[0], a.sixel || slices.Contains(n[1:], 4), true
		case final == "S" && private && len(n) == 3 && n[0] == 1 && n[1] == 0:
			a.colors = n[2]
		case final == "t" && !private && len(n) == 3 && n[0] == 4:
			a.area = image.Pt(n[2], n[1])
		case final == "t" && !private && len(n) == 3 && n[0] == 6:
			a.cell = image.Pt(n[2], n[1])
		}
	}
	return done
}
