// The boxes for images: the start image, its mask, and reference images.

import { load } from "./settings.js";

// pictureType is the type of what is dragged from the gallery: {url, name} as JSON.
export const pictureType = "application/x-gomflux-picture";

// readURL returns a file or a blob, which has no name, as a data URL.
export function readURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name ?? "the image"} cannot be read`));
    reader.readAsDataURL(file);
  });
}

// loadImage returns an <img> of an image of a box.
export async function loadImage({ name, data }) {
  const img = new Image();
  img.src = data;
  try {
    await img.decode();
  } catch {
    throw new Error(`this browser cannot show ${name}`);
  }
  return img;
}

// An ImageBox holds the images of a fieldset, at most limit.
export class ImageBox {
  constructor(fieldset, limit, say) {
    this.fieldset = fieldset;
    this.say = say;
    this.changed = () => {}; // is called when there are other images
    this.images = []; // {name, data}
    this.list = fieldset.querySelector(".chosen");
    const input = this.input = fieldset.querySelector("input[type=file]");
    this.setLimit(limit);
    input.addEventListener("change", async () => {
      await this.add([...input.files]);
      input.value = ""; // the same file can be chosen again
    });
    fieldset.addEventListener("dragover", event => {
      fieldset.classList.add("over");
      if (event.dataTransfer.types.includes(pictureType)) event.preventDefault();
    });
    fieldset.addEventListener("dragleave", () => fieldset.classList.remove("over"));
    fieldset.addEventListener("drop", event => {
      fieldset.classList.remove("over");
      const dragged = event.dataTransfer.getData(pictureType);
      if (dragged === "") return;
      event.preventDefault();
      event.stopPropagation(); // the page takes files
      this.fetch(JSON.parse(dragged));
    });
  }

  // fetch adds an image of the server.
  async fetch({ url, name }) {
    try {
      await this.add([await load(url, name)]);
    } catch (error) {
      this.say(error.message);
    }
  }

  // add adds files; the last ones stay.
  async add(files) {
    for (const file of files) {
      if (!file.type.startsWith("image/")) {
        this.say(`${file.name} is not an image`);
        continue;
      }
      this.images.push({ name: file.name, data: await readURL(file) });
      this.say(`${file.name} added`);
    }
    this.set(this.images.slice(-this.limit));
  }

  // set replaces the images.
  set(images) {
    this.images = images;
    this.show();
    this.changed();
    this.fieldset.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // setLimit sets the largest number of images; the last ones stay.
  setLimit(limit) {
    this.limit = limit;
    this.input.multiple = limit > 1;
    const label = this.fieldset.querySelector(".file span");
    label.textContent = this.fieldset.dataset.choose ?? `Choose, drop or paste ${limit > 1 ? "images" : "an image"}`;
    this.set(this.images.slice(-limit));
  }

  clear() {
    this.set([]);
  }

  show() {
    this.list.replaceChildren(...this.images.map(image => {
      const item = document.createElement("li");
      const img = document.createElement("img");
      img.src = image.data;
      img.alt = image.name;
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${image.name}`);
      remove.addEventListener("click", () => {
        this.set(this.images.filter(other => other !== image));
        this.input.focus();
      });
      item.append(img, remove);
      return item;
    }));
  }
}
