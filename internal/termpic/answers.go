package termpic

import (
	"bytes"
	"image"
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

// parse adds the answers in data, which may also contain typed input, garbage and
// incomplete answers. done reports whether the answer to DA1 is complete.
func (a *answers) parse(data []byte) (done bool) {
	for {
		i := bytes.IndexByte(data, 0x1b)
		if i < 0 || i+1 >= len(data) {
			return done
		}
		kind := data[i+1]
		data = data[i+2:]
		switch kind {
		case '[':
			// parameter and intermediate bytes, and one that ends it (ECMA-48, 5.4)
			end := 0
			for end < len(data) && 0x20 <= data[end] && data[end] <= 0x3f {
				end++
			}
			if end == len(data) {
				return done
			}
			done = a.control(string(data[:end]), data[end]) || done
			data = data[end:]
		case 'P', '_':
			end := bytes.Index(data, []byte("\x1b\\"))
			if end < 0 {
				return done
			}
			text := string(data[:end])
			if name, ok := strings.CutPrefix(text, ">|"); ok && kind == 'P' {
				a.name = name
			}
			if kind == '_' && text == "Gi=31;OK" {
				a.kitty = true
			}
			data = data[end+2:]
		}
	}
}

// control processes a control sequence.
func (a *answers) control(params string, final byte) (attributes bool) {
	private := strings.HasPrefix(params, "?")
	var n []int
	for s := range strings.SplitSeq(strings.TrimPrefix(params, "?"), ";") {
		v, err := strconv.Atoi(s)
		if err != nil && s != "" || v < 0 { // kitty leaves the last one empty
			return false
		}
		n = append(n, v)
	}
	switch {
	case final == 'c' && private && n[0] > 0:
		a.level = n[0]
		for _, v := range n[1:] {
			a.sixel = a.sixel || v == 4
		}
		return true
	case final == 'S' && private && len(n) == 3 && n[0] == 1 && n[1] == 0:
		a.colors = n[2]
	case final == 't' && !private && len(n) == 3 && n[0] == 4:
		a.area = image.Pt(n[2], n[1])
	case final == 't' && !private && len(n) == 3 && n[0] == 6:
		a.cell = image.Pt(n[2], n[1])
	}
	return false
}
