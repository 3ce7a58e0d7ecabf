// Where a photo is shown that is painted on: its size on the screen, and the mouse, pens and fingers.

const byID = id => document.getElementById(id);
const stage = byID("stage");
const layers = byID("layers");
const canvas = byID("painter-mask");
const brush = byID("brush");
const slider = byID("zoom");

const largest = 64; // pixels of the screen for one of the photo
const pixelated = 3; // from here on pixels are shown as squares

export class Stage {
  constructor() {
    this.touches = new Map(); // points of the screen by the ids of fingers
    new ResizeObserver(() => this.layout()).observe(stage);
    slider.addEventListener("input", () => this.setZoom(2 ** Number(slider.value)));
  }

  // show shows a photo of some size as large as there is room.
  show(width, height) {
    this.width = width;
    this.height = height;
    this.zoom = 1;
    this.touches.clear();
    this.moving = false;
    this.stroke = null; // the pointer that paints
    this.layout();
    stage.scrollTo(0, 0);
  }

  // fit returns the scale at which the whole photo is seen.
  fit() {
    const edge = 4; // and not the inner size, which changes with scroll bars
    return Math.min((stage.offsetWidth - edge) / this.width, (stage.offsetHeight - edge) / this.height, largest);
  }

  scale() {
    return this.zoom * this.fit();
  }

  // layout sets the size of the photo on the screen.
  layout() {
    if (stage.offsetWidth === 0) return; // it is not seen
    slider.max = Math.max(3, Math.ceil(Math.log2(8 / this.fit())));
    slider.value = Math.log2(this.zoom);
    byID("zoom-value").value = slider.ariaValueText = `${Math.round(100 * this.zoom)} %`;
    layers.style.width = `${this.scale() * this.width}px`;
    layers.style.height = `${this.scale() * this.height}px`;
    layers.classList.toggle("pixelated", this.scale() >= pixelated);
    this.handlers?.zoomed();
  }

  // setZoom sets the zoom. What was at one point of the screen, by default its middle, is at another
  // afterwards, by default the same.
  setZoom(zoom, from, to) {
    const box = stage.getBoundingClientRect();
    from ??= { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    to ??= from;
    const point = this.point(from.x, from.y);
    this.zoom = Math.min(2 ** Number(slider.max), Math.max(1, zoom));
    this.layout();
    const now = layers.getBoundingClientRect();
    stage.scrollBy(now.x + point.x * this.scale() - to.x, now.y + point.y * this.scale() - to.y);
  }

  // step zooms in or out by a step, to a point of the photo.
  step(direction, point) {
    this.setZoom(this.zoom * 2 ** (direction / 2), this.screen(point));
    this.reveal(point);
  }

  // point returns the point of the photo at one of the screen.
  point(x, y) {
    const box = layers.getBoundingClientRect();
    return { x: (x - box.x) / box.width * this.width, y: (y - box.y) / box.height * this.height };
  }

  // screen returns the point of the screen at one of the photo.
  screen({ x, y }) {
    const box = layers.getBoundingClientRect();
    return { x: box.x + x * this.scale(), y: box.y + y * this.scale() };
  }

  // reveal scrolls to a point of the photo.
  reveal(point) {
    const box = stage.getBoundingClientRect();
    const { x, y } = this.screen(point);
    const beyond = (v, from, to) => Math.min(0, v - from - 20) + Math.max(0, v - to + 20);
    stage.scrollBy(beyond(x, box.left, box.right), beyond(y, box.top, box.bottom));
  }

  // showBrush shows the brush at a point of the photo.
  showBrush({ x, y }, radius) {
    const size = Math.max(4, 2 * radius * this.scale());
    brush.style.width = brush.style.height = `${size}px`;
    brush.style.left = `${x * this.scale() - size / 2}px`;
    brush.style.top = `${y * this.scale() - size / 2}px`;
  }

  // listen calls handlers: begin, move, end and cancel with strokes, whose points are the centres of
  // pixels, and hover with the point below the mouse, or null. Two fingers move and zoom the photo.
  listen(handlers) {
    this.handlers = handlers;
    const centre = event => {
      const { x, y } = this.point(event.clientX, event.clientY);
      return { x: Math.floor(x) + 0.5, y: Math.floor(y) + 0.5 };
    };
    canvas.addEventListener("pointerdown", event => {
      if (event.pointerType === "touch") this.touches.set(event.pointerId, { x: event.clientX, y: event.clientY });
      canvas.setPointerCapture(event.pointerId);
      if (this.touches.size > 1) {
        this.moving = true;
        this.stroke = null;
        handlers.cancel();
      } else if (!this.moving && this.stroke == null && (event.button === 0 || event.button === 5)) {
        this.stroke = event.pointerId;
        handlers.begin(centre(event), event);
        handlers.hover(centre(event));
      }
    });
    canvas.addEventListener("pointermove", event => {
      if (this.moving) {
        this.pinch(event);
        return;
      }
      if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (event.pointerId === this.stroke) {
        const all = event.getCoalescedEvents?.() ?? [];
        handlers.move((all.length > 0 ? all : [event]).map(centre));
      }
      handlers.hover(centre(event));
    });
    const up = end => event => {
      this.touches.delete(event.pointerId);
      if (this.touches.size === 0) this.moving = false;
      if (event.pointerId !== this.stroke) return;
      this.stroke = null;
      end();
    };
    canvas.addEventListener("pointerup", up(handlers.end));
    canvas.addEventListener("pointercancel", up(handlers.cancel));
    canvas.addEventListener("pointerleave", () => handlers.hover(null));
    canvas.addEventListener("contextmenu", event => event.preventDefault()); // fingers that stay in a place open it
  }

  // pinch moves and zooms the photo with two fingers.
  pinch(event) {
    if (!this.touches.has(event.pointerId)) return;
    const before = spread(this.touches);
    this.touches.set(event.pointerId, { x: event.clientX, y: event.clientY });
    const after = spread(this.touches);
    if (this.touches.size < 2) return; // the last finger of two
    this.setZoom(this.zoom * after.distance / Math.max(1, before.distance), before, after);
  }
}

// spread returns the middle of the first two fingers, and their distance.
function spread(touches) {
  const [a, b = a] = touches.values();
  return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, distance: Math.hypot(a.x - b.x, a.y - b.y) };
}
