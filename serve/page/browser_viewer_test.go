package page_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/gallery"
)

// show opens a page whose gallery has images with prompts, the last of them the newest. Their seeds
// count from 1.
func (b *browser) show(prompts ...string) {
	b.Helper()
	for i, prompt := range prompts {
		b.made("shapes", prompt, uint64(i+1))
	}
	b.run(chromedp.Navigate(b.url))
	b.wait(`document.getElementById("model").value !== ""`)
	b.wait(fmt.Sprintf(`document.querySelectorAll(".picture").length >= %d`, len(prompts)))
}

// made stores an image in the server's gallery, and returns its name.
func (b *browser) made(model, prompt string, seed uint64) string {
	b.Helper()
	s := picture.Settings{Generator: "gomflux test", Model: model, Prompt: prompt, Seed: seed, Steps: 2, Height: 64, Width: 64}
	e, err := b.store.Add("", coloured(64, 64, 40*seed), s)
	if err != nil {
		b.Fatal(err)
	}
	return e.Name
}

// allow lets the page use the clipboard.
func (b *browser) allow(names ...string) {
	b.Helper()
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		for _, name := range names {
			_, err := cdp.Call(ctx, target, cdpbrowser.SetPermission, cdpbrowser.SetPermissionParams{
				Permission: &cdpbrowser.PermissionDescriptor{Name: name}, Setting: cdpbrowser.PermissionSettingGranted, Origin: b.url,
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// viewed waits until the viewer shows the image with a prompt.
func (b *browser) viewed(prompt string) {
	b.Helper()
	b.wait(fmt.Sprintf(`document.getElementById("viewer").open && document.getElementById("view-prompt").textContent === %q`, prompt))
}

func (b *browser) viewSaid(text string) {
	b.Helper()
	b.wait(fmt.Sprintf(`document.getElementById("view-state").textContent === %q`, text))
}

// TestLayers splits an image into layers, which the viewer shows as links to their files. In the gallery they are
// images of their own.
func TestLayers(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	hidden := `document.getElementById("layers-row").hidden`
	b.wait(hidden)
	b.run(chromedp.SetValue("#model", "layers"), changed("#model"))
	b.wait("!" + hidden + ` && document.getElementById("layer-count").placeholder === "4"`)
	b.drop("#references", b.file("one.png", nil))
	b.wait(`document.querySelectorAll("#references .chosen img").length === 1`)
	b.run(chromedp.SendKeys("#layer-count", "3"), chromedp.SendKeys("#prompt", "a poster"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".picture .full")`)
	b.run(chromedp.Click(".picture .full"))
	b.viewed("a poster")
	b.wait(`document.querySelectorAll("#view-layers img").length === 3 &&
		[...document.querySelectorAll("#view-layers img")].every(img => img.naturalWidth === 64)`)
	second := evaluate[string](b, `(async () => {
		const link = document.querySelectorAll("#view-layers a")[1];
		const image = await createImageBitmap(await (await fetch(link.href)).blob());
		const context = new OffscreenCanvas(64, 64).getContext("2d");
		context.drawImage(image, 0, 0);
		return [link.textContent, ...context.getImageData(1, 1, 1, 1).data, context.getImageData(0, 0, 1, 1).data[3]].join();
	})()`)
	all := evaluate[string](b, `(async () => (await (await fetch(document.getElementById("view-ora").href)).text()).slice(30, 54))()`)
	if n := b.model.last().Layers; second != "Layer 2,1,0,0,255,0" || all != "mimetypeimage/openraster" || n != 3 {
		t.Errorf("found %q, and %q with all of %d layers", second, all, n)
	}
	b.run(chromedp.Navigate(b.url))
	b.wait(`document.querySelectorAll(".picture").length === 4`)
}

// TestEnlarge enlarges an image, which is downloaded.
func TestEnlarge(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("first")
	b.run(chromedp.Click(".picture .full"))
	b.viewed("first")
	b.run(chromedp.Evaluate[chromedp.Void](`let file;
	URL.createObjectURL = blob => { file = blob; return "about:blank"; };
	HTMLAnchorElement.prototype.click = async function() {
		const image = await createImageBitmap(file);
		window.large = this.download.slice(-7) + " " + image.width + "x" + image.height;
	}`))
	b.run(chromedp.Click("#view-enlarge"))
	b.viewSaid("The enlarged image is downloaded.")
	b.wait(`window.large === "_2x.png 128x128"`)
}

// TestViewer looks at images with keys, a mouse, and its wheel.
func TestViewer(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("first", "second", "third")
	b.run(chromedp.Click(".picture .full"))
	b.viewed("third")
	b.wait(`document.activeElement.id === "view" && document.getElementById("view-image").naturalWidth === 64`)
	got := b.text(`document.getElementById("view-settings").textContent`)
	if !strings.Contains(got, "seed3") || !strings.Contains(got, "modelshapes") {
		t.Errorf("settings %q", got)
	}
	for _, c := range []struct{ key, prompt, said string }{
		{kb.ArrowLeft, "third", "This is the first image."}, {kb.ArrowRight, "second", ""}, {kb.ArrowRight, "first", ""},
		{kb.ArrowRight, "first", "This is the last image."}, {kb.ArrowLeft, "second", ""},
	} {
		b.run(chromedp.KeyEvent(c.key))
		b.viewed(c.prompt)
		b.viewSaid(c.said)
	}
	if got = b.text(`document.getElementById("viewer-title").textContent`); got != "Image 2 of 3" {
		t.Errorf("title %q", got)
	}
	zoom := func(want string) {
		t.Helper()
		b.wait(fmt.Sprintf(`document.getElementById("view-fit").textContent === %q`, want))
	}
	zoom("Fit")
	for _, c := range []struct{ key, zoom string }{{"+", "141 %"}, {"+", "200 %"}, {"-", "141 %"}, {"0", "Fit"}, {"-", "Fit"}} {
		b.run(chromedp.KeyEvent(c.key))
		zoom(c.zoom)
	}
	// what is below the mouse stays there
	box := evaluate[[]float64](b, `(r => [r.x, r.y, r.width, r.height])(document.getElementById("view").getBoundingClientRect())`)
	x, y := box[0]+box[2]*0.75, box[1]+box[3]*0.25
	shown := func() []float64 { // the place of the point in the image, from 0 to 1
		return evaluate[[]float64](b, fmt.Sprintf(`(r => [(%v - r.x) / r.width, (%v - r.y) / r.height])(
			document.getElementById("view-image").getBoundingClientRect())`, x, y))
	}
	before := shown()
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.DispatchMouseEvent, input.DispatchMouseEventParams{
			Type: input.DispatchMouseEventTypeMouseWheel, X: x, Y: y, DeltaX: 1, DeltaY: -100,
		})
		return err
	}))
	zoom("119 %")
	if after := shown(); max(after[0]-before[0], before[0]-after[0], after[1]-before[1], before[1]-after[1]) > 0.01 {
		t.Errorf("the point %v is at %v after zooming", before, after)
	}
	b.run(chromedp.KeyEvent("+"), chromedp.KeyEvent("+"))
	before = shown()
	b.drag([2]float64{x, y}, [2]float64{x - 50, y + 20})
	if after := shown(); after[0] <= before[0] || after[1] >= before[1] {
		t.Errorf("a drag moved the point %v to %v", before, after)
	}
	b.run(chromedp.KeyEvent(kb.Escape))
	b.wait(`!document.getElementById("viewer").open && document.activeElement === document.querySelector(".picture:nth-child(2) .full")`)
}

// drag presses the mouse at the first place, moves it over the others and lets it go at the last.
func (b *browser) drag(places ...[2]float64) {
	b.Helper()
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		last := places[len(places)-1]
		for i, at := range append(places, last) {
			kind := input.DispatchMouseEventTypeMouseMoved
			switch i {
			case 0:
				kind = input.DispatchMouseEventTypeMousePressed
			case len(places):
				kind = input.DispatchMouseEventTypeMouseReleased
			}
			_, err := cdp.Call(ctx, target, input.DispatchMouseEvent, input.DispatchMouseEventParams{
				Type: kind, X: at[0], Y: at[1], Button: input.MouseButtonLeft, ClickCount: 1,
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestViewerOnPhone swipes and pinches.
func TestViewerOnPhone(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("first", "second")
	b.run(phone(), chromedp.Click(".picture .full"))
	b.viewed("second")
	const begin, move = input.DispatchTouchEventTypeTouchStart, input.DispatchTouchEventTypeTouchMove
	const end = input.DispatchTouchEventTypeTouchEnd
	b.touch(begin, [2]float64{300, 250})
	b.touch(move, [2]float64{200, 250})
	b.touch(move, [2]float64{100, 255})
	b.touch(end)
	b.viewed("first")
	b.touch(begin, [2]float64{150, 250}, [2]float64{250, 250})
	b.touch(move, [2]float64{100, 250}, [2]float64{300, 250})
	b.touch(end)
	b.wait(`document.getElementById("view-fit").textContent === "200 %"`)
	b.viewed("first")
	if got := b.text(`["html", "#viewer"].map(s => document.querySelector(s)).map(e => e.scrollWidth - e.clientWidth)`); got != "0,0" {
		t.Errorf("page and viewer are %s pixels too wide for a phone", got)
	}
}

// TestViewerActions uses what the viewer's buttons do.
func TestViewerActions(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("old", "a cat, on a mat!")
	b.allow("clipboard-read", "clipboard-write")
	view := func(prompt string) {
		t.Helper()
		b.run(chromedp.Click(".picture .full"))
		b.viewed(prompt)
	}
	view("a cat, on a mat!")
	if got := b.text(`document.getElementById("view-download").download`); got != "a-cat-on-a-mat-2.png" {
		t.Errorf("the file is named %s", got)
	}
	b.run(chromedp.Click("#view-copy-prompt"))
	b.viewSaid("The prompt is copied.")
	if got := evaluate[string](b, `navigator.clipboard.readText()`); got != "a cat, on a mat!" {
		t.Errorf("copied %q", got)
	}
	b.run(chromedp.Click("#view-copy"))
	b.viewSaid("The image is copied.")
	size := `navigator.clipboard.read().then(([item]) => item.getType("image/png")).then(createImageBitmap).then(i => i.width)`
	if got := evaluate[int](b, size); got != 64 {
		t.Errorf("an image of %d pixels is copied", got)
	}
	b.run(chromedp.Click("#view-use"))
	b.field("seed", "2")
	b.wait(`!document.getElementById("viewer").open && document.activeElement.id === "prompt"`)

	view("a cat, on a mat!")
	b.run(chromedp.Click("#view-start"))
	b.wait(`!document.getElementById("viewer").open && document.querySelector("#start .chosen img")?.naturalWidth === 64`)
	b.run(chromedp.Click("#generate"))
	b.pictures(3) // with a start image of the gallery
	b.run(chromedp.Click("#start .chosen button"))

	// the newest is compared with its start image
	view("a cat, on a mat!")
	b.run(chromedp.Click("#view-sources button"))
	b.wait(`document.getElementById("view").classList.contains("pair") && document.getElementById("view-other").naturalWidth === 64`)
	if got := b.text(`document.getElementById("view-other").alt`); got != "Start image" {
		t.Errorf("compared with %q", got)
	}
	b.run(chromedp.Click("#view-single"))
	b.wait(`document.getElementById("view-second").hidden`)
	// another seed, with the same start image
	b.run(chromedp.Click("#view-vary"))
	b.pictures(4)
	if o := b.model.last(); o.Image == nil || *o.Seed == 2 || o.Prompt != "a cat, on a mat!" {
		t.Errorf("options %+v, seed %d", o, *o.Seed)
	}
	b.field("seed", "")
	// settings without a start image empty the box
	b.run(chromedp.Click(".picture:last-child .use"))
	b.field("prompt", "old")
	b.wait(`document.querySelector("#start .chosen img") === null`)

	view("a cat, on a mat!")
	b.run(chromedp.Click("#view-edit"))
	b.field("model", "one") // the first that takes reference images
	b.wait(`document.querySelector("#references .chosen img")?.naturalWidth === 64`)
	view("a cat, on a mat!")
	b.run(chromedp.Click("#view-inpaint"), chromedp.WaitVisible("#painter-mask"), chromedp.Click("#painter-cancel"))
	b.wait(`!document.getElementById("painter").open && document.querySelector("#start .chosen img")`)

	b.text(`window.confirm = () => true`)
	b.run(chromedp.Click(".picture:nth-child(3) .full"))
	b.run(chromedp.Click("#view-delete"))
	b.viewed("old")
	b.viewSaid("The image was deleted.")
	b.run(chromedp.Click("#view-delete"))
	b.viewed("a cat, on a mat!")
	b.pictures(2)
	b.run(chromedp.Click("#view-close"))
	b.wait(`!document.getElementById("viewer").open`)
}

// TestCompare compares two images that were selected.
func TestCompare(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("first", "second", "third")
	b.run(chromedp.Click(".picture:nth-child(3) .select"))
	b.wait(`document.getElementById("selection-count").textContent === "1 selected" && document.getElementById("compare").disabled`)
	b.run(chromedp.Click(".picture:nth-child(1) .select"), chromedp.Click("#compare"))
	b.viewed("third")
	sides := `["view-image", "view-other"].map(id => document.getElementById(id).getBoundingClientRect())`
	if !evaluate[bool](b, `(([a, b]) => a.right <= b.left && a.width === b.width && a.top === b.top)(`+sides+`)`) {
		t.Error("the images are not side by side")
	}
	b.run(chromedp.KeyEvent("+"))
	if !evaluate[bool](b, `(([a, b]) => a.width === b.width && a.width > 0)(`+sides+`)`) {
		t.Error("the images are not zoomed alike")
	}
	b.run(chromedp.KeyEvent("0"), chromedp.Click("#view-slide"))
	if !evaluate[bool](b, `(([a, b]) => a.left === b.left && a.width === b.width && a.top === b.top)(`+sides+`)`) {
		t.Error("the images are not above each other")
	}
	b.run(chromedp.Focus("#view-cut"), chromedp.KeyEvent(kb.Home))
	for range 5 {
		b.run(chromedp.KeyEvent(kb.ArrowRight))
	}
	b.wait(`getComputedStyle(document.getElementById("view-second")).clipPath === "inset(0px 0px 0px 5%)"`)
	b.viewed("third") // the arrows are those of the slider
	b.run(chromedp.KeyEvent(kb.Escape))
	b.wait(`!document.getElementById("viewer").open`)
}

// TestSearchAndFavourites searches, keeps favourites, and deletes several images.
func TestSearchAndFavourites(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	other := b.made("owner/Other", "a dog", 9)
	b.show("a red cat", "a dog")
	prompts := func(want ...string) {
		t.Helper()
		const shown = `[...document.querySelectorAll("#gallery > li > .prompt")].map(p => p.textContent).join()`
		b.wait(fmt.Sprintf(`%s === %q`, shown, strings.Join(want, ",")))
	}
	prompts("a dog", "a red cat", "a dog")
	b.run(chromedp.SendKeys("#search", "CAT red"))
	prompts("a red cat")
	// a new image that does not match stays out
	b.run(chromedp.SendKeys("#prompt", "a bird"), chromedp.Click("#generate"))
	b.wait(`document.getElementById("gallery-size").textContent.startsWith("4 images")`)
	prompts("a red cat")
	b.run(chromedp.SendKeys("#search", "x"))
	b.wait(`!document.getElementById("no-match").hidden`)
	b.run(chromedp.Evaluate[chromedp.Void](`document.getElementById("search").value = ""`), chromedp.SendKeys("#search-model", "other"))
	prompts("a dog")
	if got := b.text(`document.querySelector(".picture").dataset.name`); got != other {
		t.Errorf("the image of the model is %s", got)
	}
	b.run(chromedp.Click(".picture .favourite"))
	b.wait(`document.querySelector(".picture .favourite").ariaPressed === "true"`)
	b.run(chromedp.Reload()) // the server keeps it
	b.pictures(4)
	b.wait(`document.querySelector(".picture:last-child .favourite").ariaPressed === "true"`)
	b.run(chromedp.Click("#search-favourites"))
	prompts("a dog")
	b.run(chromedp.Click(".picture .full"))
	b.viewed("a dog")
	b.run(chromedp.Click("#view-favourite"))
	b.viewSaid("Removed from favourites.")
	b.run(chromedp.Click("#view-close"), chromedp.Click("#search-favourites"))
	b.pictures(4)
	b.wait(`!document.querySelector(".favourite[aria-pressed=true]")`)

	// several are deleted after a question
	b.text(`window.confirm = text => (window.asked = text, false)`)
	b.run(chromedp.Click(".picture:nth-child(2) .favourite"), chromedp.Click(".picture:nth-child(1) .select"))
	b.wait(`document.querySelector(".picture:nth-child(2) .favourite").ariaPressed === "true"`)
	b.run(chromedp.Click("#select-all"), chromedp.Click(".picture:nth-child(4) .select"), chromedp.Click("#delete-selected"))
	b.wait(`window.asked === "Delete 3 images, 1 of them favourites?"`)
	b.pictures(4)
	b.text(`window.confirm = () => true`)
	b.run(chromedp.Click("#delete-selected"))
	b.said("3 images were deleted.")
	b.pictures(1)
	b.wait(`document.getElementById("selection").hidden && document.getElementById("gallery-size").textContent.startsWith("1 image,")`)
	if p, err := b.store.List(t.Context(), "", "", 9, gallery.Query{}); err != nil || len(p.Entries) != 1 || p.Entries[0].Name != other {
		t.Errorf("the server has %d images (%v)", len(p.Entries), err)
	}
}

// TestDragFromGallery drags an image of the gallery onto the boxes for images.
func TestDragFromGallery(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.show("a cat")
	b.run(chromedp.SetValue("#model", "several"), changed("#model"), chromedp.EmulateViewport(1280, 2200))
	dragged := make(chan *input.DragData, 1)
	err := chromedp.Listen(b.ctx, func(event any) {
		if e, ok := event.(*input.EventDragIntercepted); ok {
			dragged <- e.Data
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.SetInterceptDrags, input.SetInterceptDragsParams{Enabled: true})
		return err
	}))
	middle := func(selector string) [2]float64 {
		at := evaluate[[]float64](b, fmt.Sprintf(
			`(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector(%q).getBoundingClientRect())`, selector))
		return [2]float64{at[0], at[1]}
	}
	for _, box := range []string{"#start", "#references"} {
		from, to := middle(".picture .full"), middle(box)
		b.drag(from, [2]float64{from[0] - 20, from[1]}, to)
		data := <-dragged
		b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			for _, kind := range []input.DispatchDragEventType{
				input.DispatchDragEventTypeDragEnter, input.DispatchDragEventTypeDragOver, input.DispatchDragEventTypeDrop,
			} {
				p := input.DispatchDragEventParams{Type: kind, X: to[0], Y: to[1], Data: data}
				if _, err := cdp.Call(ctx, target, input.DispatchDragEvent, p); err != nil {
					return err
				}
			}
			return nil
		}))
		b.wait(fmt.Sprintf(`document.querySelector("%s .chosen img")?.naturalWidth === 64`, box))
	}
	if got := b.text(`document.getElementById("prompt").value`); got != "" {
		t.Errorf("the drag filled in the prompt %q", got)
	}
}
