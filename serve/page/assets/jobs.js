// The list of jobs that wait or run.

import { call } from "./api.js";
import { ended, Item } from "./item.js";
import { Now } from "./now.js";
import { duration } from "./text.js";

const list = document.getElementById("jobs");

// previewScale is the size of an image divided by that of its previews.
const previewScale = 8;

export const kinds = ["jobs", "queued", "loading", "text", "written", "step", "preview", "picture", "done", "failed", "canceled"];

const title = job => (job.count === 0 ? "Text: " : "") + (job.prompt || (job.prompt === undefined ? `Job of ${new Date(job.created).toLocaleTimeString()}` : "No prompt"));

export class Jobs {
  // finished is called with each finished image. grids shows the jobs of grids.
  constructor(say, fail, finished, grids) {
    this.say = say;
    this.fail = fail;
    this.finished = finished;
    this.grids = grids;
    this.now = new Now();
    this.lines = new Map(); // {item, title, said} by the id of the job, oldest first
    this.over = new Set(); // ids of jobs that have ended
  }

  // find shows the grids whose jobs have ended, and their images, and sends what is left of a grid. While
  // events come, no job is missed in between.
  async find() {
    const { jobs } = await call("GET", "jobs");
    for (const job of jobs.reverse()) {
      if (ended(job.state) && this.grids.has(job) && this.add(job)) await this.settle(job.id);
    }
    this.grids.send([], job => this.add(job));
  }

  // add shows a job until its end, and returns its line, or null for one that has ended since.
  add(job) {
    if (this.over.has(job.id)) return null;
    const known = this.lines.get(job.id);
    if (known) return known.item.element;
    const cancel = () => call("DELETE", path(job.id));
    const item = this.grids.cell(job, cancel) ?? new Item(list, title({ prompt: "", ...job }), cancel, this.fail);
    this.lines.set(job.id, { item, title: title(job), said: "" });
    this.show(job.id, job);
    return item.element;
  }

  // handle shows an event of a job, or the list of jobs with which events begin.
  handle(kind, job) {
    if (kind === "jobs") {
      for (const each of job.jobs) this.add(each);
      const listed = new Set(job.jobs.map(each => each.id));
      for (const id of [...this.lines.keys()].filter(id => !listed.has(id))) this.settle(id); // while nobody listened
      return;
    }
    this.add(job);
    const line = this.lines.get(job.id);
    if (!line) return;
    this.show(job.id, job);
    if (job.preview) this.showPreview(job.id, job);
    const text = spoken(kind, job);
    if (text && text !== line.said) this.say(line.said = text);
    if (job.picture) this.picture(line, job.picture);
    if (kind === "failed") this.fail(job.error?.message ?? "the job failed");
    if (ended(kind)) this.remove(job.id);
  }

  picture(line, picture) {
    line.item.finished?.(picture);
    this.finished(picture);
  }

  // settle asks for a job whose events were missed.
  async settle(id) {
    const line = this.lines.get(id);
    try {
      const job = await call("GET", path(id));
      if (!this.lines.has(id)) return;
      this.show(id, job);
      if (!ended(job.state)) return;
      for (const picture of job.pictures ?? []) this.picture(line, picture);
      if (job.state === "failed") this.fail(job.error?.message ?? "the job failed");
      this.remove(id);
    } catch (error) {
      if (error.status !== 404 || !this.lines.has(id)) return; // the next list of jobs settles it
      line.item.show("Lost");
      this.remove(id);
      this.fail(`The server was started again, and has lost the job “${line.title.slice(0, 80)}”. History has its prompt.`);
    }
  }

  remove(id) {
    this.over.add(id);
    this.lines.get(id).item.remove();
    this.lines.delete(id);
    this.now.ended(id, this.lines.size);
  }

  // show shows the progress of a job.
  show(id, job) {
    const { text, done } = describe(job);
    this.lines.get(id).item.show(text, done);
    this.now.show(id, job.state, text, done);
  }

  // showPreview shows a preview in the size of the image.
  showPreview(id, job) {
    const { format, data, width, height } = job.preview;
    const src = `data:image/${format};base64,${data}`;
    const img = this.lines.get(id).item.part(".preview");
    img.src = src;
    img.alt = `Preview of image ${job.index + 1}`;
    img.width = previewScale * width;
    img.height = previewScale * height;
    img.hidden = false;
    this.now.preview(src);
  }
}

function path(id) {
  return `jobs/${encodeURIComponent(id)}`;
}

// describe returns the progress of a job as text, and how much is done, from 0 to 1 or undefined.
function describe(job) {
  let text = job.state;
  let done;
  switch (job.state) {
    case "queued":
      text = job.ahead === 0 ? "Next in the queue" : `Waiting, ${job.ahead} before it in the queue`;
      break;
    case "loading":
      text = `Loading ${job.model}`;
      if (job.total_bytes) {
        done = job.bytes / job.total_bytes;
        text += `: ${Math.round(100 * done)} %`;
      }
      break;
    case "writing":
      text = job.count === 0 ? "Writing" : "Rewriting the prompt";
      break;
    case "running": {
      const within = job.steps ? job.step / job.steps : 0;
      done = Math.min(1, (job.index + within) / Math.max(1, job.count));
      text = job.count > 1 ? `Image ${job.index + 1} of ${job.count}` : "Generating";
      if (job.steps) text += `, step ${job.step} of ${job.steps}`;
      break;
    }
  }
  if (job.seconds_left) text += `, about ${duration(job.seconds_left)} left`;
  return { text, done };
}

// spoken returns what is announced. It is the same for all steps of an image, since there are many.
function spoken(kind, job) {
  if (job.count === 0) return ""; // the one who asked for the text says so
  switch (kind) {
    case "queued":
      return job.ahead === 0 ? "The job is next in the queue." : `The job waits; ${job.ahead} run before it.`;
    case "loading":
      return `Loading ${job.model}.`;
    case "step":
      return job.count > 1 ? `Generating image ${job.index + 1} of ${job.count}.` : "Generating.";
    case "picture":
      return `Image ${job.picture.index + 1} of ${job.count} is finished.`;
    case "canceled":
      return "The job was canceled.";
  }
  return "";
}
