// The gallery.

import { call } from "./api.js";
import { bytes } from "./text.js";

const template = document.getElementById("picture-template");
const byID = id => document.getElementById(id);

export class Gallery {
  constructor(form, say, fail) {
    this.form = form;
    this.say = say;
    this.fail = fail;
    this.shown = new Set(); // URLs
    this.next = "";
    byID("more").addEventListener("click", () => this.load());
  }

  // load shows the newest images, or the next older ones.
  async load() {
    try {
      const page = await call("GET", `pictures?after=${encodeURIComponent(this.next)}`);
      for (const picture of page.pictures) this.add(picture);
      this.next = page.next ?? "";
      byID("more").hidden = this.next === "";
      this.size(page);
    } catch (error) {
      if (error.status === 404) {
        byID("gallery-size").textContent = "This server keeps no gallery: images are lost when the page is closed.";
      } else {
        this.fail(error.message);
      }
    }
  }

  size(page) {
    byID("gallery-size").textContent = `${page.count} ${page.count === 1 ? "image" : "images"}, ${bytes(page.bytes)}. ` +
      `Above ${bytes(page.max_bytes)} the oldest are removed.`;
  }

  // refresh shows what was generated elsewhere since, and the size.
  async refresh() {
    try {
      const page = await call("GET", "pictures");
      for (const picture of page.pictures) {
        if (picture.name > this.next) this.add(picture); // older ones come with load
      }
      this.size(page);
    } catch {
      // there is no gallery, or no network; load has said so, or the next request will
    }
  }

  // finished adds a new image.
  finished(picture) {
    this.add(picture);
    this.refresh();
  }

  // add shows an image. The names of the gallery sort by time; without a gallery there are none, and
  // images come in their order.
  add(picture) {
    if (this.shown.has(picture.url)) return;
    this.shown.add(picture.url);
    const settings = picture.settings ?? {};
    const item = template.content.firstElementChild.cloneNode(true);
    const part = name => item.querySelector(name);
    const title = settings.prompt || picture.name || "image";
    part("img").src = picture.url;
    part("img").alt = title.slice(0, 200);
    part("img").width = settings.width ?? picture.width ?? 512;
    part("img").height = settings.height ?? picture.height ?? 512;
    part(".full").href = picture.url;
    part(".prompt").textContent = title;
    describe(part("dl"), settings);
    part(".download").href = `${picture.url}?download=1`;
    for (const name of [".use", ".start", ".inpaint", ".download", ".delete"]) {
      part(name).setAttribute("aria-label", `${part(name).textContent}: ${title.slice(0, 80)}`);
    }
    part(".use").addEventListener("click", () => this.form.fill(settings));
    part(".start").addEventListener("click", () => this.start(picture));
    part(".inpaint").addEventListener("click", async () => {
      if (await this.start(picture)) await this.form.inpainting.paint();
    });
    part(".delete").hidden = !picture.name;
    part(".delete").addEventListener("click", () => this.remove(picture, item));
    item.dataset.name = picture.name ?? "";
    const older = [...byID("gallery").children].find(other => other.dataset.name <= item.dataset.name);
    byID("gallery").insertBefore(item, older ?? null);
  }

  // start makes an image the start image. It reports whether that was possible.
  async start(picture) {
    try {
      const answer = await fetch(picture.url);
      if (!answer.ok) throw new Error("the image is not there any more");
      const name = picture.name ?? `seed-${picture.seed}.png`;
      await this.form.start.add([new File([await answer.blob()], name, { type: "image/png" })]);
      byID("start").scrollIntoView({ block: "center" });
      byID("start").querySelector("input[type=file]").focus();
      return true;
    } catch (error) {
      this.fail(error.message);
      return false;
    }
  }

  async remove(picture, item) {
    if (!confirm("Delete this image?")) return;
    try {
      await call("DELETE", `pictures/${encodeURIComponent(picture.name)}`);
    } catch (error) {
      if (error.status !== 404) {
        this.fail(error.message);
        return;
      }
    }
    const near = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    (near?.querySelector(".delete") ?? byID("generate")).focus();
    this.say("The image was deleted.");
    this.refresh();
  }
}

// describe lists settings.
function describe(list, settings) {
  for (const [name, value] of Object.entries(settings)) {
    if (name === "prompt" || name === "version") continue;
    const term = document.createElement("dt");
    term.textContent = name.replaceAll("_", " ");
    const text = document.createElement("dd");
    text.textContent = typeof value === "object" ? JSON.stringify(value) : value;
    list.append(term, text);
  }
}
