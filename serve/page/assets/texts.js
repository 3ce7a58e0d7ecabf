// Texts of language models: prompts that they rewrite, and descriptions of images.

import { call, events } from "./api.js";
import { ImageBox } from "./images.js";

const byID = id => document.getElementById(id);
const kinds = ["queued", "position", "loading", "text", "written", "done", "failed", "canceled"];

// A Writing shows a text in a field while it is written. A button starts it, and stops it then.
class Writing {
  constructor(field, button, start, note) {
    this.field = field;
    this.button = button;
    this.note = note;
    this.label = button.textContent;
    button.addEventListener("click", () => this.busy ? this.stop() : start());
  }

  stop() {
    this.stopped = true;
    if (this.id) call("DELETE", `jobs/${this.id}`).catch(() => {}); // it has ended
  }

  // run starts a job, and returns it with its answer, or null if it was stopped, with the field as before.
  async run(path, body) {
    const { field, button } = this;
    const before = field.value;
    let job = null;
    this.stopped = false;
    this.show(true);
    try {
      this.note("Starting.");
      ({ id: this.id } = await call("POST", path, body));
      if (this.stopped) this.stop();
      job = await new Promise((resolve, reject) => this.follow(resolve, reject));
      return job;
    } finally {
      field.value = job?.answer.text ?? before;
      this.id = undefined;
      this.show(false);
      button.focus({ preventScroll: true });
    }
  }

  show(busy) {
    this.busy = busy;
    this.field.readOnly = busy;
    this.field.ariaBusy = String(busy);
    this.button.textContent = busy ? "Stop" : this.label;
  }

  follow(resolve, reject) {
    const { field } = this;
    let text = "";
    let answered = null;
    events(`jobs/${this.id}`, kinds, (kind, job) => {
      switch (kind) {
        case "queued":
        case "position":
          this.note(job.ahead === 0 ? "Next in the queue." : `Waiting, ${job.ahead} before it in the queue.`);
          break;
        case "loading":
          this.note("Loading the language model.");
          break;
        case "text":
          this.note(job.thinking ? "The language model thinks." : "The language model writes.");
          if (job.thinking) break;
          field.value = text += job.text;
          field.scrollTop = field.scrollHeight;
          break;
        case "written":
          answered = job;
          break;
        case "done":
          resolve(answered);
          break;
        case "failed":
          reject(new Error(job.error?.message ?? "the job failed"));
          break;
        case "canceled":
          resolve(null);
      }
    }, () => reject(new Error("the server has lost the job")));
  }
}

export class Texts {
  constructor(form, say, fail) {
    this.form = form;
    this.say = say;
    this.fail = fail;
    this.rewriting = new Writing(byID("prompt"), byID("enhance"), () => this.enhance(), say);
    byID("as-typed").addEventListener("click", () => {
      byID("prompt").value = form.kept.original_prompt ?? byID("prompt").value;
      this.forget();
      form.changed();
      byID("prompt").focus();
      say("The prompt is as you typed it.");
    });
    byID("prompt").addEventListener("input", event => {
      if (byID("prompt").value === "" || !event.inputType) this.forget(); // another prompt
    });
    form.listed = () => this.list();
    form.filled = () => this.showTyped();
    this.showTyped();

    const dialog = byID("describe");
    const state = text => { byID("describe-state").textContent = text; };
    this.box = new ImageBox(byID("describe-image"), 1, state);
    this.describing = new Writing(byID("description"), byID("describe-start"), () => this.answer(), state);
    byID("open-describe").addEventListener("click", () => this.describe(form.start.images[0] ?? form.references.images[0]));
    byID("describe-use").addEventListener("click", () => {
      byID("prompt").value = byID("description").value;
      this.forget();
      form.changed();
      dialog.close();
      byID("prompt").focus();
      say("The description is the prompt now.");
    });
    byID("describe-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      if (this.describing.busy) this.describing.stop();
    });
  }

  // list shows what the models of the server can do.
  list() {
    const usable = this.form.models.filter(m => !m.missing || m.only_writes);
    byID("enhance").hidden = !usable.some(m => m.writes);
    const seeing = usable.filter(m => m.sees).map(m => m.name);
    byID("open-describe").hidden = byID("view-describe").hidden = seeing.length === 0;
    const chosen = [byID("describe-model").value, byID("model").value].find(name => seeing.includes(name));
    byID("describe-model").replaceChildren(...seeing.map(name => new Option(name, name)));
    if (chosen) byID("describe-model").value = chosen;
  }

  forget() {
    delete this.form.kept.original_prompt;
    delete this.form.kept.enhanced_by;
    this.showTyped();
  }

  showTyped() {
    byID("as-typed").hidden = this.form.kept.original_prompt === undefined;
  }

  // enhance lets a language model rewrite the prompt: that of the chosen model, or the first of another one.
  async enhance() {
    const { form } = this;
    const typed = byID("prompt").value;
    const tags = typed.match(/<lora:[^<>]*>/g) ?? []; // which are no words
    this.fail("");
    try {
      if (typed.trim() === "") throw new Error("The prompt is empty: there is nothing to rewrite.");
      const { prompt, model, seed, width, height, references } = form.request();
      const own = form.model()?.writes;
      const enhance = own ? {} : { model: form.models.find(m => m.writes && (!m.missing || m.only_writes)).name };
      const job = await this.rewriting.run("enhance", { prompt, model, seed, width, height, references,
        enhance: { ...enhance, ...form.boxes.fields(references) } });
      if (!job) {
        this.say("The prompt is as you typed it.");
        return;
      }
      const { answer, warnings = [] } = job;
      if (answer.text !== typed) {
        byID("prompt").value = [answer.text, ...tags].join(" ");
        Object.assign(form.kept, { original_prompt: form.kept.original_prompt ?? typed, enhanced_by: answer.model });
      }
      this.showTyped();
      form.changed();
      this.say([`${answer.model} has rewritten the prompt, which you can edit now.`, ...warnings].join(" "));
    } catch (error) {
      this.say("");
      this.fail(error.message);
    }
  }

  // describe opens the dialog for an image, {name, data}, or for one that is chosen there.
  describe(image) {
    byID("describe-error").hidden = true;
    byID("describe-state").textContent = "";
    if (image) this.box.set([image]);
    if (!byID("describe").open) byID("describe").showModal();
  }

  async answer() {
    const problem = byID("describe-error"), state = byID("describe-state");
    const [image] = this.box.images;
    problem.hidden = true;
    try {
      if (!image) throw new Error("Choose an image first.");
      const body = { image, prompt: byID("describe-question").value.trim(), model: byID("describe-model").value, no_lora_tags: true };
      const job = await this.describing.run("describe", body);
      state.textContent = !job ? "Stopped." : job.answer.whole ? "Done." : "The text ends here, since it is long.";
    } catch (error) {
      state.textContent = "";
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }
}
