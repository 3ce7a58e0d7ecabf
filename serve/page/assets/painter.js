// The dialog in which a mask is painted on a photo.

import { readURL } from "./images.js";
import { Mask } from "./mask.js";
import { encodePNG } from "./png.js";
import { Stage } from "./stage.js";

const byID = id => document.getElementById(id);
const dialog = byID("painter");
const canvas = byID("painter-mask");

// The mask is shown as stripes of two colours, so that it can be seen on photos of any colour.
const stripes = new Uint32Array(new Uint8Array([200, 0, 100, 170, 255, 170, 215, 170]).buffer);
const stripeWidth = 6; // in pixels of the screen

// tools by the keys that choose them
const tools = { b: "paint", e: "erase", f: "area" };

export class Painter {
  constructor() {
    this.stage = new Stage();
    byID("painter-cancel").addEventListener("click", () => this.leave());
    dialog.addEventListener("cancel", event => {
      event.preventDefault();
      this.leave();
    });
    dialog.addEventListener("close", () => { // the browser may close it without asking
      if (!dialog.open) this.finish(null);
    });
    byID("painter-done").addEventListener("click", () => this.use());
    byID("undo").addEventListener("click", () => this.change(() => this.mask.undo()));
    byID("redo").addEventListener("click", () => this.change(() => this.mask.redo()));
    byID("clear").addEventListener("click", () => this.change(() => this.mask.replace(() => false)));
    byID("paint-all").addEventListener("click", () => this.change(() => this.mask.replace(() => true)));
    byID("invert").addEventListener("click", () => this.change(() => this.mask.invert()));
    byID("brush-size").addEventListener("input", () => this.showBrush());
    dialog.addEventListener("keydown", event => this.shortcut(event));
    canvas.addEventListener("keydown", event => this.key(event));
    for (const kind of ["keyup", "blur"]) canvas.addEventListener(kind, () => this.endStroke());
    this.stage.listen({
      begin: (point, event) => this.beginStroke(point, event),
      move: points => points.forEach(point => this.strokeTo(point)),
      end: () => this.endStroke(),
      cancel: () => this.cancelStroke(),
      hover: point => this.hover(point),
      zoomed: () => this.showBrush(),
    });
  }

  // paint opens the dialog for a photo, which is an <img>, with a mask to begin with: an <img> too, or
  // null for the transparent part of the photo. It returns the new mask as the data URL of a PNG, or null
  // if nothing is to be changed. name is that of the photo, and inverted means that the given mask is
  // painted where it is black.
  paint(name, photo, given, inverted) {
    const { naturalWidth: width, naturalHeight: height } = photo;
    this.mask = new Mask(width, height, r => this.draw(r));
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    if (!context) throw new Error(`this browser cannot paint on ${width}x${height} pixels`);
    this.context = context;
    this.at = { x: Math.floor(width / 2) + 0.5, y: Math.floor(height / 2) + 0.5 };
    byID("painter-photo").src = photo.src;
    byID("painter-photo").alt = name;
    byID("brush-size").max = Math.max(8, Math.ceil(Math.max(width, height) / 4));
    byID("brush-size").value = Math.max(1, Math.round(Math.max(width, height) / 16));
    byID("tool-paint").checked = true;
    dialog.showModal();
    this.problem("");
    this.report(); // now, since its line leaves less room for the photo
    this.stage.show(width, height);
    this.stripe = Math.max(1, Math.round(stripeWidth / this.stage.scale()));
    this.given = given;
    const selects = selection(given ?? photo, width, height, given !== null);
    if (selects) this.mask.replace(i => selects(i) !== (inverted && given !== null));
    this.mask.done = []; // what was given is not undone
    this.changed = false;
    this.hover(null);
    this.report();
    canvas.focus();
    return new Promise(resolve => { this.resolve = resolve; });
  }

