// The box for inpainting: the mask of the start image, a border around it, and their options.

import { ImageBox, loadImage, readURL } from "./images.js";
import { Painter } from "./painter.js";

const byID = id => document.getElementById(id);
const sides = ["left", "top", "right", "bottom"];
const defaultPadding = 32;

export class Inpainting {
  // start is the box of the start image.
  constructor(start, say) {
    this.start = start;
    this.start.changed = () => this.setPhoto(start.images[0] ?? null);
    this.say = say;
    this.photo = null; // {name, data}
    this.maxPixels = Infinity; // of all images of a request
    this.changed = () => {}; // is called after each change
    this.painter = new Painter();
    this.mask = new ImageBox(byID("mask"), 1, say);
    this.mask.changed = () => this.show();
    byID("paint").addEventListener("click", () => this.paint());
    byID("scale-down").addEventListener("click", () => this.scaleDown());
    byID("mask-strength").addEventListener("input", () => this.show());
    byID("mask-crop").addEventListener("input", () => this.show());
    for (const side of sides) byID(`expand-${side}`).addEventListener("input", () => this.show());
    this.show();
  }

  // setPhoto sets the start image, or null. A mask is that of one photo.
  setPhoto(photo) {
    if (photo === this.photo) return;
    this.photo = photo;
    this.problem("");
    if (this.mask.images.length > 0) {
      this.mask.clear();
      this.say("The mask was removed, since it was that of another image.");
    }
    this.show();
    this.measure();
  }

  // measure offers to scale a photo down that is too large for the server together with a mask.
  async measure() {
    byID("too-large").hidden = true;
    const { photo } = this;
    if (!photo) return;
    const { naturalWidth: width, naturalHeight: height } = await loadImage(photo).catch(() => ({}));
    const shrink = Math.sqrt(this.maxPixels / 2 / (width * height));
    if (photo !== this.photo || !(shrink < 1)) return;
    const mega = n => (n / 1e6).toFixed(1);
    this.smaller = [Math.floor(width * shrink), Math.floor(height * shrink)];
    byID("size-note").textContent =
      `The image has ${mega(width * height)} megapixels. With a mask, this server takes at most ${mega(this.maxPixels / 2)}.`;
    byID("scale-down").textContent = `Scale it to ${this.smaller.join("x")}`;
    byID("too-large").hidden = false;
  }

  async scaleDown() {
    try {
      const { name, data } = this.photo;
      const canvas = new OffscreenCanvas(...this.smaller);
      const context = canvas.getContext("2d");
      context.imageSmoothingQuality = "high";
      context.drawImage(await loadImage(this.photo), 0, 0, ...this.smaller);
      const type = data.startsWith("data:image/jpeg") ? "image/jpeg" : "image/png"; // which have their files' names
      const file = await canvas.convertToBlob({ type, quality: 0.95 });
      this.start.set([{ name, data: await readURL(file) }]);
      this.say(`${name} is scaled to ${this.smaller.join("x")}.`);
    } catch (error) {
      this.problem(error.message);
    }
    byID("paint").focus();
  }

  // ownSize reports whether the size of the start image is the default one.
  ownSize() {
    return this.photo !== null && !(this.used() && byID("mask-crop").checked);
  }

  expand() {
    return sides.map(side => Number(byID(`expand-${side}`).value));
  }

  // used reports whether a job would inpaint.
  used() {
    return this.photo !== null && (this.mask.images.length > 0 || this.expand().some(n => n !== 0));
  }

  show() {
    byID("mask").hidden = this.photo === null;
    byID("variation").hidden = this.used(); // which has a strength of its own
    byID("paint").textContent = this.mask.images.length > 0 ? "Edit the mask" : "Paint a mask";
    byID("mask-padding").disabled = !byID("mask-crop").checked;
    byID("mask-strength-value").value = byID("mask-strength").value;
    this.changed();
  }

  // paint opens the painter for the mask.
  async paint() {
    this.problem("");
    try {
      const [mask] = this.mask.images;
      const photo = await loadImage(this.photo);
      const given = mask ? await loadImage(mask) : null;
      const data = await this.painter.paint(this.photo.name, photo, given, byID("invert-mask").checked);
      if (data) {
        const name = `${this.photo.name.replace(/\.[^.]*$/, "")}-mask.png`;
        byID("invert-mask").checked = false; // the painted part is what the mask selects
        this.mask.set([{ name, data }]);
        this.say("The mask is painted.");
      }
    } catch (error) {
      this.problem(error.message);
    }
    byID("paint").focus();
  }

  // fields returns the fields of a request.
  fields() {
    if (!this.used()) return {};
    const fields = { image: this.photo };
    const [mask] = this.mask.images;
    if (mask) fields.mask = mask;
    if (mask && byID("invert-mask").checked) fields.invert_mask = true;
    if (this.expand().some(n => n !== 0)) fields.expand = this.expand();
    if (byID("mask-blur").value !== "") fields.mask_blur = Number(byID("mask-blur").value);
    if (byID("mask-crop").checked) fields.mask_crop = Number(byID("mask-padding").value || defaultPadding);
    if (byID("no-paste-back").checked) fields.no_paste_back = true;
    if (Number(byID("mask-strength").value) > 0) fields.image_strength = Number(byID("mask-strength").value);
    return fields;
  }

  // fill fills in settings. Of masks they have the names alone, so the mask stays.
  fill(settings) {
    byID("invert-mask").checked = settings.invert_mask ?? false;
    byID("mask-blur").value = settings.mask_blur ?? "";
    byID("mask-crop").checked = settings.mask_crop !== undefined;
    byID("mask-padding").value = settings.mask_crop ?? defaultPadding;
    byID("no-paste-back").checked = settings.no_paste_back ?? false;
    sides.forEach((side, i) => { byID(`expand-${side}`).value = settings.expand?.[i] ?? 0; });
    byID("mask-strength").value = settings.mask || settings.expand ? settings.image_strength ?? 0 : 0;
    this.show();
  }

  // problem shows an error next to the mask.
  problem(text) {
    byID("mask-error").textContent = text;
    byID("mask-error").hidden = text === "";
    if (text !== "") byID("mask-error").scrollIntoView({ block: "center" });
  }

  // concerns reports whether an error is about the mask or the border.
  concerns(text) {
    return this.used() && /\b(mask(ed)?|mask_\w+|inpaint|border|expand)\b/.test(text);
  }
}
