package page_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux/picture"
)

// drop drags files into the browser, to the middle of an element.
func (b *browser) drop(selector string, files ...string) {
	b.Helper()
	b.run(chromedp.ScrollIntoView(selector))
	at := evaluate[[]float64](b, fmt.Sprintf(`(() => {
		const r = document.querySelector(%q).getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2];
	})()`, selector))
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		for _, kind := range []input.DispatchDragEventType{
			input.DispatchDragEventTypeDragEnter, input.DispatchDragEventTypeDragOver, input.DispatchDragEventTypeDrop,
		} {
			const copied = 1
			_, err := cdp.Call(ctx, target, input.DispatchDragEvent, input.DispatchDragEventParams{
				Type: kind, X: at[0], Y: at[1],
				Data: &input.DragData{Items: []*input.DragDataItem{}, Files: files, DragOperationsMask: copied},
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// file writes an image with settings, and returns its path.
func (b *browser) file(name string, s *picture.Settings) string {
	b.Helper()
	var file bytes.Buffer
	if err := picture.Encode(&file, picture.PNG, coloured(48, 32, uint64(len(name))), s); err != nil {
		b.Fatal(err)
	}
	return b.write(name, file.Bytes())
}

func (b *browser) write(name string, data []byte) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// withParameters inserts a text chunk as of AUTOMATIC1111's web UI before the end of a PNG.
func withParameters(file []byte, text string) []byte {
	body := "tEXtparameters\x00" + text
	chunk := binary.BigEndian.AppendUint32(nil, uint32(len(body)-4))
	chunk = append(chunk, body...)
	chunk = binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE([]byte(body)))
	const end = 12 // bytes of IEND
	at := len(file) - end
	return append(append(bytes.Clone(file[:at]), chunk...), file[at:]...)
}

// field waits until a field has a value.
func (b *browser) field(id, value string) {
	b.Helper()
	b.wait(fmt.Sprintf(`document.getElementById(%q).value === %q`, id, value))
}

// TestReadSettings reads the settings in files of several programs, and makes an image with them.
func TestReadSettings(t *testing.T) {
	b := open(t, nil)
	s := &picture.Settings{
		Generator: "gomflux test", Model: "shapes", Prompt: "from a file", Seed: 1<<64 - 1, Steps: 3, Guidance: 1.5, Height: 32, Width: 48,
		Scheduler: "linear", LoRAs: []picture.LoRA{{Path: "owner/style", Scale: 0.5}},
	}
	made := b.file("made.png", s)
	check := func() {
		t.Helper()
		b.said("Settings filled in.")
		b.field("prompt", "from a file")
		b.field("seed", "18446744073709551615")
		b.wait(`document.querySelector(".lora select").value === "owner/style"`)
	}
	b.run(chromedp.SetUploadFiles("#read", []string{made}))
	check()
	b.run(chromedp.Click("#generate"))
	b.pictures(1)
	o := b.model.last()
	if *o.Seed != s.Seed || o.Steps != 3 || *o.Guidance != 1.5 || o.Height != 32 || o.Width != 48 || o.Scheduler != "linear" {
		t.Errorf("options %+v, seed %d", o, *o.Seed)
	}
	b.run(chromedp.Click("#empty"))
	b.field("prompt", "")
	b.wait(`document.querySelectorAll(".lora").length === 0`)
	b.drop("#gallery", made)
	check()

	mflux, err := filepath.Abs("../../picture/testdata/mflux.png")
	if err != nil {
		t.Fatal(err)
	}
	b.drop("header", mflux)
	b.said("Settings filled in. Add the images it was made from: in.png.")
	b.field("model", "one") // by its repository
	b.wait(`document.getElementById("prompt").value.startsWith("a cat, on a “mat”")`)

	plain, err := os.ReadFile(b.file("plain.png", nil))
	if err != nil {
		t.Fatal(err)
	}
	const parameters = "a fox\nNegative prompt: blurry\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 99, Size: 64x96, Model: other"
	b.drop("header", b.write("a1111.png", withParameters(plain, parameters)))
	b.said("Settings filled in. This server has no model other.")
	b.field("prompt", "a fox")
	for id, value := range map[string]string{
		"negative": "blurry", "steps": "20", "guidance": "7", "seed": "99", "width": "64", "height": "96",
	} {
		b.field(id, value)
	}

	for name, problem := range map[string]string{"plain.png": "no settings", "notes.png": "not a PNG"} {
		data := plain
		if name == "notes.png" {
			data = []byte("hello")
		}
		b.drop("header", b.write(name, data))
		b.wait(fmt.Sprintf(`document.getElementById("error").textContent.startsWith(%q)`, name+": "))
		b.wait(fmt.Sprintf(`document.getElementById("error").textContent.includes(%q)`, problem))
	}
	b.field("prompt", "a fox") // as it was
}

// TestInputImages drops images on the boxes for them, and pastes them.
func TestInputImages(t *testing.T) {
	b := open(t, nil)
	one, two := b.file("one.png", nil), b.file("two.png", nil)
	b.drop("#start", one)
	b.said("one.png added")
	b.wait(`document.querySelector("#start .chosen img")?.alt === "one.png"`)
	b.drop("#start", two) // replaces the first
	b.wait(`document.querySelectorAll("#start .chosen img").length === 1 && document.querySelector("#start .chosen img").alt === "two.png"`)
	if !evaluate[bool](b, `document.getElementById("references").hidden`) {
		t.Error("a model without edits has a box for reference images")
	}

	b.run(chromedp.SetValue("#model", "several"), changed("#model"))
	b.wait(`document.querySelector("#references legend").textContent === "Reference images"`)
	b.drop("#references", one, two)
	b.wait(`document.querySelectorAll("#references .chosen img").length === 2`)
	b.run(chromedp.Click("#references .chosen li:first-child button"))
	b.wait(`document.querySelectorAll("#references .chosen img").length === 1`)

	// a pasted image is a reference image of a model that takes them
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		for _, name := range []string{"clipboard-read", "clipboard-write"} {
			_, err := cdp.Call(ctx, target, cdpbrowser.SetPermission, cdpbrowser.SetPermissionParams{
				Permission: &cdpbrowser.PermissionDescriptor{Name: name}, Setting: cdpbrowser.PermissionSettingGranted, Origin: b.url,
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	b.run(chromedp.Evaluate[chromedp.Void](`(async () => {
		const image = document.querySelector("#references .chosen img");
		const canvas = new OffscreenCanvas(24, 24);
		canvas.getContext("2d").drawImage(image, 0, 0);
		await navigator.clipboard.write([new ClipboardItem({ "image/png": await canvas.convertToBlob() })]);
	})()`, chromedp.EvalAwaitPromise))
	paste := chromedp.KeyEvent("v", chromedp.KeyModifiers(kb.ModifierCtrl), func(p *input.DispatchKeyEventParams) {
		p.Commands = []string{"Paste"}
	})
	b.run(chromedp.Focus("#prompt"), paste)
	b.wait(`document.querySelectorAll("#references .chosen img").length === 2`)

	b.run(chromedp.SendKeys("#prompt", "both"), chromedp.Click("#generate"))
	b.pictures(1)
	o := b.model.last()
	if o.Image == nil || len(o.References) != 2 || o.References[1].Bounds().Dx() != 24 {
		t.Errorf("options %+v", o)
	}
	if got := b.text(`document.querySelector(".picture dl").textContent`); !bytes.Contains([]byte(got), []byte("two.png")) {
		t.Errorf("settings of the image: %s", got)
	}

	// one that takes a single image keeps the last
	b.run(chromedp.SetValue("#model", "one"), changed("#model"))
	b.wait(`document.querySelector("#references legend").textContent === "Reference image"`)
	b.wait(`document.querySelectorAll("#references .chosen img").length === 1`)
	b.run(chromedp.SetValue("#model", "shapes"), changed("#model"), chromedp.Click("#start .chosen button"))
	b.run(chromedp.Focus("#prompt"), paste)
	b.wait(`document.querySelectorAll("#start .chosen img").length === 1`)

	// in a box of images, one is pasted into that box
	b.wait(`document.querySelector("#mask .file span").textContent === "Choose, drop or paste a mask"`)
	b.run(chromedp.Focus("#mask input[type=file]"), paste)
	b.wait(`document.querySelectorAll("#mask .chosen img").length === 1`)
	b.run(chromedp.SetValue("#model", "several"), changed("#model"))
	b.wait(`document.querySelectorAll("#references .chosen img").length === 1`)
	b.run(chromedp.Click("#start .hint")) // which gives the box the focus
	b.wait(`document.activeElement.id === "start"`)
	b.run(paste)
	b.said("The mask was removed, since it was that of another image.")
	b.wait(`document.querySelectorAll("#mask .chosen img").length === 0`)
	b.run(chromedp.Click("#mask summary"), chromedp.Focus("#mask-blur"), paste)
	b.wait(`document.querySelectorAll("#mask .chosen img").length === 1 && document.getElementById("mask-blur").value === ""`)
	b.run(chromedp.Focus("#references input[type=file]"), paste)
	b.wait(`document.querySelectorAll("#references .chosen img").length === 2`)
}

// changed tells the page that a field was changed.
func changed(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector(%q).dispatchEvent(new Event("change"))`, selector))
}
