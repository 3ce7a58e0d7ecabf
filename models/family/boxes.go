package family

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
)

// A Box places an element that a prompt names in the image: boxes are y_min, x_min, y_max and x_max, from 0 to 1.
// The rewritten prompt cites it as <ID>.
type Box struct {
	ID   string    // a word; "" for obj_ and its number, from 1
	Desc string    // what it looks like; may be empty
	BBox []float64 // in an image from a prompt alone; edits have the following
	// From is the reference image that has the element, such as ref_image_0, or target for a new one.
	From string
	// Source is where it is there, nil for a new one, and Target where it is in the result, nil if it is removed.
	Source, Target []float64
}

// boxGrid is the size of the image that language models place boxes in.
const boxGrid = 1000

var boxID = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// A boxRow is a row of the table at the end of a prompt. Its boxes are on the grid, nil for none.
type boxRow struct {
	id, desc, from       string
	bbox, source, target []json.Number
}

// String returns the row as Python's json.dumps writes it.
func (r boxRow) String() string {
	box := func(b []json.Number) string {
		if b == nil {
			return "null"
		}
		return fmt.Sprintf("[%s, %s, %s, %s]", b[0], b[1], b[2], b[3])
	}
	if r.bbox != nil {
		return fmt.Sprintf(`{"id": %s, "bbox": %s, "desc": %s}`, pythonText(r.id), box(r.bbox), pythonText(r.desc))
	}
	return fmt.Sprintf(`{"id": %s, "from": %s, "src_bbox": %s, "tgt_bbox": %s, "desc": %s}`, pythonText(r.id), pythonText(r.from),
		box(r.source), box(r.target), pythonText(r.desc))
}

// A boxTable is the list at the end of a prompt.
type boxTable []boxRow

