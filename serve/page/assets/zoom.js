// Zooming and moving what is seen in an element: with a mouse, its wheel, pens, fingers and functions.

const largest = 16;
const swipe = 60; // pixels that a finger moves to the next image

export class Zoom {
  // changed is called with the zoom after each change, and swiped with 1 or -1 for a finger that moves
  // to the next or previous image.
  constructor(element, changed, swiped) {
    this.element = element;
    this.changed = changed;
    this.swiped = swiped;
    this.points = new Map(); // of the screen, by the ids of fingers
    element.addEventListener("wheel", event => {
      event.preventDefault();
      this.by(2 ** (-Math.sign(event.deltaY) / 4), event.clientX, event.clientY);
    }, { passive: false });
    element.addEventListener("pointerdown", event => {
      if (event.button !== 0) return;
      element.setPointerCapture(event.pointerId);
      if (this.points.size === 0) this.from = { x: event.clientX, y: event.clientY };
      else this.from = null; // two fingers
      this.points.set(event.pointerId, { x: event.clientX, y: event.clientY });
    });
    element.addEventListener("pointermove", event => this.move(event));
    element.addEventListener("pointerup", event => {
      const { from } = this;
      if (!this.points.delete(event.pointerId) || !from || event.pointerType !== "touch" || this.zoom > 1) return;
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (Math.abs(dx) > swipe && Math.abs(dx) > 2 * Math.abs(dy)) this.swiped(-Math.sign(dx));
    });
    element.addEventListener("pointercancel", event => this.points.delete(event.pointerId));
    element.addEventListener("dblclick", event => {
      if (this.zoom > 1) this.reset();
      else this.by(2, event.clientX, event.clientY);
    });
    new ResizeObserver(() => this.show()).observe(element);
    this.reset();
  }

  reset() {
    this.zoom = 1;
    this.x = this.y = 0;
    this.show();
  }

  // by zooms by a factor. What is at a point of the screen, by default the middle, stays there.
  by(factor, x, y) {
    const pane = this.pane(x, y);
    const dx = (x ?? pane.x + pane.width / 2) - pane.x - pane.width / 2;
    const dy = (y ?? pane.y + pane.height / 2) - pane.y - pane.height / 2;
    const before = this.zoom;
    this.zoom = Math.min(largest, Math.max(1, this.zoom * factor));
    this.x = dx - (dx - this.x) * this.zoom / before;
    this.y = dy - (dy - this.y) * this.zoom / before;
    this.show();
  }

  // pane returns the place of the image at a point of the screen: there may be two.
  pane(x, y) {
    const boxes = [...this.element.children].map(pane => pane.getBoundingClientRect()).filter(box => box.width > 0);
    return boxes.find(box => x >= box.left && x < box.right && y >= box.top && y < box.bottom) ?? boxes[0] ??
      this.element.getBoundingClientRect();
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.show();
  }

  move(event) {
    const before = this.points.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    const other = [...this.points].find(([id]) => id !== event.pointerId)?.[1];
    this.points.set(event.pointerId, now);
    const share = other ? 2 : 1; // two fingers move their middle
    this.pan((now.x - before.x) / share, (now.y - before.y) / share);
    if (!other) return;
    const apart = point => Math.max(1, Math.hypot(point.x - other.x, point.y - other.y));
    this.by(apart(now) / apart(before), (now.x + other.x) / 2, (now.y + other.y) / 2);
  }

  // show places all images alike, and keeps them in sight.
  show() {
    const pane = this.pane();
    const within = (v, size) => Math.max(-size, Math.min(size, v)) || 0;
    this.x = within(this.x, (this.zoom - 1) * pane.width / 2);
    this.y = within(this.y, (this.zoom - 1) * pane.height / 2);
    for (const img of this.element.querySelectorAll("img")) {
      img.style.transform = `translate(${this.x}px, ${this.y}px) scale(${this.zoom})`;
    }
    this.element.classList.toggle("zoomed", this.zoom > 1);
    this.changed(this.zoom);
  }
}
