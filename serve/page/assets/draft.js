// What is in the form, kept by the browser: for this tab, and for the next one that is opened.

const key = "draft";
const week = 7 * 24 * 3600 * 1000;
const delay = 300; // ms after a change

// fields returns the form's fields that are kept.
function fields() {
  return [...document.getElementById("form").elements].filter(f =>
    f.id && f.type !== "file" && ["INPUT", "SELECT", "TEXTAREA"].includes(f.tagName));
}

// result returns the result of a request to the storage of images, which are too large for the other one.
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// opened is that storage; it stays open, since a page that is left has no time to open it.
const opened = new Promise((resolve, reject) => {
  const opening = indexedDB.open("gomflux", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("images");
  result(opening).then(resolve, reject);
});
opened.catch(() => {}); // the user keeps nothing

// images returns the result of a request about images.
async function images(mode, request) {
  const transaction = (await opened).transaction("images", mode);
  const asked = request(transaction.objectStore("images"));
  transaction.commit();
  return result(asked);
}

export class Draft {
  constructor(form) {
    this.form = form;
    this.boxes = { start: form.start, mask: form.inpainting.mask, references: form.references };
    this.shown = {}; // images by box, as they were stored
    this.restore();
    const later = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.save(), delay);
      this.saveImages();
    };
    for (const kind of ["input", "change"]) document.getElementById("form").addEventListener(kind, later);
    addEventListener("pagehide", () => this.save());
    document.addEventListener("visibilitychange", () => this.save());
  }

  save() {
    if (this.restoring) return;
    const values = Object.fromEntries(fields().map(f => [f.id, f.type === "checkbox" ? f.checked : f.value]));
    if (this.form.wanted) values.model = this.form.wanted; // the models are not there yet
    const text = JSON.stringify({ tab: this.tab, values, kept: this.form.kept, loras: this.form.loras() });
    try {
      sessionStorage.setItem(key, text);
      localStorage.setItem(key, text);
    } catch {
      // no room, or the user keeps nothing
    }
    this.saveImages();
  }

  // saveImages stores the images if there are others.
  saveImages() {
    if (this.restoring) return;
    const now = Object.fromEntries(Object.entries(this.boxes).map(([name, box]) => [name, box.images]));
    if (Object.entries(now).every(([name, list]) => list === this.shown[name] || list.length + (this.shown[name]?.length ?? 0) === 0)) return;
    this.shown = now;
    images("readwrite", store => {
      store.put(now, this.tab);
      return store.put(now, "last");
    }).catch(() => {});
  }

  restore() {
    let found;
    try {
      found = JSON.parse(sessionStorage.getItem(key) ?? localStorage.getItem(key));
      this.tab = JSON.parse(sessionStorage.getItem(key))?.tab;
    } catch {
      // there is none
    }
    const images = this.tab ?? "last";
    this.tab ??= Date.now();
    if (!found) return;
    for (const f of fields()) {
      const value = found.values?.[f.id];
      if (value === undefined) continue;
      if (f.type === "checkbox") f.checked = value;
      else f.value = value;
    }
    this.form.wanted = found.values?.model;
    this.form.kept = found.kept ?? {};
    for (const l of found.loras ?? []) this.form.addLoRA(l.path, l.scale);
    this.form.show();
    this.restoring = this.restoreImages(images).catch(() => {}).finally(() => {
      this.restoring = null;
      this.saveImages();
    });
  }

  async restoreImages(from) {
    const found = await images("readonly", store => store.get(from));
    for (const [name, box] of Object.entries(this.boxes)) { // the start image before its mask
      if (found?.[name]?.length > 0 && box.images.length === 0) box.set(found[name]);
      if (from === this.tab) this.shown[name] = box.images;
    }
    await images("readwrite", store => store.delete(IDBKeyRange.upperBound(Date.now() - week))); // of tabs
  }
}
