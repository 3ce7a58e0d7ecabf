// The gallery.

import { call } from "./api.js";
import { pictureType, readURL } from "./images.js";
import { describe, fileName, load, sources } from "./settings.js";
import { bytes } from "./text.js";
import { Viewer } from "./viewer.js";

const template = document.getElementById("picture-template");
const byID = id => document.getElementById(id);
const pause = 250; // ms after a key before the server is asked
const most = 100; // images that a request deletes

export class Gallery {
  constructor(form, say, fail) {
    this.form = form;
    this.say = say;
    this.fail = fail;
    this.pictures = new Map(); // by their lines
    this.shown = new Map(); // lines by URLs
    this.selected = new Set(); // lines
    this.next = "";
    this.turn = 0; // of searching
    this.viewer = new Viewer(this);
    byID("more").addEventListener("click", () => this.load());
    for (const id of ["search", "search-model", "search-favourites"]) {
      byID(id).addEventListener("input", () => {
        clearTimeout(this.waiting);
        this.waiting = setTimeout(() => this.load(true), pause);
      });
    }
    byID("compare").addEventListener("click", () => this.compare());
    byID("delete-selected").addEventListener("click", () => this.removeSelected());
    byID("select-all").addEventListener("click", () => this.select([...this.pictures.keys()]));
    byID("clear-selection").addEventListener("click", () => {
      this.select([]);
      byID("search").focus();
    });
  }

  // query returns the path of images after a name.
  query(after) {
    const q = new URLSearchParams({ after, q: byID("search").value, model: byID("search-model").value });
    if (byID("search-favourites").checked) q.set("favourite", "true");
    return `pictures?${q}`;
  }

  searching() {
    return byID("search").value + byID("search-model").value !== "" || byID("search-favourites").checked;
  }

  // load shows the next older images, or afresh those that are searched for.
  async load(afresh = false) {
    const turn = afresh ? ++this.turn : this.turn;
    try {
      let after = afresh ? "" : this.next;
      let page;
      do { // the server looks at a part of the gallery at a time
        page = await call("GET", this.query(after));
        if (turn !== this.turn) return; // something else is searched for
        after = page.next ?? "";
      } while (page.pictures.length === 0 && after !== "");
      if (afresh) this.clear();
      for (const picture of page.pictures) this.add(picture);
      this.next = after;
      byID("more").hidden = after === "";
      byID("no-match").hidden = this.pictures.size > 0 || !this.searching();
      this.size(page);
    } catch (error) {
      if (turn !== this.turn) return;
      if (error.status === 404) {
        byID("gallery-size").textContent = "This server keeps no gallery: images are lost when the page is closed.";
        byID("gallery-search").hidden = true;
      } else {
        this.fail(error.message);
      }
    }
  }

  clear() {
    this.pictures.clear();
    this.shown.clear();
    byID("gallery").replaceChildren();
    this.select([]);
  }

  size(page) {
    byID("gallery-size").textContent = `${page.count} ${page.count === 1 ? "image" : "images"}, ${bytes(page.bytes)}. ` +
      `Above ${bytes(page.max_bytes)} the oldest are removed, except favourites.`;
  }