  // draw shows a part of the mask.
  draw({ x, y, width, height }) {
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < height; row++) {
      const start = (y + row) * this.mask.width + x;
      for (let column = 0; column < width; column++) {
        if (this.mask.data[start + column] === 0) continue;
        pixels[row * width + column] = stripes[Math.floor((x + column + y + row) / this.stripe) % 2];
      }
    }
    this.context.putImageData(image, x, y);
  }

  tool() {
    return dialog.querySelector("input[name=tool]:checked").value;
  }

  radius() {
    return Number(byID("brush-size").value) / 2;
  }

  beginStroke(point, event) {
    this.problem("");
    this.at = point;
    const eraser = event.pointerType === "pen" && (event.buttons & 32) !== 0; // the other end of a pen
    this.stroke = eraser ? "erase" : this.tool();
    if (this.stroke !== "area") this.mask.begin();
    this.strokeTo(point);
  }

  strokeTo(point) {
    if (this.stroke === "paint" || this.stroke === "erase") {
      this.mask.line(this.at, point, this.radius(), this.stroke === "paint");
    }
    this.at = point;
  }

  // endStroke ends a stroke. An area is painted only then, since a second finger can come.
  endStroke() {
    const stroke = this.stroke;
    if (!stroke) return;
    this.stroke = null;
    if (stroke === "area") {
      this.floodAt(this.at);
      return;
    }
    this.mask.commit();
    this.changed = true;
    this.report();
  }

  cancelStroke() {
    if (this.stroke) this.mask.cancel();
    this.stroke = null;
  }

  floodAt({ x, y }) {
    if (this.mask.flood(Math.floor(x), Math.floor(y))) {
      this.changed = true;
      this.report();
    } else {
      this.report("This place is painted already.");
    }
  }

  // change makes a change to the whole mask.
  change(make) {
    this.problem("");
    make();
    this.changed = true;
    this.report();
  }

  // report shows how much is painted, after another message.
  report(...messages) {
    const { done, undone, width, height } = this.mask;
    for (const [button, list] of [["undo", done], ["redo", undone]]) {
      byID(button).ariaDisabled = String(list.length === 0); // and not disabled, which would lose the focus
    }
    const part = 100 * this.mask.count() / (width * height);
    const percent = part > 0 && part < 1 ? "Less than 1" : Math.floor(part);
    byID("painter-state").textContent = [...messages, `${percent} % of ${width}x${height} pixels are painted.`].join(" ");
  }

  problem(text) {
    byID("painter-error").textContent = text;
    byID("painter-error").hidden = text === "";
    if (text !== "") byID("painter-error").scrollIntoView({ block: "nearest" });
  }

  // hover shows the brush at a point, or where the keyboard has it.
  hover(point) {
    this.pointer = point;
    this.showBrush();
  }

  showBrush() {
    const size = byID("brush-size").value;
    byID("brush-size-value").value = byID("brush-size").ariaValueText = `${size} px`;
    this.stage.showBrush(this.pointer ?? this.at, this.radius());
  }

  // shortcut handles the keys of the whole dialog.
  shortcut(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    const key = event.key.toLowerCase();
    if (key === "enter") {
      this.use();
    } else if (key === "z" || key === "y") {
      byID(key === "y" || event.shiftKey ? "redo" : "undo").click();
    } else {
      return;
    }
    event.preventDefault();
  }

  // key handles the keys of the photo, on which the keyboard paints too.
  key(event) {
    const character = event.getModifierState("AltGraph"); // on many keyboards, brackets need it
    if ((event.ctrlKey || event.metaKey || event.altKey) && !character) return;
    const step = Math.max(1, Math.round(this.radius() / 2));
    const way = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[event.key];
    if (way) {
      this.moveBrush(...way, event.shiftKey || this.stroke);
    } else if (event.key === " " || event.key === "Enter") {
      if (!event.repeat) this.beginStroke(this.at, event);
    } else if (tools[event.key.toLowerCase()]) {
      byID(`tool-${tools[event.key.toLowerCase()]}`).click();
    } else if (event.key === "[" || event.key === "]") {
      const size = 2 * this.radius();
      const next = event.key === "]" ? Math.ceil(size * 1.25) : Math.floor(size / 1.25);
      byID("brush-size").value = next;
      this.showBrush();
    } else if (event.key === "+" || event.key === "-") {
      this.stage.step(event.key === "+" ? 1 : -1, this.at);
    } else {
      return;
    }
    event.preventDefault();
  }

  // moveBrush moves the brush of the keyboard, which paints if it is asked to.
  moveBrush(dx, dy, paints) {
    const { width, height } = this.mask;
    const to = {
      x: Math.min(width - 0.5, Math.max(0.5, this.at.x + dx)),
      y: Math.min(height - 0.5, Math.max(0.5, this.at.y + dy)),
    };
    if (paints && !this.stroke && this.tool() !== "area") this.beginStroke(this.at, {});
    this.strokeTo(to);
    this.hover(null);
    this.stage.reveal(to);
    byID("painter-state").textContent = `Brush at ${Math.floor(to.x)}, ${Math.floor(to.y)}.`;
  }

  // leave closes the dialog without a change, after a question if there was one.
  leave() {
    if (!this.changed || confirm("Discard what you have painted?")) this.finish(null);
  }

  // use closes the dialog with the mask.
  async use() {
    this.endStroke();
    if (this.mask.count() === 0) {
      this.problem("Nothing is painted. Paint the part of the photo that is to be generated.");
      return;
    }
    if (!this.changed && this.given) {
      this.finish(null);
      return;
    }
    try {
      // the URL is made while the dialog is open: once it is closed, a job can be started
      this.finish(await readURL(await encodePNG(this.mask.width, this.mask.height, this.mask.data)));
    } catch (error) {
      this.problem(`The mask cannot be written: ${error.message}`);
    }
  }

  finish(data) {
    const resolve = this.resolve;
    this.resolve = null;
    if (!resolve) return;
    this.stroke = null;
    this.mask = null; // large
    canvas.width = canvas.height = 0;
    dialog.close();
    resolve(data);
  }
}

// selection returns a function of the index of a pixel that reports whether a mask of some size selects
// it: its transparent part, or what is at least half white. An opaque image is a mask only if it is
// meant as one.
function selection(image, width, height, meant) {
  const copy = new OffscreenCanvas(width, height).getContext("2d");
  copy.drawImage(image, 0, 0, width, height);
  const { data } = copy.getImageData(0, 0, width, height);
  for (let i = 3; i < data.length; i += 4) {
    if (data[i] < 255) return n => data[4 * n + 3] < 128;
  }
  return meant ? n => data[4 * n] >= 128 : null;
}
