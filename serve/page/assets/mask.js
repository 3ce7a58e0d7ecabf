// The mask of a photo: a byte for each pixel, 255 where it is painted and 0 elsewhere.

const on = 255;

// historyBytes limits the memory of what can be undone.
const historyBytes = 128 << 20;

export class Mask {
  // changed is called with each rectangle {x, y, width, height} that may look different.
  constructor(width, height, changed) {
    this.width = width;
    this.height = height;
    this.changed = changed;
    this.data = new Uint8Array(width * height);
    this.before = null; // the pixels before the change that is being made
    this.done = []; // changes, each with its rectangle and the pixels that it replaced
    this.undone = [];
  }

  // count returns the number of painted pixels.
  count() {
    let n = 0;
    for (const v of this.data) n += v;
    return n / on;
  }

  // begin begins a change, to which the next calls of line belong.
  begin() {
    this.before = this.data.slice();
    this.touched = null;
  }

  // commit ends a change, so that undo undoes it.
  commit() {
    const before = this.before;
    this.before = null;
    if (!this.touched) return;
    const change = { ...this.touched, pixels: cut(before, this.width, this.touched) };
    this.done.push(change);
    this.undone = [];
    let bytes = 0;
    const oldest = this.done.findLastIndex(c => (bytes += c.pixels.length) > historyBytes && c !== change);
    this.done.splice(0, oldest + 1);
  }

  // cancel takes back a change that has not ended.
  cancel() {
    if (!this.before) return;
    this.data = this.before;
    this.before = null;
    if (this.touched) this.changed(this.touched);
  }

  // line sets all pixels whose centres are within radius of a line, a point if both ends are the same.
  line(from, to, radius, paint) {
    const left = Math.max(0, Math.floor(Math.min(from.x, to.x) - radius));
    const top = Math.max(0, Math.floor(Math.min(from.y, to.y) - radius));
    const right = Math.min(this.width, Math.ceil(Math.max(from.x, to.x) + radius));
    const bottom = Math.min(this.height, Math.ceil(Math.max(from.y, to.y) + radius));
    if (left >= right || top >= bottom) return;
    const value = paint ? on : 0;
    const dx = to.x - from.x;
    const dy = to.y - from.y;
    const square = dx * dx + dy * dy;
    for (let y = top; y < bottom; y++) {
      const py = y + 0.5 - from.y;
      for (let x = left; x < right; x++) {
        const px = x + 0.5 - from.x;
        const along = square === 0 ? 0 : Math.min(1, Math.max(0, (px * dx + py * dy) / square));
        const ex = px - along * dx;
        const ey = py - along * dy;
        if (ex * ex + ey * ey <= radius * radius) this.data[y * this.width + x] = value;
      }
    }
    this.touch({ x: left, y: top, width: right - left, height: bottom - top });
  }

  // flood paints the unpainted area around a pixel, as far as painted ones. It reports whether there
  // was one.
  flood(x, y) {
    const { width, height, data } = this;
    const open = (px, py) => px >= 0 && px < width && py >= 0 && py < height && data[py * width + px] === 0;
    if (!open(x, y)) return false;
    this.begin();
    const todo = [x, y]; // pairs
    while (todo.length > 0) {
      const py = todo.pop();
      let px = todo.pop();
      if (!open(px, py)) continue;
      while (open(px - 1, py)) px--;
      for (let above = false, below = false; open(px, py); px++) {
        data[py * width + px] = on;
        if (open(px, py - 1) !== above && (above = !above)) todo.push(px, py - 1);
        if (open(px, py + 1) !== below && (below = !below)) todo.push(px, py + 1);
      }
    }
    this.touchAll();
    this.commit();
    return true;
  }

  // replace sets each pixel to what a function of its index returns, painted or not.
  replace(painted) {
    this.begin();
    for (let i = 0; i < this.data.length; i++) this.data[i] = painted(i) ? on : 0;
    this.touchAll();
    this.commit();
  }

  invert() {
    this.replace(i => this.data[i] === 0);
  }

  undo() {
    this.swap(this.done, this.undone);
  }

  redo() {
    this.swap(this.undone, this.done);
  }

  // swap exchanges the pixels of the last change of a list with the mask's, and moves it to the other.
  swap(from, to) {
    const change = from.pop();
    if (!change) return;
    const pixels = cut(this.data, this.width, change);
    for (let row = 0; row < change.height; row++) {
      const line = change.pixels.subarray(row * change.width, (row + 1) * change.width);
      this.data.set(line, (change.y + row) * this.width + change.x);
    }
    to.push({ ...change, pixels });
    this.changed(change);
  }

  touchAll() {
    this.touch({ x: 0, y: 0, width: this.width, height: this.height });
  }

  touch(r) {
    this.touched = this.touched ? union(this.touched, r) : r;
    this.changed(r);
  }
}

// union returns the smallest rectangle with two others.
function union(a, b) {
  const x = Math.min(a.x, b.x);
  const y = Math.min(a.y, b.y);
  const right = Math.max(a.x + a.width, b.x + b.width);
  const bottom = Math.max(a.y + a.height, b.y + b.height);
  return { x, y, width: right - x, height: bottom - y };
}

// cut returns the pixels of a rectangle.
function cut(data, width, r) {
  const out = new Uint8Array(r.width * r.height);
  for (let row = 0; row < r.height; row++) {
    const start = (r.y + row) * width + r.x;
    out.set(data.subarray(start, start + r.width), row * r.width);
  }
  return out;
}
