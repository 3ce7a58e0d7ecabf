// Lines of the list of what is under way: jobs and downloads.

const template = document.getElementById("job-template");

export const ended = state => ["done", "failed", "canceled"].includes(state);

// An Item is a line, with a state, a bar and a button that cancels.
export class Item {
  // cancel sends the request that cancels, and fail shows its error.
  constructor(list, title, cancel, fail) {
    this.element = template.content.firstElementChild.cloneNode(true);
    this.part(".prompt").textContent = title;
    const button = this.part(".cancel");
    button.setAttribute("aria-label", `Cancel ${title.slice(0, 80)}`);
    button.addEventListener("click", async () => {
      if (button.ariaDisabled === "true") return;
      button.ariaDisabled = "true"; // and not disabled, which would lose the focus
      try {
        await cancel();
      } catch (error) {
        button.ariaDisabled = "false";
        fail(error.message);
      }
    });
    list.append(this.element);
    update();
  }

  part(selector) {
    return this.element.querySelector(selector);
  }

  // show shows a state and how much is done, from 0 to 1 or undefined.
  show(text, done) {
    this.part(".state").textContent = text;
    if (done === undefined) {
      this.part("progress").removeAttribute("value");
    } else {
      this.part("progress").value = done;
    }
  }

  remove() {
    const focused = this.element.contains(document.activeElement);
    this.element.remove();
    update();
    if (focused) document.getElementById("generate").focus();
  }
}

// update shows whether nothing is under way.
export function update() {
  document.getElementById("no-jobs").hidden = document.querySelector(".job, .grid .cancel:not([hidden])") !== null;
}
