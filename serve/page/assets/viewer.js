// The viewer: an image of the gallery as large as there is room, alone or next to another one.

import { enlarged } from "./api.js";
import { describe, fileName, sources } from "./settings.js";
import { Zoom } from "./zoom.js";

const byID = id => document.getElementById(id);
const dialog = byID("viewer");

export class Viewer {
  constructor(gallery) {
    this.gallery = gallery;
    this.item = null; // the image's line of the gallery
    this.zoom = new Zoom(byID("view"), zoom => {
      byID("view-fit").textContent = zoom === 1 ? "Fit" : `${Math.round(100 * zoom)} %`;
    }, step => this.step(step));
    const on = (id, run) => byID(id).addEventListener("click", run);
    on("view-previous", () => this.step(-1));
    on("view-next", () => this.step(1));
    on("view-out", () => this.zoom.by(1 / Math.SQRT2));
    on("view-in", () => this.zoom.by(Math.SQRT2));
    on("view-fit", () => this.zoom.reset());
    on("view-favourite", () => this.favourite());
    on("view-close", () => dialog.close());
    on("view-single", () => this.show(this.item));
    on("view-copy", () => this.copy("image"));
    on("view-copy-prompt", () => this.copy("prompt"));
    on("view-delete", () => this.remove());
    on("view-enlarge", () => this.enlarge());
    for (const name of ["use", "vary", "start", "edit", "inpaint", "describe"]) {
      on(`view-${name}`, () => { // which goes on in the form
        this.item = null;
        dialog.close();
        gallery[name](this.picture);
      });
    }
    for (const id of ["view-side", "view-slide"]) byID(id).addEventListener("change", () => this.layout());
    byID("view-cut").addEventListener("input", () => this.layout());
    dialog.addEventListener("close", () => this.item?.querySelector(".full").focus());
    dialog.addEventListener("keydown", event => this.key(event));
  }

  // open shows an image, by its line of the gallery, or compares it with another one.
  open(item, other) {
    this.say("");
    this.show(item, other);
    dialog.showModal();
    byID("view").focus();
    this.zoom.reset();
  }

  say(text) {
    byID("view-state").textContent = text;
  }

  // show shows an image. other is one to compare it with: {title, url}.
  show(item, other = null) {
    this.item = item;
    this.picture = this.gallery.pictures.get(item);
    const { picture } = this;
    const { settings = {} } = picture;
    const items = this.items();
    byID("viewer-title").textContent = `Image ${items.indexOf(item) + 1} of ${items.length}${byID("more").hidden ? "" : " or more"}`;
    byID("view-image").src = picture.url;
    byID("view-image").alt = settings.prompt || picture.name || "image";
    this.comparing = other !== null;
    byID("view-second").hidden = byID("view-compare").hidden = !this.comparing;
    if (other) {
      byID("view-other").src = other.url;
      byID("view-other").alt = other.title;
    }
    byID("view-prompt").textContent = settings.prompt ?? "";
    describe(byID("view-settings"), settings);
    byID("view-download").href = picture.url;
    byID("view-download").download = fileName(picture);
    byID("view-delete").hidden = byID("view-favourite").hidden = !picture.name;
    byID("view-edit").hidden = !this.gallery.editor();
    this.showLayers(picture);
    this.showSources(sources(settings));
    this.showFavourite();
    this.layout();
    this.zoom.reset();
  }

  // showLayers shows the layers of an image as links to their files, as long as the server has its job.
  showLayers({ layers = [], openraster }) {
    byID("view-ora").hidden = !openraster;
    if (openraster) byID("view-ora").href = `${openraster}&download=1`;
    byID("view-layers").replaceChildren(...layers.map((url, i) => {
      const item = document.createElement("li");
      const img = document.createElement("img");
      img.alt = "";
      img.src = url;
      img.addEventListener("error", () => item.remove()); // the job was forgotten
      const link = document.createElement("a");
      link.href = `${url}&download=1`;
      link.append(img, `Layer ${i + 1}`);
      item.append(link);
      return item;
    }));
  }

