package native

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve/engine"
)

// TestTexts checks what the engine is asked for, and that events and jobs have the text.
func TestTexts(t *testing.T) {
	s := serve(t, nil)
	img := encoded(t, 16, 8)
	body := `{"prompt":"a cat","seed":7,"count":2,"enhance":{"model":"other","max_tokens":99}}`
	s.validate(map[string]any{"$ref": "#/components/schemas/JobRequest"}, []byte(body))
	s.call("POST", "/api/v1/jobs", body, 202, nil)
	want := &gomflux.LanguageOptions{Model: "other", MaxTokens: 99, Seed: 7}
	if _, r := s.engine.last(); len(r.Seeds) != 2 || r.Options.Prompt != "a cat" || !reflect.DeepEqual(r.Language, want) {
		t.Errorf("request %+v", r)
	}
	s.call("POST", "/api/v1/enhance", `{"prompt":"a <lora:style:1> cat","seed":7,"references":[{"data":"`+img+`"}]}`, 202, nil)
	_, r := s.engine.last()
	if r.Seeds != nil || r.Options.Prompt != "a cat" || len(r.Options.References) != 1 || r.Language.Seed != 7 || r.Messages != nil {
		t.Errorf("request %+v", r)
	}
	var j jsonJob
	h := s.call("POST", "/api/v1/describe", `{"image":{"data":"`+img+`"},"seed":"8"}`, 202, &j)
	job, r := s.engine.last()
	parts := r.Messages[0].Parts
	if r.Seeds != nil || r.Options.Image != nil || parts[0].Image.Bounds().Dx() != 16 || parts[1].Text != family.Describe ||
		r.Language.Seed != 8 || j.Images != 0 || h.Get("Location") != "/api/v1/jobs/"+j.ID {
		t.Errorf("request %+v, job %+v", r, j)
	}
	s.call("POST", "/api/v1/describe", `{"image":{"data":"`+img+`"},"prompt":"why?"}`, 202, nil)
	if _, r := s.engine.last(); r.Messages[0].Parts[1].Text != "why?" {
		t.Errorf("messages %+v", r.Messages)
	}

	job.happens(engine.Event{Kind: engine.EventText, Text: "hm", Thinking: true})
	job.happens(engine.Event{Kind: engine.EventText, Text: "a cat"})
	job.mu.Lock()
	job.status.Answer = &gomflux.Answer{Text: "a cat", Model: "shapes", PromptTokens: 9, Tokens: 3, Whole: true}
	job.mu.Unlock()
	job.happens(engine.Event{Kind: engine.EventWritten})
	job.end(engine.Done, nil)
	events := s.follow(j.ID, "", func(e sse) bool { return e.kind == "done" })
	if e := events[1].data; events[1].kind != "text" || e.Text != "hm" || !e.Thinking {
		t.Errorf("event %+v", e)
	}
	answer := gomflux.Answer{Text: "a cat", Model: "shapes", PromptTokens: 9, Tokens: 3, Whole: true}
	if e := events[3].data; events[3].kind != "written" || e.Answer == nil || *e.Answer != answer {
		t.Errorf("event %+v", e)
	}
	s.call("DELETE", "/api/v1/jobs/job0/enhance", "", 202, nil)
	if events := s.follow("job0", "", func(e sse) bool { return e.kind == "written" }); len(events) != 2 {
		t.Errorf("events %+v", events)
	}

	s.call("POST", "/api/v1/jobs", `{"prompt":"better","original_prompt":"a cat","enhanced_by":"shapes"}`, 202, nil)
	if _, r := s.engine.last(); r.Options.OriginalPrompt != "a cat" || r.Options.EnhancedBy != "shapes" || r.Language != nil {
		t.Errorf("options %+v", r.Options)
	}
	s.call("POST", "/api/v1/describe", `{"prompt":"why?"}`, 400, nil)
	s.call("POST", "/api/v1/jobs", `{"enhance":{"max_tokens":9000}}`, 400, nil)
	box := `{"id":"hat_1","desc":"a red hat","bbox":[0.25,0,0.5,1]}`
	s.call("POST", "/api/v1/enhance", `{"prompt":"a cat","height":64,"width":96,"enhance":{"boxes":[`+box+`]}}`, 202, nil)
	boxes := []gomflux.Box{{ID: "hat_1", Desc: "a red hat", BBox: []float64{0.25, 0, 0.5, 1}}}
	if _, r := s.engine.last(); !reflect.DeepEqual(r.Language.Boxes, boxes) || r.Language.Height != 64 || r.Language.Width != 96 {
		t.Errorf("options %+v", r.Language)
	}
	s.call("POST", "/api/v1/enhance", `{"enhance":{"boxes":[`+strings.Repeat(box+",", 64)+box+`]}}`, 400, nil)
	s.call("POST", "/api/v1/enhance", `{"enhance":{"boxes":[{"box":[]}]}}`, 400, nil)
	s.call("POST", "/api/v1/jobs", `{"enhance":true}`, 400, nil)
	s.call("DELETE", "/api/v1/jobs/none/enhance", "", 404, nil)
	for code, err := range map[string]error{
		"failed":      errors.New("the language model repeats one token endlessly"),
		"not_found":   errs.NotFound(errors.New("model x: the chat template leaves out the text of the last message")),
		"bad_request": errs.Requestf("the chat template refuses the conversation: no system"),
	} {
		for path, body := range map[string]string{
			"jobs": `{"prompt":"a","enhance":{}}`, "enhance": `{"prompt":"a"}`, "describe": `{"image":{"data":"` + img + `"}}`,
		} {
			s.call("POST", "/api/v1/"+path, body, 202, &j)
			job, _ := s.engine.last()
			job.end(engine.Failed, err)
			events := s.follow(j.ID, "", func(e sse) bool { return e.kind == "failed" })
			if e := events[len(events)-1].data.Error; e == nil || e.Code != code || e.Message != err.Error() {
				t.Errorf("%s, %v: %+v", path, err, e)
			}
		}
	}
}
