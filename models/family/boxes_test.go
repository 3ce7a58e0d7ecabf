package family_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/family"
)

// TestBoxes compares the requests with boxes, and what becomes of answers, with those of diffusers.
func TestBoxes(t *testing.T) {
	var golden struct {
		Scaffold string
		Cases    []struct {
			Boxes []struct {
				ID, Desc, From string
				BBox           []float64
				Source         []float64 `json:"src_bbox"`
				Target         []float64 `json:"tgt_bbox"`
			}
			Prompt, Request string
			Answers, Placed []string
		}
	}
	data, err := os.ReadFile("testdata/boxes.json")
	if err == nil {
		err = json.Unmarshal(data, &golden)
	}
	if err != nil || len(golden.Cases) < 4 {
		t.Fatal(err)
	}
	for _, c := range golden.Cases {
		var boxes []family.Box
		for _, b := range c.Boxes {
			boxes = append(boxes, family.Box{ID: b.ID, Desc: b.Desc, BBox: b.BBox, From: b.From, Source: b.Source, Target: b.Target})
		}
		r, err := family.RewriterFor("Flux3ModularPipeline").WithBoxes(boxes)
		if err != nil {
			t.Fatal(err)
		}
		if found := r.Request(c.Prompt, false); found != c.Request {
			t.Errorf("request %q, expected %q", found, c.Request)
		}
		edit := strings.Replace(golden.Scaffold, "{instruction}", c.Request, 1)
		if found := r.Request(c.Prompt, true); found != edit {
			t.Errorf("edit %q, expected %q", found, edit)
		}
		for i, answer := range c.Answers {
			if found := r.Place(answer); found != c.Placed[i] {
				t.Errorf("%q became\n%q, expected\n%q", answer, found, c.Placed[i])
			}
		}
	}
}

// TestBoxesRefused expects errors for boxes that are no boxes, and for models whose prompts cannot have any.
func TestBoxesRefused(t *testing.T) {
	whole := []float64{0, 0, 1, 1}
	for want, boxes := range map[string][]family.Box{
		`box 1: id "a b": expected letters`:                {{ID: "a b", BBox: whole}},
		`box 2: id "x": another box has it`:                {{ID: "x", BBox: whole}, {ID: "x", BBox: whole}},
		"box 1: [0 0 1]: expected y_min":                   {{BBox: whole[:3]}},
		"box 1: [0 0 1 2]: expected y_min":                 {{BBox: []float64{0, 0, 1, 2}}},
		"box 1: [0.5 0 0.5 1]: expected y_min":             {{BBox: []float64{0.5, 0, 0.5, 1}}},
		"box 1: expected bbox, or src_bbox and tgt_bbox":   {{}},
		"box 2: expected bbox, or src_bbox and tgt_bbox f": {{BBox: whole}, {BBox: whole, Target: whole}},
	} {
		if _, err := family.RewriterFor("Flux3ModularPipeline").WithBoxes(boxes); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("found %v, expected %s", err, want)
		}
	}
	_, err := family.RewriterFor("FluxPipeline").WithBoxes([]family.Box{{BBox: whole}})
	if err == nil || !strings.Contains(err.Error(), "FLUX.3") {
		t.Errorf("FLUX.1: %v", err)
	}
	layout, err := family.RewriterFor("Flux3DistilledModularPipeline").WithBoxes([]family.Box{{BBox: whole}})
	if err != nil || !strings.HasSuffix(layout.System(false), "Output only the caption and the table.") ||
		!strings.HasSuffix(layout.System(true), "Output only the paragraph and the table.") {
		t.Errorf("system prompts %q, %q, %v", layout.System(false), layout.System(true), err)
	}
}
