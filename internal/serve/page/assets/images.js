// The boxes for start and reference images.

// readURL returns a file as a data URL.
function readURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

// An ImageBox holds the images of a fieldset, at most limit.
export class ImageBox {
  constructor(fieldset, limit, say) {
    this.fieldset = fieldset;
    this.say = say;
    this.images = []; // {name, data}
    this.list = fieldset.querySelector(".chosen");
    this.setLimit(limit);
    const input = fieldset.querySelector("input[type=file]");
    input.addEventListener("change", async () => {
      await this.add([...input.files]);
      input.value = ""; // the same file can be chosen again
    });
    fieldset.addEventListener("dragover", () => fieldset.classList.add("over"));
    fieldset.addEventListener("dragleave", () => fieldset.classList.remove("over"));
    fieldset.addEventListener("drop", () => fieldset.classList.remove("over"));
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
    this.images = this.images.slice(-this.limit);
    this.show();
  }

  // setLimit sets the largest number of images; the last ones stay.
  setLimit(limit) {
    this.limit = limit;
    this.images = this.images.slice(-limit);
    this.fieldset.querySelector("input[type=file]").multiple = limit > 1;
    this.fieldset.querySelector(".file span").textContent = `Choose, drop or paste ${limit > 1 ? "images" : "an image"}`;
    this.show();
  }

  clear() {
    this.images = [];
    this.show();
  }

  show() {
    this.list.replaceChildren(...this.images.map((image, i) => {
      const item = document.createElement("li");
      const img = document.createElement("img");
      img.src = image.data;
      img.alt = image.name;
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${image.name}`);
      remove.addEventListener("click", () => {
        this.images.splice(i, 1);
        this.show();
        this.fieldset.querySelector("input[type=file]").focus();
      });
      item.append(img, remove);
      return item;
    }));
  }
}
