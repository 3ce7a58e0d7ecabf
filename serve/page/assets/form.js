// The form: what it asks for, and how settings fill it in.

import { Boxes } from "./boxes.js";
import { ImageBox } from "./images.js";
import { Inpainting } from "./inpaint.js";
import { Sizes } from "./sizes.js";
import { bytes } from "./text.js";

const byID = id => document.getElementById(id);
const maxReferences = 16;

// other are settings that the form has no fields for. They are kept from the settings that filled
// it in.
const other = ["guidance_unit", "guidance_interval", "true_cfg_scale", "cfg_normalization", "cfg_truncation", "step_cache", "sigmas",
  "max_sequence_length", "scheduler", "rng", "background", "original_prompt", "enhanced_by"];

export class Form {
  constructor(say) {
    this.say = say;
    this.models = [];
    this.loraNames = [];
    this.wanted = undefined; // name of the model to choose when they are listed
    this.kept = {};
    this.listed = this.filled = () => {}; // are called when models are listed, and kept is other
    this.start = new ImageBox(byID("start"), 1, say);
    this.inpainting = new Inpainting(this.start, say);
    this.inpainting.changed = () => this.showModel();
    this.references = new ImageBox(byID("references"), 1, say);
    byID("model").addEventListener("change", () => this.showModel());
    byID("guidance").addEventListener("input", () => {
      delete this.kept.guidance_unit;
      delete this.kept.true_cfg_scale;
    });
    byID("steps").addEventListener("input", () => { delete this.kept.sigmas; });
    byID("strength").addEventListener("input", () => this.showStrength());
    byID("add-lora").addEventListener("click", () => this.addLoRA("", 1).focus());
    byID("empty").addEventListener("click", () => this.reset());
    this.sizes = new Sizes(this);
    this.boxes = new Boxes(this);
    this.show(); // browsers keep the fields of a page that is reloaded
  }

  // show shows what depends on fields that were filled in.
  show() {
    this.showStrength();
    this.inpainting.show();
    if (this.models.length > 0) this.showModel();
  }

  showStrength() {
    byID("strength-value").value = byID("strength").value;
  }

  // setModels lists models; the one that was chosen stays chosen. maxPixels limits all images of a
  // request together.
  setModels(models, maxPixels) {
    this.maxPixels = this.inpainting.maxPixels = maxPixels;
    const before = this.wanted ?? byID("model").value;
    this.wanted = undefined;
    this.models = models;
    byID("model").replaceChildren(...models.map(m =>
      new Option(m.name + (m.missing ? " (not available)" : m.peak_bytes > m.free_bytes ? " (too large for the memory)" : ""),
        m.name, m.default, m.default)));
    if (models.some(m => m.name === before)) byID("model").value = before;
    this.showModel();
    this.listed();
  }

  setLoRAs(loras) {
    this.loraNames = loras.map(l => l.path);
    byID("no-loras").hidden = loras.length > 0;
    byID("add-lora").disabled = loras.length === 0;
    for (const row of byID("lora-rows").children) this.listLoRAs(row.querySelector("select"));
  }

  // listLoRAs fills a list with the LoRAs of the server, and the one that is chosen.
  listLoRAs(list, chosen = list.value) {
    const options = this.loraNames.map(name => new Option(name, name));
    if (chosen !== "" && !this.loraNames.includes(chosen)) options.push(new Option(`${chosen} (not in the list)`, chosen));
    list.replaceChildren(new Option("Choose a LoRA", ""), ...options);
    list.value = chosen;
  }

  model() {
    return this.models.find(m => m.name === byID("model").value);
  }

  // showModel shows the licence and the defaults of the model.
  showModel() {
    const model = this.model();
    if (!model) {
      byID("model-note").textContent = "This server has no models.";
      return;
    }
    const notes = [];
    if (model.bytes) notes.push(`${bytes(model.bytes)} on the disk.`);
    if (model.peak_bytes) {
      const free = model.free_bytes ? `, ${bytes(model.free_bytes)} are available` : "";
      notes.push(`Needs about ${bytes(model.peak_bytes)} of memory${free}${model.peak_bytes > model.free_bytes ? ": too little" : ""}.`);
    }
    if (model.licence) notes.push(`Licence: ${[model.licence, model.licence_terms].filter(Boolean).join(", ")}.`);
    if (model.missing) notes.push(model.missing);
    byID("model-note").textContent = notes.join(" ");
    for (const name of ["width", "height", "steps", "guidance"]) {
      byID(name).placeholder = model.defaults[name] ?? "";
    }
    this.sizes.show();
    this.boxes.show();
    if (this.inpainting.ownSize()) byID("width").placeholder = byID("height").placeholder = "as image";
    byID("references").hidden = !model.edits;
    byID("layers-row").hidden = !model.layers;
    byID("layer-count").placeholder = model.layers ?? "";
    this.references.setLimit(model.multiple ? maxReferences : 1);
    byID("references").querySelector("legend").textContent = model.multiple ? "Reference images" : "Reference image";
  }

