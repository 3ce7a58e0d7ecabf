package page_test

import (
	"context"
	"errors"
	"fmt"
	"image"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/engine"
)

// A writer is a language model that writes slowly. It fails for a text with "broken", at the end for one with "loop", and
// does not end one with "endless".
type writer struct{}

func (m *model) openLanguage(context.Context, string, *gomflux.LanguageOptions) (engine.LanguageModel, error) {
	return writer{}, nil
}

func (writer) write(ctx context.Context, about, text string, o *gomflux.LanguageOptions) error {
	if strings.Contains(about, "broken") {
		return errors.New("the language model is broken")
	}
	for i, word := range strings.SplitAfter(text, " ") {
		for first := true; first || i == 1 && strings.Contains(about, "endless"); first = false {
			select {
			case <-time.After(60 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		o.Text(word, false)
	}
	if strings.Contains(about, "loop") {
		return errors.New("the language model repeats one token endlessly")
	}
	return nil
}

func (w writer) Enhance(ctx context.Context, model, prompt string, references []image.Image, o *gomflux.LanguageOptions,
) (*gomflux.Enhanced, error) {
	text := fmt.Sprintf("a better %s for %s", prompt, model)
	if len(references) > 0 {
		text += fmt.Sprintf(" with %d", references[0].Bounds().Dx())
	}
	for _, b := range o.Boxes {
		text += fmt.Sprintf(", %s at %v%v%s", b.Desc, b.BBox, b.Target, b.From)
	}
	if err := w.write(ctx, prompt, text, o); err != nil {
		return nil, err
	}
	return &gomflux.Enhanced{Prompt: text, Original: prompt, Whole: true}, nil
}

func (w writer) Chat(ctx context.Context, messages []gomflux.Message, o *gomflux.LanguageOptions) (*gomflux.Answer, error) {
	parts := messages[0].Parts
	text := fmt.Sprintf("%d pixels: %.13s", parts[0].Image.Bounds().Dx(), parts[1].Text)
	if err := w.write(ctx, parts[1].Text, text, o); err != nil {
		return nil, err
	}
	return &gomflux.Answer{Text: text, Whole: true}, nil
}

func (writer) Close() error { return nil }

// TestEnhance lets a language model rewrite the prompt, which can be edited, stopped and taken back.
func TestEnhance(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	value := `document.getElementById("prompt").value`
	b.wait(`!document.getElementById("enhance").hidden && document.getElementById("as-typed").hidden`)
	b.run(chromedp.Click("#enhance"))
	b.wait(`!document.getElementById("error").hidden && document.getElementById("error").textContent.includes("nothing to rewrite")`)
	b.run(chromedp.SendKeys("#prompt", "cat <lora:owner/style:1>"), chromedp.Click("#enhance"))
	b.said("one has rewritten the prompt, which you can edit now.") // shapes cannot
	if got := b.text(value); got != "a better cat for shapes <lora:owner/style:1>" {
		t.Errorf("prompt %q", got)
	}
	b.run(chromedp.SendKeys("#prompt", kb.End+"!"), chromedp.Click("#generate"))
	b.pictures(1)
	if o := b.model.last(); o.Prompt != "a better cat for shapes !" ||
		o.OriginalPrompt != "cat <lora:owner/style:1>" || o.EnhancedBy != "one" {
		t.Errorf("options %+v", o)
	}
	b.run(chromedp.Click("#as-typed"))
	b.said("The prompt is as you typed it.")
	b.wait(value + ` === "cat <lora:owner/style:1>" && document.getElementById("as-typed").hidden`)
	b.run(chromedp.Click("#gallery .use")) // which has both prompts
	b.wait(`!document.getElementById("as-typed").hidden`)

	b.run(chromedp.Focus("#prompt"), chromedp.Evaluate[chromedp.Void](`document.getElementById("prompt").select()`))
	b.run(chromedp.KeyEvent(kb.Backspace), chromedp.SendKeys("#prompt", "endless")) // another prompt
	b.wait(`document.getElementById("as-typed").hidden`)
	b.run(chromedp.Click("#enhance"))
	b.wait(value + ` === "a " && document.querySelector("#jobs .state")?.textContent.startsWith("Writing")`)
	b.wait(`document.getElementById("prompt").readOnly`)
	b.run(chromedp.Click("#generate"))
	b.wait(`document.getElementById("error").textContent.includes("is being rewritten")`)
	b.run(chromedp.Click("#enhance")) // stops it
	b.said("The prompt is as you typed it.")
	b.wait(value + ` === "endless" && !document.getElementById("prompt").readOnly && !document.querySelector(".job")`)
	b.run(b.emptied("prompt"), chromedp.SendKeys("#prompt", "broken"), chromedp.Click("#enhance"))
	b.wait(`document.getElementById("error").textContent.includes("the language model is broken")`)
	b.wait(value + ` === "broken" && !document.getElementById("prompt").readOnly`)
	b.said("")
	b.run(b.emptied("prompt"), chromedp.SendKeys("#prompt", "loop"), chromedp.Click("#enhance"))
	b.wait(`document.getElementById("error").textContent === "the language model repeats one token endlessly"`)
	b.wait(value + ` === "loop" && !document.getElementById("prompt").readOnly && !document.querySelector(".job")` +
		` && document.getElementById("enhance").textContent === "Enhance" && document.getElementById("as-typed").hidden`)
	b.run(chromedp.SetValue("#model", "several"), changed("#model"), b.emptied("prompt"), chromedp.SendKeys("#prompt", "cat"))
	b.drop("#references", b.file("two.png", nil))
	b.wait(`document.querySelector("#references .chosen img")`)
	b.run(chromedp.Click("#enhance"))
	b.wait(value + `.startsWith("a better cat for several with ")`)
}

// TestBoxes draws boxes, which the language model writes into the prompt.
func TestBoxes(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	value := `document.getElementById("prompt").value`
	b.wait(`!document.getElementById("enhance").hidden && document.getElementById("boxes").hidden`)
	b.run(chromedp.SetValue("#model", "several"), changed("#model"))
	b.wait(`!document.getElementById("boxes").hidden`)
	b.run(chromedp.Click("#add-box"), chromedp.SendKeys("#boxes-list input", "a hat"))
	var left, top, width, height float64
	place := b.text(`(() => { document.getElementById("boxes-frame").scrollIntoView({ block: "center" });
		const r = document.getElementById("boxes-frame").getBoundingClientRect();
		return [r.left, r.top, r.width, r.height].join(" "); })()`)
	if _, err := fmt.Sscan(place, &left, &top, &width, &height); err != nil {
		t.Fatal(place, err)
	}
	b.drag([2]float64{left + width/2, top + height/4}, [2]float64{left + width, top + 3*height/4})
	b.wait(`document.querySelectorAll("#boxes-list li").length === 2 && document.querySelectorAll("#boxes-frame div").length === 2`)
	b.run(chromedp.Click("#boxes-list button")) // the first one
	b.run(chromedp.SendKeys("#boxes-list input", "a cat"), chromedp.SendKeys("#prompt", "a room"), chromedp.Click("#enhance"))
	b.said("several has rewritten the prompt, which you can edit now.")
	got := regexp.MustCompile(`at \[([0-9.]+) ([0-9.]+) ([0-9.]+) ([0-9.]+)\]\[\]$`).FindStringSubmatch(b.text(value))
	if got == nil {
		t.Fatalf("prompt %q", b.text(value))
	}
	for i, want := range []float64{0.25, 0.5, 0.75, 1} {
		if v, err := strconv.ParseFloat(got[i+1], 64); err != nil || math.Abs(v-want) > 0.02 {
			t.Errorf("box %v: expected %v at %d", got[1:], want, i)
		}
	}
}

// TestDescribe describes images of the form and of the gallery, and uses the answer as the prompt.
func TestDescribe(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("first")
	answer := `document.getElementById("description").value`
	b.run(chromedp.Click("#open-describe"), chromedp.WaitVisible("#describe"), chromedp.Click("#describe-start"))
	b.wait(`document.getElementById("describe-error").textContent === "Choose an image first."`)
	b.run(chromedp.Click("#describe-close"), chromedp.Click(".picture .full"))
	b.viewed("first")
	b.run(chromedp.Click("#view-describe"), chromedp.WaitVisible("#describe"))
	b.wait(`document.querySelector("#describe-image .chosen img")?.naturalWidth === 64`)
	b.run(chromedp.Click("#describe-start"))
	b.wait(answer + ` === "64 pixels: Describe this" && document.getElementById("describe-state").textContent === "Done."`)
	b.run(chromedp.SendKeys("#describe-question", "endless why?"), chromedp.Click("#describe-start"))
	b.wait(answer + ` === "64 " && document.getElementById("describe-start").textContent === "Stop"`)
	b.run(chromedp.Click("#describe-start"))
	b.wait(answer + ` === "64 pixels: Describe this" && document.getElementById("describe-state").textContent === "Stopped."`)
	b.run(b.emptied("describe-question"), chromedp.SendKeys("#describe-question", "broken"), chromedp.Click("#describe-start"))
	b.wait(`document.getElementById("describe-error").textContent === "the language model is broken"`)
	b.run(b.emptied("describe-question"), chromedp.SendKeys("#describe-question", "loop"), chromedp.Click("#describe-start"))
	b.wait(`document.getElementById("describe-error").textContent === "the language model repeats one token endlessly"`)
	b.wait(answer + ` === "64 pixels: Describe this" && !document.getElementById("description").readOnly` +
		` && document.getElementById("describe-state").textContent === ""` +
		` && document.getElementById("describe-start").textContent === "Describe"`)
	b.run(chromedp.SendKeys("#description", kb.End+"!"), chromedp.Click("#describe-use"))
	b.wait(`document.getElementById("prompt").value === "64 pixels: Describe this!" && !document.getElementById("describe").open`)
}