  // refresh shows what was generated elsewhere since, and the size.
  async refresh() {
    const { turn } = this;
    try {
      const page = await call("GET", this.query(""));
      if (turn !== this.turn) return;
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
    if (!this.searching()) this.add(picture);
    this.refresh();
  }

  // add shows an image. The names of the gallery sort by time; without a gallery there are none, and
  // images come in their order.
  add(picture) {
    const known = this.shown.get(picture.url);
    if (known) {
      if (picture.favourite !== undefined) this.showFavourite(known, picture.favourite);
      return;
    }
    const settings = picture.settings ?? {};
    const item = template.content.firstElementChild.cloneNode(true);
    this.shown.set(picture.url, item);
    this.pictures.set(item, picture);
    const part = name => item.querySelector(name);
    const title = settings.prompt || picture.name || "image";
    part("img").src = picture.url;
    part("img").alt = title.slice(0, 200);
    part("img").width = settings.width ?? picture.width ?? 512;
    part("img").height = settings.height ?? picture.height ?? 512;
    part(".full").href = picture.url;
    part(".prompt").textContent = title;
    describe(part("dl"), settings);
    part(".download").href = picture.url;
    part(".download").download = fileName(picture);
    for (const name of [".use", ".start", ".inpaint", ".download", ".delete"]) {
      part(name).setAttribute("aria-label", `${part(name).textContent}: ${title.slice(0, 80)}`);
    }
    part(".select input").setAttribute("aria-label", `Select: ${title.slice(0, 80)}`);
    part(".favourite").setAttribute("aria-label", `Favourite: ${title.slice(0, 80)}`);
    this.listen(item, picture);
    part(".delete").hidden = part(".select").hidden = part(".favourite").hidden = !picture.name;
    this.showFavourite(item, picture.favourite);
    this.offerModel(settings.model);
    item.dataset.name = picture.name ?? "";
    const older = [...byID("gallery").children].find(other => other.dataset.name <= item.dataset.name);
    byID("gallery").insertBefore(item, older ?? null);
  }

  // listen lets the parts of an image's line do what they are for.
  listen(item, picture) {
    const on = (name, run) => item.querySelector(name).addEventListener("click", run);
    on(".full", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // which open the file
      event.preventDefault();
      this.viewer.open(item);
    });
    item.querySelector(".full").addEventListener("dragstart", ({ dataTransfer }) => {
      const name = fileName(picture);
      dataTransfer.clearData();
      dataTransfer.setData(pictureType, JSON.stringify({ url: picture.url, name: picture.name ?? name }));
      dataTransfer.setData("DownloadURL", `image/png:${name}:${new URL(picture.url, location)}`); // to other programs
      dataTransfer.setDragImage(item.querySelector("img"), 0, 0);
    });
    on(".use", () => this.use(picture));
    on(".start", () => this.start(picture));
    on(".inpaint", () => this.inpaint(picture));
    on(".favourite", async () => this.fail(await this.setFavourite(item)));
    on(".delete", async () => this.report(await this.removeAll([item]), "The image was deleted."));
    item.querySelector(".select input").addEventListener("change", ({ target }) => {
      this.select(target.checked ? [...this.selected, item] : [...this.selected].filter(other => other !== item));
    });
  }

  offerModel(name) {
    if (!name || [...byID("search-models").children].some(option => option.value === name)) return;
    byID("search-models").append(new Option(name, name));
  }

  // use fills in the settings of an image, and the images of the gallery that it was made from. It
  // reports whether all of them are in their boxes.
  async use(picture) {
    const { form } = this;
    const { settings = {} } = picture;
    form.fill(settings);
    if (settings.mask || settings.expand) return false; // the mask belongs to the image in the box
    let whole = true;
    for (const [box, wanted] of [[form.start, settings.image ? [settings.image] : []], [form.references, settings.references ?? []]]) {
      const found = sources({ references: wanted });
      try {
        if (found.length < wanted.length) throw new Error("the gallery does not have it");
        const files = await Promise.all(found.map(({ url, path, sha256 }) => load(url, path, sha256)));
        box.clear();
        await box.add(files);
        if (files.length > 0) this.say("Settings and images filled in.");
      } catch {
        whole = false; // fill has named what is missing
      }
    }
    return whole;
  }

  // vary generates an image with its settings and another seed.
  async vary(picture) {
    const whole = await this.use(picture);
    byID("seed").value = "";
    if (whole) byID("form").requestSubmit();
    else this.say("Settings filled in, with a random seed. Add the images it was made from.");
  }

  // give puts an image into a box. It reports whether that was possible.
  async give(box, picture) {
    try {
      await box.add([await load(picture.url, picture.name ?? fileName(picture))]);
      box.fieldset.scrollIntoView({ block: "center" });
      box.input.focus();
      return true;
    } catch (error) {
      this.fail(error.message);
      return false;
    }
  }