  addLoRA(path, scale) {
    const row = document.createElement("div");
    row.className = "lora";
    const name = document.createElement("select");
    name.setAttribute("aria-label", "LoRA");
    this.listLoRAs(name, path);
    const factor = document.createElement("input");
    factor.type = "number";
    factor.step = "any";
    factor.setAttribute("aria-label", "Scale of the LoRA");
    factor.value = scale;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", "Remove the LoRA");
    remove.addEventListener("click", () => {
      row.remove();
      this.changed();
      byID("add-lora").focus();
    });
    row.append(name, factor, remove);
    byID("lora-rows").append(row);
    return name;
  }

  loras() {
    return [...byID("lora-rows").children].map(row => {
      const [name, factor] = row.querySelectorAll("select, input");
      return { path: name.value, scale: factor.value === "" ? 1 : Number(factor.value) };
    }).filter(l => l.path !== "");
  }

  // request returns the body of a request for a job. Empty fields stand for the model's defaults.
  request() {
    const body = { ...this.kept, prompt: byID("prompt").value, model: byID("model").value, count: Number(byID("count").value) };
    if (byID("negative").value !== "") body.negative_prompt = byID("negative").value;
    for (const name of ["width", "height", "steps", "guidance"]) {
      if (byID(name).value !== "") body[name] = Number(byID(name).value);
    }
    if (byID("seed").value.trim() !== "") body.seed = byID("seed").value.trim();
    const loras = this.loras();
    if (loras.length > 0) body.loras = loras;
    if (this.inpainting.used()) {
      Object.assign(body, this.inpainting.fields());
    } else if (this.start.images.length > 0) {
      body.image = this.start.images[0];
      body.image_strength = Number(byID("strength").value);
    }
    if (this.model()?.edits && this.references.images.length > 0) body.references = this.references.images;
    if (this.model()?.layers && byID("layer-count").value !== "") body.layers = Number(byID("layer-count").value);
    return body;
  }

  reset() {
    byID("form").reset();
    byID("lora-rows").replaceChildren();
    this.kept = {};
    this.start.clear();
    this.references.clear();
    this.filled();
    this.show();
    this.changed();
    byID("prompt").focus();
  }

  // changed tells listeners that fields were changed by the page.
  changed() {
    byID("form").dispatchEvent(new Event("change"));
  }

  // fill fills in settings. Fields that they do not have are emptied. notUsed are those of another
  // program that have no counterpart.
  fill(settings, notUsed = []) {
    const notes = [];
    const known = this.models.find(m => m.name === settings.model || m.repo === settings.model);
    if (known) {
      byID("model").value = known.name;
    } else if (settings.model) {
      notes.push(`This server has no model ${settings.model}.`);
    }
    byID("prompt").value = settings.prompt ?? "";
    byID("negative").value = settings.negative_prompt ?? "";
    for (const name of ["width", "height", "steps", "guidance", "seed"]) {
      byID(name).value = settings[name] ?? "";
    }
    byID("count").value = 1;
    byID("layer-count").value = settings.layers ?? "";
    byID("lora-rows").replaceChildren();
    for (const l of settings.loras ?? []) this.addLoRA(l.path, l.scale ?? 1);
    this.kept = Object.fromEntries(other.filter(name => settings[name] !== undefined).map(name => [name, settings[name]]));
    if (settings.image_strength !== undefined && !settings.mask && !settings.expand) {
      byID("strength").value = settings.image_strength;
      this.showStrength();
    }
    this.inpainting.fill(settings);
    const missing = [settings.image, settings.mask, ...settings.references ?? []].filter(Boolean).map(source => source.path);
    if (missing.length > 0) notes.push(`Add the images it was made from: ${missing.join(", ")}.`);
    if (notUsed.length > 0) notes.push(`Not used: ${notUsed.map(l => `${l.field}: ${l.value}`).join("; ")}.`);
    this.filled();
    this.showModel();
    this.changed();
    byID("prompt").focus();
    this.say(["Settings filled in.", ...notes].join(" "));
  }
}
