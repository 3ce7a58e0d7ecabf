// Boxes: places for elements of the image, which a language model writes into the prompt.

const byID = id => document.getElementById(id);
const least = .02; // of a side, for a drag that is no click

export class Boxes {
  constructor(form) {
    this.form = form;
    this.list = []; // {area, desc}: the area is y_min, x_min, y_max and x_max, from 0 to 1
    const frame = byID("boxes-frame");
    frame.addEventListener("pointerdown", event => this.drag(event));
    byID("add-box").addEventListener("click", () => this.add([.25, .25, .75, .75]));
    byID("form").addEventListener("reset", () => this.clear());
    for (const name of ["width", "height", "ratio", "swap"]) {
      for (const type of ["input", "change", "click"]) byID(name).addEventListener(type, () => setTimeout(() => this.show()));
    }
  }

  // show shows the frame for models with boxes, in the proportions of the image.
  show() {
    const model = this.form.model();
    byID("boxes").hidden = !model?.boxes;
    const side = name => Number(byID(name).value) || model?.defaults[name] || 1;
    byID("boxes-frame").style.aspectRatio = `${side("width")} / ${side("height")}`;
  }

  clear() {
    this.list = [];
    byID("boxes-frame").replaceChildren();
    byID("boxes-list").replaceChildren();
  }

  at(event) {
    const frame = byID("boxes-frame").getBoundingClientRect();
    const within = (v, size) => Math.round(1000 * Math.min(1, Math.max(0, v / size))) / 1000;
    return [within(event.clientY - frame.top, frame.height), within(event.clientX - frame.left, frame.width)];
  }

  drag(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    const frame = byID("boxes-frame"), start = this.at(event);
    frame.setPointerCapture(event.pointerId);
    const shape = document.createElement("div");
    frame.append(shape);
    let area;
    const move = e => {
      const now = this.at(e);
      area = [Math.min(start[0], now[0]), Math.min(start[1], now[1]), Math.max(start[0], now[0]), Math.max(start[1], now[1])];
      this.place(shape, area);
    };
    const end = e => {
      for (const [type, f] of Object.entries(listeners)) frame.removeEventListener(type, f);
      shape.remove();
      if (e.type === "pointerup" && area && area[2] - area[0] > least && area[3] - area[1] > least) this.add(area);
    };
    const listeners = { pointermove: move, pointerup: end, pointercancel: end };
    for (const [type, f] of Object.entries(listeners)) frame.addEventListener(type, f);
  }

  place(shape, [top, left, bottom, right]) {
    Object.assign(shape.style, { top: `${100 * top}%`, left: `${100 * left}%`,
      height: `${100 * (bottom - top)}%`, width: `${100 * (right - left)}%` });
  }

  add(area) {
    const box = { area, desc: "" };
    this.list.push(box);
    const shape = document.createElement("div"), row = document.createElement("li");
    this.place(shape, area);
    byID("boxes-frame").append(shape);
    const desc = document.createElement("input"), remove = document.createElement("button");
    desc.placeholder = "what it is";
    desc.setAttribute("aria-label", "What is in the box");
    desc.addEventListener("input", () => { shape.textContent = box.desc = desc.value; });
    remove.type = "button";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", "Remove the box");
    remove.addEventListener("click", () => {
      this.list.splice(this.list.indexOf(box), 1);
      shape.remove();
      row.remove();
      byID("add-box").focus();
    });
    row.append(desc, remove);
    byID("boxes-list").append(row);
    desc.focus();
  }

  // fields returns the boxes of a request, none for a model without them. In an edit their elements are new ones.
  fields(edit) {
    if (byID("boxes").hidden || this.list.length === 0) return {};
    return { boxes: this.list.map(({ area, desc }) => edit ? { desc, from: "target", tgt_bbox: area } : { desc, bbox: area }) };
  }
}