  start(picture) {
    return this.give(this.form.start, picture);
  }

  // editor returns a model that takes reference images: the one that is chosen, if it does.
  editor() {
    const { form } = this;
    return form.model()?.edits ? form.model() : form.models.find(m => m.edits && !m.missing);
  }

  async edit(picture) {
    byID("model").value = this.editor().name;
    byID("model").dispatchEvent(new Event("change"));
    await this.give(this.form.references, picture);
  }

  async inpaint(picture) {
    if (await this.start(picture)) await this.form.inpainting.paint();
  }

  async describe(picture) {
    try {
      const name = picture.name ?? fileName(picture);
      this.describer.describe({ name, data: await readURL(await load(picture.url, name)) });
    } catch (error) {
      this.fail(error.message);
    }
  }

  showFavourite(item, on) {
    this.pictures.get(item).favourite = on === true;
    item.querySelector(".favourite").ariaPressed = String(on === true);
  }

  // setFavourite makes an image a favourite, or not. It returns the problem, or "".
  async setFavourite(item) {
    const { name, favourite } = this.pictures.get(item);
    try {
      await call(favourite ? "DELETE" : "PUT", `pictures/${encodeURIComponent(name)}/favourite`);
    } catch (error) {
      return error.message;
    }
    if (this.pictures.has(item)) this.showFavourite(item, !favourite);
    return "";
  }

  // select selects images.
  select(items) {
    this.selected = new Set(items);
    for (const item of this.pictures.keys()) item.querySelector(".select input").checked = this.selected.has(item);
    byID("gallery").classList.toggle("selecting", items.length > 0);
    byID("selection").hidden = items.length === 0;
    byID("selection-count").textContent = `${items.length} selected`;
    byID("compare").disabled = items.length !== 2;
  }

  // compare shows two images together, the upper one in the gallery first.
  compare() {
    const [first, second] = [...this.pictures.keys()].filter(item => this.selected.has(item))
      .sort((a, b) => a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_PRECEDING ? 1 : -1);
    const { url, settings, name } = this.pictures.get(second);
    this.viewer.open(first, { url, title: settings?.prompt || name });
  }

  async removeSelected() {
    const n = this.selected.size;
    this.report(await this.removeAll([...this.selected]), n === 1 ? "The image was deleted." : `${n} images were deleted.`);
  }

  // report announces that images were deleted, or the problem, or nothing if nobody wanted it.
  report(problem, text) {
    if (problem) this.fail(problem);
    else if (problem === "") this.say(text);
  }

  // removeAll deletes images after a question. It returns the problem, "", or undefined if the answer
  // is no.
  async removeAll(items) {
    const favourites = items.filter(item => this.pictures.get(item).favourite).length;
    const what = items.length === 1 ? "this image" : `${items.length} images`;
    const note = favourites === 0 ? "" : items.length === 1 ? ", a favourite" : `, ${favourites} of them favourites`;
    if (!confirm(`Delete ${what}${note}?`)) return undefined;
    const focus = items.at(-1).nextElementSibling ?? items[0].previousElementSibling;
    try {
      for (let i = 0; i < items.length; i += most) {
        const part = items.slice(i, i + most);
        await call("DELETE", `pictures?${new URLSearchParams(part.map(item => ["name", this.pictures.get(item).name]))}`);
        for (const item of part) this.drop(item);
      }
    } catch (error) {
      return error.message;
    }
    const near = focus?.isConnected ? focus.querySelector(".delete") : byID("generate");
    if (!document.querySelector("dialog[open]")) near.focus();
    this.refresh();
    return "";
  }

  // drop takes an image off the list.
  drop(item) {
    this.shown.delete(this.pictures.get(item).url);
    this.pictures.delete(item);
    item.remove();
    this.select([...this.selected].filter(other => other !== item));
  }
}
