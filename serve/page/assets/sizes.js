// Sizes by their ratio, as many pixels as the model is made for.

const byID = id => document.getElementById(id);
const anyMultiple = 16; // of models that do not tell theirs

// sizeOf returns the width and height of a ratio that a model takes, with at most the pixels of its
// default size and of the server.
export function sizeOf(ratio, model, maxPixels) {
  const multiple = model.size_multiple ?? anyMultiple;
  const pixels = Math.min(model.defaults.width * model.defaults.height, maxPixels);
  let best;
  for (let height = multiple; height * multiple <= pixels; height += multiple) {
    for (const round of [Math.floor, Math.ceil]) {
      const width = multiple * round(height * ratio / multiple);
      if (width < multiple || width * height > pixels) continue;
      const off = 8 * Math.abs(Math.log(width / height / ratio)) + Math.log(pixels / (width * height));
      if (!best || off < best.off) best = { width, height, off };
    }
  }
  return best;
}

export class Sizes {
  constructor(form) {
    this.form = form;
    byID("ratio").addEventListener("change", () => this.choose());
    byID("swap").addEventListener("click", () => this.swap());
    for (const name of ["width", "height"]) byID(name).addEventListener("input", () => this.show());
  }

  size(value) {
    const [w, h] = value.split(":").map(Number);
    const model = this.form.model();
    return model?.defaults.width ? sizeOf(w / h, model, this.form.maxPixels ?? Infinity) : undefined;
  }

  choose() {
    const { value } = byID("ratio");
    if (value === "own") return;
    const size = value === "" ? undefined : this.size(value);
    byID("width").value = size?.width ?? "";
    byID("height").value = size?.height ?? "";
    byID("width").dispatchEvent(new Event("input", { bubbles: true }));
  }

  swap() {
    const defaults = this.form.model()?.defaults ?? {};
    const width = byID("width").value || defaults.width;
    byID("width").value = byID("height").value || defaults.height || "";
    byID("height").value = width || "";
    byID("width").dispatchEvent(new Event("input", { bubbles: true }));
  }

  // show shows the ratio of the fields.
  show() {
    const [width, height] = [byID("width").value, byID("height").value];
    const fits = option => {
      const size = option.value.includes(":") && this.size(option.value);
      return size && String(size.width) === width && String(size.height) === height;
    };
    byID("ratio").value = width === "" && height === "" ? "" : [...byID("ratio").options].find(fits)?.value ?? "own";
  }
}