  // enlarge downloads the image twice as large.
  async enlarge() {
    const { picture } = this;
    const button = byID("view-enlarge");
    button.disabled = true;
    this.say("Enlarging the image …");
    try {
      const file = await (await fetch(picture.url)).blob();
      const large = await enlarged(file, 2);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(large);
      link.download = fileName(picture).replace(/\.png$/, "_2x.png");
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      this.say("The enlarged image is downloaded.");
    } catch (error) {
      this.say(`The image was not enlarged: ${error.message}`);
    } finally {
      button.disabled = false;
    }
  }

  // showSources shows the start image and reference images that the gallery has.
  showSources(all) {
    byID("view-sources").replaceChildren(...all.map(source => {
      const item = document.createElement("li");
      const img = document.createElement("img");
      img.alt = "";
      img.src = source.url;
      img.addEventListener("error", () => item.remove()); // it was deleted
      const button = document.createElement("button");
      button.type = "button";
      button.append(img, `Compare with ${source.title.toLowerCase()}`);
      button.addEventListener("click", () => {
        this.show(this.item, source);
        byID("view-single").focus({ preventScroll: true });
        byID("view").scrollIntoView({ block: "center" });
      });
      item.append(button);
      return item;
    }));
  }

  showFavourite() {
    byID("view-favourite").ariaPressed = String(this.picture.favourite === true);
  }

  // layout places two images that are compared.
  layout() {
    const slide = this.comparing && byID("view-slide").checked;
    byID("view").classList.toggle("pair", this.comparing && !slide);
    byID("view").classList.toggle("slide", slide);
    byID("view-position").hidden = !slide;
    byID("view").style.setProperty("--cut", `${byID("view-cut").value}%`);
    this.zoom.show();
  }

  items() {
    return [...byID("gallery").children];
  }

  // step shows the next image or the previous one, and loads older ones at the end.
  async step(by) {
    const from = this.item;
    let next = this.items()[this.items().indexOf(from) + by];
    if (!next && by > 0 && !byID("more").hidden) {
      await this.gallery.load();
      if (this.item !== from || !dialog.open) return; // somebody went on
      next = this.items()[this.items().indexOf(from) + by];
    }
    this.say(next ? "" : by > 0 ? "This is the last image." : "This is the first image.");
    if (next) this.show(next);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    const far = 60;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const [x, y] = moves[event.key] ?? [0, 0];
    if (event.shiftKey && (x || y)) this.zoom.pan(-far * x, -far * y);
    else if (x) this.step(x);
    else if (event.key === "+" || event.key === "=") this.zoom.by(Math.SQRT2);
    else if (event.key === "-") this.zoom.by(1 / Math.SQRT2);
    else if (event.key === "0") this.zoom.reset();
    else return;
    event.preventDefault();
  }

  async favourite() {
    const { item } = this;
    const problem = await this.gallery.setFavourite(item);
    if (item !== this.item) return;
    this.say(problem || (this.picture.favourite ? "Added to favourites." : "Removed from favourites."));
    this.showFavourite();
  }

  // copy copies the image or its prompt.
  async copy(what) {
    try {
      if (!navigator.clipboard) throw new Error("browsers copy only from pages with HTTPS or on this machine");
      if (what === "prompt") {
        await navigator.clipboard.writeText(this.picture.settings?.prompt ?? "");
      } else { // Safari needs the promise, since it accepts no item later than the click
        const image = fetch(this.picture.url).then(answer => answer.blob());
        await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]);
      }
      this.say(`The ${what} is copied.`);
    } catch (error) {
      this.say(`Copying failed: ${error.message}`);
    }
  }

  // remove deletes the image, and shows the one after it.
  async remove() {
    const { item } = this;
    const near = item.nextElementSibling ?? item.previousElementSibling;
    const problem = await this.gallery.removeAll([item]);
    if (problem !== undefined) this.say(problem || "The image was deleted.");
    if (item.isConnected) return;
    if (near) this.show(near);
    else dialog.close();
  }
}
