package family

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
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

// A boxRow is a box in the table at the end of a prompt, with its keys in order.
type boxRow []boxField

type boxField struct {
	key   string
	value any // a text, or a box of 4 numbers, nil for none
}

func (r boxRow) get(key string) any {
	for _, f := range r {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

// with returns the row with another description.
func (r boxRow) with(desc string) boxRow {
	r = slices.Clone(r)
	r[len(r)-1].value = desc
	return r
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
		if err == nil && slices.ContainsFunc(layout.locked, func(o boxRow) bool { return o.get("id") == row.get("id") }) {
			err = fmt.Errorf("id %q: another box has it", row.get("id"))
		}
		if err != nil {
			return r, errs.Requestf("box %d: %w", i+1, err)
		}
		layout.locked = append(layout.locked, row)
	}
	return layout, nil
}

// row is boxes_to_canvas of diffusers.
func (b Box) row(index int) (boxRow, error) {
	id := b.ID
	if id == "" {
		id = fmt.Sprintf("obj_%d", index+1)
	}
	if !boxID.MatchString(id) {
		return nil, fmt.Errorf("id %q: expected letters, digits and _, of which the first is a letter", id)
	}
	for _, box := range [][]float64{b.BBox, b.Source, b.Target} {
		inside := !slices.ContainsFunc(box, func(v float64) bool { return !(v >= 0 && v <= 1) })
		if len(box) != 0 && !(len(box) == 4 && inside && box[0] < box[2] && box[1] < box[3]) {
			return nil, fmt.Errorf("%v: expected y_min, x_min, y_max and x_max, from 0 to 1", box)
		}
	}
	switch edited := len(b.Source)+len(b.Target) > 0 || b.From != ""; {
	case len(b.BBox) > 0 && !edited:
		return boxRow{{"id", id}, {"bbox", onGrid(b.BBox)}, {"desc", b.Desc}}, nil
	case len(b.BBox) > 0 || len(b.Source)+len(b.Target) == 0:
		return nil, fmt.Errorf("expected bbox, or src_bbox and tgt_bbox for an edit")
	}
	return boxRow{{"id", id}, {"from", b.From}, {"src_bbox", onGrid(b.Source)}, {"tgt_bbox", onGrid(b.Target)}, {"desc", b.Desc}}, nil
}

// onGrid returns a box on the grid, nil without one.
func onGrid(box []float64) any {
	if len(box) == 0 {
		return nil
	}
	out := make([]json.Number, 4)
	for i, v := range box {
		out[i] = json.Number(fmt.Sprint(int(math.RoundToEven(v * boxGrid))))
	}
	return out
}

// layoutRequest is format_layout_request of diffusers.
func (r *Rewriter) layoutRequest(prompt string) string {
	return "ORIGINAL PROMPT:\n" + strings.TrimSpace(prompt) + "\n\nLOCKED BOUNDING-BOX ANNOTATIONS ([y_min, x_min, y_max, x_max] " +
		"on a 0-1000 canvas, with (0, 0) at the top-left). This is an authoritative JSON list of dictionaries; preserve every " +
		"supplied identity, provenance value, null, and coordinate exactly:\n" + boxTable(r.locked)
}

// Place returns a rewritten prompt with the user's boxes as they were, and the language model's descriptions of
// them, as reconcile_boxes of diffusers: a row of the model's in nearly the same place is the user's, and rows that
// the model added follow. Without boxes it returns the text.
func (r *Rewriter) Place(text string) string {
	if len(r.locked) == 0 {
		return text
	}
	caption, rows := splitCaption(text)
	known := func(id any) bool {
		return slices.ContainsFunc(r.locked, func(l boxRow) bool { return l.get("id") == id })
	}
	for _, lock := range r.locked {
		if slices.ContainsFunc(rows, func(row map[string]any) bool { return row["id"] == lock.get("id") }) {
			continue
		}
		box, _ := firstBox(lock.get)
		for _, row := range rows {
			found, ok := firstBox(func(key string) any { return row[key] })
			old, isText := row["id"].(string)
			if !ok || !isText || known(old) || overlap(found, box) < 0.9 {
				continue
			}
			for _, other := range rows {
				if other["id"] == old {
					other["id"] = lock.get("id")
				}
			}
			caption = strings.ReplaceAll(caption, "<"+old+">", fmt.Sprintf("<%s>", lock.get("id")))
			break
		}
	}
	var out []boxRow
	for _, lock := range r.locked {
		for _, row := range rows {
			if desc, _ := row["desc"].(string); row["id"] == lock.get("id") && strings.TrimSpace(desc) != "" {
				lock = lock.with(strings.TrimSpace(desc))
			}
		}
		out = append(out, lock)
	}
	for _, row := range rows {
		added := addedRow(row, caption)
		if added != nil && !slices.ContainsFunc(out, func(o boxRow) bool { return o.get("id") == added.get("id") }) {
			out = append(out, added)
		}
	}
	return caption + " " + boxTable(out)
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

// gridBox returns a box of the language model's if it is one, on the grid: valid_canvas_box of diffusers.
func gridBox(v any) (box [4]float64, numbers []json.Number, ok bool) {
	switch list := v.(type) {
	case []json.Number:
		numbers = list
	case []any:
		for _, n := range list {
			number, isNumber := n.(json.Number)
			if !isNumber {
				return box, nil, false
			}
			numbers = append(numbers, number)
		}
	}
	if len(numbers) != 4 {
		return box, nil, false
	}
	for i, n := range numbers {
		v, err := n.Float64()
		if err != nil {
			return box, nil, false
		}
		box[i] = v
	}
	// a largest number of 1 means boxes from 0 to 1
	return box, numbers, box[0] >= 0 && box[1] >= 0 && box[2] > box[0] && box[3] > box[1] && box[2] <= boxGrid && box[3] <= boxGrid &&
		slices.Max(box[:]) > 1
}

// firstBox returns the box of a row where it is in the result, or else in its source.
func firstBox(get func(key string) any) (box [4]float64, ok bool) {
	for _, key := range []string{"bbox", "tgt_bbox", "src_bbox"} {
		v := get(key)
		if list, isList := v.([]any); v != nil && (!isList || len(list) > 0) {
			box, _, ok = gridBox(v)
			return box, ok
		}
	}
	return box, false
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

// addedRow returns a row that the language model added, if the caption cites it and it is whole: valid_added_row of
// diffusers.
func addedRow(row map[string]any, caption string) boxRow {
	id, _ := row["id"].(string)
	desc, _ := row["desc"].(string)
	if desc = strings.TrimSpace(desc); !boxID.MatchString(id) || !strings.Contains(caption, "<"+id+">") || desc == "" {
		return nil
	}
	if _, numbers, ok := gridBox(row["bbox"]); ok {
		return boxRow{{"id", id}, {"bbox", numbers}, {"desc", desc}}
	}
	from, _ := row["from"].(string)
	var boxes [2]any
	for i, key := range []string{"src_bbox", "tgt_bbox"} {
		if row[key] == nil {
			continue
		}
		_, numbers, ok := gridBox(row[key])
		if !ok {
			return nil
		}
		boxes[i] = numbers
	}
	source, target := boxes[0], boxes[1]
	if !boxOrigin.MatchString(from) || source == nil && target == nil || (from == "target") == (source != nil) {
		return nil
	}
	return boxRow{{"id", id}, {"from", from}, {"src_bbox", source}, {"tgt_bbox", target}, {"desc", desc}}
}

// boxTable is the table as Python's json.dumps writes it.
func boxTable(rows []boxRow) string {
	texts := make([]string, len(rows))
	for i, row := range rows {
		fields := make([]string, len(row))
		for j, f := range row {
			value := "null"
			switch v := f.value.(type) {
			case string:
				value = pythonText(v)
			case []json.Number:
				value = fmt.Sprintf("[%s, %s, %s, %s]", v[0], v[1], v[2], v[3])
			}
			fields[j] = pythonText(f.key) + ": " + value
		}
		texts[i] = "{" + strings.Join(fields, ", ") + "}"
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
