// Downloads of models: the dialog with models that are known but not here, and the list of
// downloads that are under way.

import { call, events } from "./api.js";
import { ended, Item } from "./item.js";
import { bytes, duration } from "./text.js";

const byID = id => document.getElementById(id);
const template = byID("pullable-template");
const dialog = byID("models");

// sentence makes a sentence of a part of one.
const sentence = text => text && `${text[0].toUpperCase()}${text.slice(1)}.`;

export class Pulls {
  // chosen returns the name of the model in the form. downloaded is called when a model is here.
  constructor(chosen, say, fail, downloaded) {
    this.chosen = chosen;
    this.say = say;
    this.fail = fail;
    this.downloaded = downloaded;
    this.followed = new Set();
    byID("download-models").addEventListener("click", () => this.open());
    byID("close-models").addEventListener("click", () => dialog.close());
  }

  // find follows the downloads that were started before the page was loaded, or elsewhere.
  async find() {
    try {
      const { models, pulls } = await call("GET", "pulls");
      byID("download-models").hidden = models.length === 0;
      for (const pull of pulls.reverse()) {
        if (!ended(pull.state)) this.follow(pull);
      }
    } catch (error) {
      if (error.status !== 404) throw error; // 404: this server has no downloads
    }
  }

  // open shows the models that can be downloaded.
  async open() {
    let found;
    try {
      found = await call("GET", "pulls");
    } catch (error) {
      this.fail(error.message);
      return;
    }
    byID("models-note").textContent = found.allowed
      ? "They come from the Hugging Face hub, one at a time. A download that ends early can be resumed."
      : `Models cannot be downloaded from this page: ${found.reason}. These commands do it on the server's machine.`;
    const rows = found.models.map(model => new Row(model, found.allowed, () => this.start(model)));
    byID("pullable").replaceChildren(...rows.map(row => row.element));
    dialog.showModal();
    const chosen = rows.find(row => row.model.name === this.chosen());
    chosen?.element.scrollIntoView({ block: "nearest" });
    (found.allowed && chosen ? chosen.part(".choose") : byID("close-models")).focus();
    if (!found.allowed) return;
    for (const row of rows) {
      if (!dialog.open || !row.element.isConnected) return;
      if (await row.plan() === "hub") return; // which would not answer for the others either
    }
  }

  // start starts a download.
  async start(model) {
    const pull = await call("POST", "pulls", { model: model.name });
    dialog.close();
    this.follow(pull);
  }

  // follow shows a download until its end.
  follow(pull) {
    if (this.followed.has(pull.id)) return;
    this.followed.add(pull.id);
    const path = `pulls/${encodeURIComponent(pull.id)}`;
    const item = new Item(byID("pulls"), `Download of ${pull.model}`, () => call("DELETE", path), this.fail);
    item.part(".cancel").hidden = !pull.own;
    show(item, pull);
    this.say(`Downloading ${pull.model}.`);
    events(path, ["progress", "done", "failed", "canceled"], (kind, data) => {
      show(item, data);
      if (!ended(kind)) return;
      item.remove();
      if (kind === "failed") this.fail(data.error.message);
      if (kind === "canceled") this.say(`The download of ${data.model} was canceled.`);
      if (kind === "done") {
        this.say(`${data.model} is downloaded.`);
        this.downloaded();
      }
    }, () => {
      this.followed.delete(pull.id);
      item.remove();
      this.fail("the server does not know the download any more");
    });
  }
}

// show shows the progress of a download.
function show(item, pull) {
  if (pull.total_bytes === 0) {
    item.show("Asking the Hugging Face hub");
    return;
  }
  let text = `${bytes(pull.bytes)} of ${bytes(pull.total_bytes)}`;
  if (pull.bytes_per_second > 0) text += `, ${bytes(pull.bytes_per_second)} per second`;
  if (pull.seconds_left > 0) text += `, about ${duration(pull.seconds_left)} left`;
  if (pull.waiting_for) text += ", waiting for another process";
  item.show(text, pull.bytes / pull.total_bytes);
}

// A Row is a model in the dialog.
class Row {
  constructor(model, allowed, start) {
    this.model = model;
    this.element = template.content.firstElementChild.cloneNode(true);
    this.part("h3").textContent = model.name;
    this.part(".size").textContent = allowed ? "Size: not known yet" : model.command;
    this.describe(model);
    this.part(".choose").hidden = !allowed;
    this.part(".choose").setAttribute("aria-label", `Download ${model.name}`);
    this.part(".choose").addEventListener("click", () => this.confirm());
    this.part(".back").addEventListener("click", () => {
      this.confirming(false);
      this.part(".choose").focus();
    });
    this.part(".begin").addEventListener("click", async () => {
      try {
        await start();
      } catch (error) {
        this.problem(error.message);
      }
    });
  }

  part(selector) {
    return this.element.querySelector(selector);
  }

  // describe shows the licence and how to get access.
  describe(model) {
    this.part(".licence").textContent = model.licence ? `Licence: ${model.licence}` : "";
    if (model.licence_url) this.part(".licence").href = model.licence_url;
    this.part(".terms").textContent = sentence(model.licence_terms ?? "");
    this.part(".access").textContent = model.gated ? `Gated: ${model.access ?? "a token with access is needed"}.` : "";
  }

  problem(text) {
    this.part(".error").textContent = text;
    this.part(".error").hidden = text === "";
  }

  // plan asks for the size. It returns the code of an error, or undefined.
  async plan() {
    this.planned ??= this.ask();
    return this.planned;
  }

  async ask() {
    this.part(".size").textContent = "Size: asking the hub";
    try {
      const plan = await call("POST", "pulls", { model: this.model.name, dry_run: true });
      let text = `Size: ${bytes(plan.total_bytes)}`;
      if (plan.bytes > 0) text += `, of which ${bytes(plan.bytes)} are here`;
      this.part(".size").textContent = text;
      this.part(".warnings").textContent = (plan.warnings ?? []).join(" ");
      this.describe(plan.model);
      this.problem(plan.error?.message ?? "");
      this.left = plan.total_bytes - plan.bytes;
      return undefined;
    } catch (error) {
      this.planned = undefined; // the next time it may work
      this.part(".size").textContent = "Size: unknown";
      this.problem(error.message);
      return error.code;
    }
  }

  // confirm asks before a download begins, with its size and licence.
  async confirm() {
    this.problem("");
    await this.plan();
    if (this.left === undefined) return;
    let text = `Download ${bytes(this.left)}?`;
    if (this.model.licence_terms) text += ` ${this.model.licence}: ${this.model.licence_terms}.`;
    this.part(".question").textContent = text;
    this.confirming(true);
    this.part(".begin").focus();
  }

  confirming(on) {
    this.part(".confirm").hidden = !on;
    this.part(".choose").hidden = on;
  }
}
