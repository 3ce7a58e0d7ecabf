// Settings with a name, which the server keeps.

import { call } from "./api.js";
import { row } from "./rows.js";

const byID = id => document.getElementById(id);

// images are the fields of a request that a preset does not have.
const images = ["image", "image_strength", "mask", "references", "expand", "invert_mask", "mask_blur", "mask_crop", "no_paste_back"];

export class Presets {
  constructor(form, say) {
    this.form = form;
    this.say = say;
    byID("open-presets").addEventListener("click", () => this.open());
    byID("close-presets").addEventListener("click", () => byID("presets").close());
    byID("save-preset").addEventListener("submit", event => {
      event.preventDefault();
      this.save();
    });
  }

  fail(text) {
    byID("presets-error").textContent = text;
    byID("presets-error").hidden = text === "";
  }

  async open() {
    byID("presets").showModal();
    await this.show();
  }

  // show lists the presets.
  async show() {
    this.fail("");
    try {
      const { presets } = await call("GET", "presets");
      this.names = presets.map(p => p.name);
      byID("no-presets").hidden = presets.length > 0;
      byID("preset-list").replaceChildren(...presets.map(preset =>
        row(preset.name, preset.settings.prompt ?? "", () => this.use(preset), () => this.remove(preset.name))));
    } catch (error) {
      this.fail(error.status === 404 ? "This server keeps no presets, since it has no gallery." : error.message);
    }
  }

  use({ name, settings }) {
    byID("presets").close();
    this.form.fill({ ...settings, prompt: settings.prompt ?? byID("prompt").value });
    byID("count").value = settings.count ?? 1;
    this.say(`Preset ${name} filled in.`);
  }

  async save() {
    const name = byID("preset-name").value.trim();
    if (name === "") return;
    if (this.names?.includes(name) && !confirm(`Replace the preset ${name}?`)) return;
    const settings = this.form.request();
    for (const field of images) delete settings[field];
    if (settings.prompt === "" || !byID("preset-prompt").checked) delete settings.prompt;
    try {
      await call("PUT", `presets/${encodeURIComponent(name)}`, settings);
    } catch (error) {
      this.fail(error.message);
      return;
    }
    byID("preset-name").value = "";
    await this.show();
    this.say(`Preset ${name} saved.`);
  }

  async remove(name) {
    if (!confirm(`Delete the preset ${name}?`)) return;
    try {
      await call("DELETE", `presets/${encodeURIComponent(name)}`);
    } catch (error) {
      if (error.status !== 404) {
        this.fail(error.message);
        return;
      }
    }
    await this.show();
    byID("preset-name").focus();
  }
}
