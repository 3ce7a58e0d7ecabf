// Grids: a job for each pair of values of two settings, shown as a labelled table.

import { call } from "./api.js";
import { drawGrid } from "./gridfile.js";
import { update } from "./item.js";

const byID = id => document.getElementById(id);
const most = 64; // images
const pause = 2000; // ms until a job is sent again that the queue had no room for
const shown = 120; // characters of a label

// expand returns the values of a text: a prompt for each line, and numbers and ranges of them.
function expand(field, text) {
  if (field === "prompt") return text.split("\n").map(line => line.trim()).filter(Boolean);
  const values = [];
  for (const part of text.split(/[\s,;]+/).filter(Boolean)) {
    const range = /^(\d+)-(\d+)$/.exec(part);
    if (range && field !== "guidance") {
      const [from, to] = [BigInt(range[1]), BigInt(range[2])];
      for (let n = from; n <= to && values.length <= most; n++) values.push(String(n));
    } else if (field === "guidance" ? Number.isFinite(Number(part)) : /^\d+$/.test(part)) {
      values.push(part);
    } else {
      throw new Error(`Grid: “${part}” is not ${field === "guidance" ? "a number" : "a whole number or a range such as 1-4"}.`);
    }
  }
  return values;
}

// axis returns the setting and the values of an axis of the form, or null.
function axis(name) {
  const field = byID(`grid-${name}`).value;
  if (field === "") return null;
  const values = expand(field, byID(`grid-${name}-values`).value);
  if (values.length === 0) throw new Error(`Grid: the ${name === "x" ? "columns" : "rows"} have no values.`);
  return { field, values };
}

// requests returns the bodies of the form's grid, or null if it is not in use.
export function requests(body) {
  const x = axis("x"), y = axis("y");
  if (!x && !y) return null;
  if (x?.field === y?.field) throw new Error("Grid: columns and rows have the same setting.");
  const [columns, rows] = [x?.values ?? [null], y?.values ?? [null]];
  if (columns.length * rows.length > most) {
    throw new Error(`Grid: ${columns.length} times ${rows.length} images, expected at most ${most}.`);
  }
  const id = crypto.getRandomValues(new Uint32Array(2)).join("");
  const seed = body.seed ?? String(crypto.getRandomValues(new Uint32Array(1))[0]); // of all images
  const label = (a, value) => a ? (a.field === "prompt" ? value : `${a.field} ${value}`).slice(0, shown) : "";
  const all = [];
  rows.forEach((row, j) => columns.forEach((column, i) => {
    const one = { ...body, seed, count: 1 };
    for (const [a, value] of [[x, column], [y, row]]) {
      if (a) one[a.field] = a.field === "steps" || a.field === "guidance" ? Number(value) : value;
    }
    const size = [columns.length, rows.length];
    one.label = JSON.stringify({ grid: id, at: [i, j], size, x: label(x, column), y: label(y, row) });
    all.push(one);
  }));
  return all;
}

// place returns what a job's label says of a grid, or null.
function place(job) {
  try {
    const p = JSON.parse(job.label);
    const whole = [...p.at, ...p.size].every(Number.isInteger);
    return whole && p.grid && p.size[0] * p.size[1] <= most && p.at.every((n, k) => n >= 0 && n < p.size[k]) ? p : null;
  } catch {
    return null;
  }
}

// A Cell is a place in a grid, in the role of an Item.
class Cell {
  constructor(grid, element, job, cancel) {
    Object.assign(this, { grid, element, cancel, state: job.state });
  }

  part(selector) {
    return this.element.querySelector(selector);
  }

  show(text) {
    this.part(".state").textContent = text;
  }

  finished(picture) {
    this.picture = picture;
    const img = this.part(".preview");
    img.src = picture.url;
    img.alt = `${this.grid.columns[this.at[0]]} ${this.grid.rows[this.at[1]]}`.trim() || "Image";
    img.width = picture.settings?.width ?? 512;
    img.height = picture.settings?.height ?? 512;
    img.hidden = false;
    this.part("a").href = picture.url;
  }

  remove() {
    this.over = true;
    this.part(".state").textContent = this.picture ? "" : "No image";
    this.grid.update();
  }
}

export class Grids {
  constructor(say, fail) {
    this.say = say;
    this.fail = fail;
    this.grids = new Map();
    this.pending = JSON.parse(sessionStorage.getItem("pending") ?? "[]"); // requests that are not sent yet
    this.closed = JSON.parse(localStorage.getItem("closed-grids") ?? "[]");
    this.tabs = new BroadcastChannel("gomflux-grids");
    this.tabs.addEventListener("message", ({ data }) => this.drop(data)); // canceled in another tab
  }

  has(job) {
    const p = place(job);
    return p !== null && !this.closed.includes(p.grid);
  }

