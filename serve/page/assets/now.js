// The job that runs, next to Generate and in the title of the tab.

const box = document.getElementById("now");
const part = selector => box.querySelector(selector);

export class Now {
  constructor() {
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.id === undefined) document.title = "gomflux";
    });
  }

  // show shows the progress of a job, if it is the one that runs.
  show(id, state, text, done) {
    if (!["loading", "writing", "running"].includes(state)) {
      if (this.id === undefined && state === "queued") document.title = "Waiting · gomflux";
      return;
    }
    if (this.id !== id) part("img").hidden = true;
    this.id = id;
    box.hidden = false;
    part("p").textContent = text;
    if (done === undefined) part("progress").removeAttribute("value");
    else part("progress").value = done;
    document.title = done === undefined ? "Loading · gomflux" : `${Math.round(100 * done)} % · gomflux`;
  }

  preview(src) {
    part("img").src = src;
    part("img").hidden = false;
  }

  // ended forgets a job. left is how many are under way.
  ended(id, left) {
    if (this.id === id) {
      this.id = undefined;
      box.hidden = true;
    }
    if (this.id === undefined) document.title = left > 0 ? "Waiting · gomflux" : document.hidden ? "Done · gomflux" : "gomflux";
  }
}