func (t boxTable) String() string {
	texts := make([]string, len(t))
	for i, row := range t {
		texts[i] = row.String()
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func (t boxTable) has(id string) bool {
	return slices.ContainsFunc(t, func(r boxRow) bool { return r.id == id })
}

// WithBoxes returns the rewriter for a prompt with boxes, which stay as they are.
func (r Rewriter) WithBoxes(boxes []Box) (Rewriter, error) {
	if len(boxes) == 0 {
		return r, nil
	}
	if r.Layout == nil {
		return r, errs.Requestf("boxes: prompts for this model cannot have any (FLUX.3's can)")
	}
	layout := *r.Layout
	for i, b := range boxes {
		row, err := b.row(i)
		if err == nil && layout.locked.has(row.id) {
			err = fmt.Errorf("id %q: another box has it", row.id)
		}
		if err != nil {
			return r, errs.Requestf("box %d: %w", i+1, err)
		}
		layout.locked = append(layout.locked, row)
	}
	return layout, nil
}

// row is boxes_to_canvas of diffusers.
func (b Box) row(index int) (r boxRow, err error) {
	if r = (boxRow{id: b.ID, desc: b.Desc, from: b.From}); r.id == "" {
		r.id = fmt.Sprintf("obj_%d", index+1)
	}
	if !boxID.MatchString(r.id) {
		return r, fmt.Errorf("id %q: expected letters, digits and _, of which the first is a letter", r.id)
	}
	edited := len(b.Source)+len(b.Target) > 0
	if (len(b.BBox) > 0) == edited || len(b.BBox) > 0 && b.From != "" {
		return r, errors.New("expected bbox, or src_bbox and tgt_bbox for an edit")
	}
	for i, to := range []*[]json.Number{&r.bbox, &r.source, &r.target} {
		box := [][]float64{b.BBox, b.Source, b.Target}[i]
		if len(box) == 0 {
			continue
		}
		outside := slices.ContainsFunc(box, func(v float64) bool { return !(v >= 0 && v <= 1) })
		if len(box) != 4 || outside || box[0] >= box[2] || box[1] >= box[3] {
			return r, fmt.Errorf("%v: expected y_min, x_min, y_max and x_max, from 0 to 1", box)
		}
		for _, v := range box {
			*to = append(*to, json.Number(strconv.Itoa(int(math.RoundToEven(v*boxGrid)))))
		}
	}
	return r, nil
}

// layoutRequest is format_layout_request of diffusers.
func (r *Rewriter) layoutRequest(prompt string) string {
	return "ORIGINAL PROMPT:\n" + strings.TrimSpace(prompt) + "\n\nLOCKED BOUNDING-BOX ANNOTATIONS ([y_min, x_min, y_max, x_max] " +
		"on a 0-1000 canvas, with (0, 0) at the top-left). This is an authoritative JSON list of dictionaries; preserve every " +
		"supplied identity, provenance value, null, and coordinate exactly:\n" + r.locked.String()
}

// Place returns a rewritten prompt with the user's boxes as they were, and the language model's descriptions of
// them, as reconcile_boxes of diffusers: a row of the model's in nearly the same place is the user's, and rows that
// the model added follow. Without boxes it returns the text.
func (r *Rewriter) Place(text string) string {
	if len(r.locked) == 0 {
		return text
	}
	caption, rows := splitCaption(text)
	for _, lock := range r.locked {
		if slices.ContainsFunc(rows, func(row map[string]any) bool { return row["id"] == lock.id }) {
			continue
		}
		place, _, _ := gridBox(lock.bbox, lock.target, lock.source)
		for _, row := range rows {
			found, _, ok := gridBox(row["bbox"], row["tgt_bbox"], row["src_bbox"])
			old, isText := row["id"].(string)
			if !ok || !isText || r.locked.has(old) || overlap(found, place) < 0.9 {
				continue
			}
			for _, other := range rows {
				if other["id"] == old {
					other["id"] = lock.id
				}
			}
			caption = strings.ReplaceAll(caption, "<"+old+">", "<"+lock.id+">")
			break
		}
	}
	out := slices.Clone(r.locked)
	for i := range out {
		for _, row := range rows {
			if desc, _ := row["desc"].(string); row["id"] == out[i].id && strings.TrimSpace(desc) != "" {
				out[i].desc = strings.TrimSpace(desc)
			}
		}
	}
	for _, row := range rows {
		if added, ok := addedRow(row, caption); ok && !out.has(added.id) {
			out = append(out, added)
		}
	}
	return caption + " " + out.String()
}

// splitCaption returns a text and the rows of the JSON list that ends it, if there is one: split_caption of diffusers.
func splitCaption(text string) (caption string, rows []map[string]any) {
	for i := len(text) - 1; i >= 0; i-- {
		if text[i] != '[' {
			continue
		}
		d := json.NewDecoder(strings.NewReader(text[i:]))
		d.UseNumber()
		var list []any
		if d.Decode(&list) != nil || strings.TrimSpace(text[i+int(d.InputOffset()):]) != "" {
			continue
		}
		for _, v := range list {
			if row, ok := v.(map[string]any); ok {
				rows = append(rows, row)
			}
		}
		return strings.TrimRight(text[:i], " \n\r\t"), rows
	}
	return strings.TrimSpace(text), nil
}

// gridBox returns the first of some boxes that is there, and reports whether it is one, on the grid: valid_canvas_box
// of diffusers.
func gridBox[T any](boxes ...T) (box [4]float64, numbers []json.Number, ok bool) {
	for _, b := range boxes {
		switch list := any(b).(type) {
		case []json.Number:
			numbers = list
		case []any:
			for _, v := range list {
				number, _ := v.(json.Number) // "" for another value
				numbers = append(numbers, number)
			}
		}
		if len(numbers) > 0 {
			break
		}
	}
	if len(numbers) != 4 {
		return box, nil, false
	}
	for i, n := range numbers {
		var err error
		if box[i], err = n.Float64(); err != nil {
			return box, nil, false
		}
	}
	// a largest number of 1 means boxes from 0 to 1
	return box, numbers, box[0] >= 0 && box[1] >= 0 && box[2] > box[0] && box[3] > box[1] && box[2] <= boxGrid && box[3] <= boxGrid &&
		slices.Max(box[:]) > 1
}

// overlap is the area of both boxes by that of either.
func overlap(a, b [4]float64) float64 {
	area := func(b [4]float64) float64 { return (b[2] - b[0]) * (b[3] - b[1]) }
	both := max(0, min(a[2], b[2])-max(a[0], b[0])) * max(0, min(a[3], b[3])-max(a[1], b[1]))
	if either := area(a) + area(b) - both; either > 0 {
		return both / either
	}
	return 0
}

var boxOrigin = regexp.MustCompile(`^(ref_image_\d+|target)$`)

// addedRow returns a row that the language model added, and reports whether the caption cites it and it is whole:
// valid_added_row of diffusers.
func addedRow(row map[string]any, caption string) (r boxRow, ok bool) {
	r.id, _ = row["id"].(string)
	r.desc, _ = row["desc"].(string)
	if r.desc = strings.TrimSpace(r.desc); !boxID.MatchString(r.id) || !strings.Contains(caption, "<"+r.id+">") || r.desc == "" {
		return r, false
	}
	if _, r.bbox, ok = gridBox(row["bbox"]); ok {
		return r, true
	}
	r.bbox = nil
	r.from, _ = row["from"].(string)
	for key, to := range map[string]*[]json.Number{"src_bbox": &r.source, "tgt_bbox": &r.target} {
		if row[key] == nil {
			continue
		}
		if _, *to, ok = gridBox(row[key]); !ok {
			return r, false
		}
	}
	return r, boxOrigin.MatchString(r.from) && (r.source != nil || r.target != nil) && (r.from == "target") == (r.source == nil)
}