  // cell returns the place of a job, or null if it is in no grid.
  cell(job, cancel) {
    const p = place(job);
    if (!p || this.closed.includes(p.grid)) return null;
    const grid = this.grids.get(p.grid) ?? this.add(p);
    grid.columns[p.at[0]] = grid.head(0, p.at[0], p.x);
    grid.rows[p.at[1]] = grid.head(1, p.at[1], p.y);
    const cell = new Cell(grid, grid.table.rows[p.at[1] + 1].cells[p.at[0] + 1], job, cancel);
    cell.at = p.at;
    grid.cells.set(p.at.join(), cell);
    grid.update();
    return cell;
  }

  add(p) {
    const grid = new Grid(p, this);
    this.grids.set(p.grid, grid);
    return grid;
  }

  // send sends requests one after the other, each when the queue has room.
  async send(bodies, added) {
    this.pending.push(...bodies);
    this.keep();
    if (this.sending) return;
    this.sending = true;
    while (this.pending.length > 0) {
      const body = this.pending[0];
      if (this.sent(place(body))) { // before the page was loaded again
        this.pending.shift();
        this.keep();
        continue;
      }
      try {
        const job = await call("POST", "jobs", body);
        if (this.pending[0] !== body) await call("DELETE", `jobs/${job.id}`); // canceled meanwhile
        else added(job);
      } catch (error) {
        if (error.status === 429 || !error.status) {
          await new Promise(resolve => { setTimeout(resolve, pause); });
          continue;
        }
        this.fail(error.message);
        this.drop(place(body).grid);
        continue;
      }
      if (this.pending[0] === body) this.pending.shift();
      this.keep();
    }
    this.sending = false;
  }

  sent({ grid, at }) {
    return this.grids.get(grid)?.cells.has(at.join());
  }

  // drop forgets what is not sent yet of a grid.
  drop(id) {
    this.pending = this.pending.filter(body => place(body).grid !== id);
    this.keep();
  }

  // keep stores what is not sent yet. The last job of a grid may end before the answer that it was sent.
  keep() {
    for (const grid of this.grids.values()) grid.update();
    try {
      sessionStorage.setItem("pending", JSON.stringify(this.pending));
    } catch {
      // images may be too large: then a page that is loaded again has sent a part of the grid
    }
  }
}

// A Grid is a table with its buttons.
class Grid {
  constructor(p, grids) {
    this.id = p.grid;
    this.grids = grids;
    this.columns = [];
    this.rows = [];
    this.cells = new Map(); // by column and row
    this.total = p.size[0] * p.size[1];
    this.element = byID("grid-template").content.firstElementChild.cloneNode(true);
    this.table = this.part("table");
    for (let j = -1; j < p.size[1]; j++) {
      const line = this.table.insertRow();
      for (let i = -1; i < p.size[0]; i++) {
        if (i >= 0 && j >= 0) line.append(byID("cell-template").content.firstElementChild.cloneNode(true));
        else line.append(document.createElement("td"));
      }
    }
    this.part(".cancel").addEventListener("click", () => this.cancel());
    this.part(".save").addEventListener("click", () => this.save());
    this.part(".close").addEventListener("click", () => this.close());
    byID("grids").prepend(this.element);
  }

  part(selector) {
    return this.element.querySelector(selector);
  }

  head(direction, index, text) {
    const cell = direction === 0 ? this.table.rows[0].cells[index + 1] : this.table.rows[index + 1].cells[0];
    if (text === "" || cell.tagName === "TH") return text;
    const head = document.createElement("th");
    head.textContent = text;
    head.scope = direction === 0 ? "col" : "row";
    cell.replaceWith(head);
    return text;
  }

  update() {
    const cells = [...this.cells.values()];
    const done = cells.filter(cell => cell.picture).length;
    const waits = cells.some(cell => !cell.over) || this.grids.pending.some(body => place(body).grid === this.id);
    this.part(".title").textContent = `Grid: ${done} of ${this.total} images`;
    this.part(".cancel").hidden = !waits;
    this.part(".save").hidden = this.part(".close").hidden = waits;
    this.part(".save").disabled = done === 0;
    update();
  }

  async cancel() {
    const focused = this.element.contains(document.activeElement);
    this.grids.drop(this.id);
    this.grids.tabs.postMessage(this.id);
    const jobs = [...this.cells.values()].filter(cell => !cell.over).map(cell => cell.cancel());
    for (const result of await Promise.allSettled(jobs)) {
      if (result.status === "rejected" && result.reason.status !== 404) this.grids.fail(result.reason.message);
    }
    if (focused) byID("generate").focus();
  }

  async save() {
    try {
      await drawGrid(this);
    } catch (error) {
      this.grids.fail(error.message);
    }
  }

  close() {
    this.element.remove();
    this.grids.grids.delete(this.id);
    this.grids.closed = [this.id, ...this.grids.closed].slice(0, 100);
    localStorage.setItem("closed-grids", JSON.stringify(this.grids.closed));
    byID("generate").focus();
  }
}
