// The list of jobs that wait or run.

import { call, events } from "./api.js";
import { ended, Item } from "./item.js";
import { duration } from "./text.js";

const list = document.getElementById("jobs");

// previewScale is the size of an image divided by that of its previews.
const previewScale = 8;

// maxStreams is how many waiting jobs are followed as they move up in the queue. Browsers have six
// connections to a host, for all tabs, and each stream of events takes one.
const maxStreams = 2;

const kinds = ["queued", "position", "loading", "step", "preview", "picture", "done", "failed", "canceled"];

export class Jobs {
  // finished is called with each finished image.
  constructor(say, fail, finished) {
    this.say = say;
    this.fail = fail;
    this.finished = finished;
    this.lines = new Map(); // {item, followed} by the id of the job, oldest first
  }

  // find shows the jobs that were started before the page was loaded, or elsewhere.
  async find() {
    const { jobs } = await call("GET", "jobs");
    for (const job of jobs.reverse()) {
      if (!ended(job.state)) this.add(job, `Job of ${new Date(job.created).toLocaleTimeString()}`);
    }
  }

  // add shows a job until its end, and returns its line.
  add(job, title) {
    const known = this.lines.get(job.id);
    if (known) return known.item.element;
    const cancel = async () => {
      await call("DELETE", path(job.id));
      this.follow(job.id);
    };
    const item = new Item(list, title, cancel, this.fail);
    show(item, job);
    this.lines.set(job.id, { item, followed: false });
    this.followFirst();
    return item.element;
  }

  // followFirst follows the oldest jobs.
  followFirst() {
    for (const id of [...this.lines.keys()].slice(0, maxStreams)) this.follow(id);
  }

  // follow reads the events of a job.
  follow(id) {
    const line = this.lines.get(id);
    if (!line || line.followed) return;
    line.followed = true;
    let said = "";
    events(path(id), kinds, (kind, data) => {
      show(line.item, data);
      if (data.preview) showPreview(line.item.part(".preview"), data);
      const text = spoken(kind, data);
      if (text && text !== said) this.say(said = text);
      if (data.picture) this.finished(data.picture);
      if (kind === "failed") this.fail(data.error?.message ?? "the job failed");
      if (ended(kind)) this.remove(id);
      if (ended(kind) || kind === "position") this.refresh();
    }, () => {
      this.remove(id);
      this.fail("the server does not know the job any more");
    });
  }

  remove(id) {
    this.lines.get(id).item.remove();
    this.lines.delete(id);
    this.followFirst();
  }

  // refresh shows the places of jobs that are not followed, and follows those that have left the
  // queue.
  async refresh() {
    if (this.refreshing || ![...this.lines.values()].some(line => !line.followed)) return;
    this.refreshing = true;
    try {
      const { jobs } = await call("GET", "jobs");
      for (const job of jobs) {
        const line = this.lines.get(job.id);
        if (!line || line.followed) continue;
        show(line.item, job);
        if (job.state !== "queued") this.follow(job.id);
      }
    } catch (error) {
      this.fail(error.message);
    } finally {
      this.refreshing = false;
    }
  }
}

function path(id) {
  return `jobs/${encodeURIComponent(id)}`;
}

// showPreview shows a preview in the size of the image.
function showPreview(img, job) {
  const { format, data, width, height } = job.preview;
  img.src = `data:image/${format};base64,${data}`;
  img.alt = `Preview of image ${job.index + 1}`;
  img.width = previewScale * width;
  img.height = previewScale * height;
  img.hidden = false;
}

// show shows the progress of a job.
function show(item, job) {
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
    case "running": {
      const within = job.steps ? job.step / job.steps : 0;
      done = Math.min(1, (job.index + within) / Math.max(1, job.count));
      text = job.count > 1 ? `Image ${job.index + 1} of ${job.count}` : "Generating";
      if (job.steps) text += `, step ${job.step} of ${job.steps}`;
      break;
    }
  }
  if (job.seconds_left) text += `, about ${duration(job.seconds_left)} left`;
  item.show(text, done);
}

// spoken returns what is announced. It is the same for all steps of an image, since there are many.
function spoken(kind, job) {
  switch (kind) {
    case "queued":
    case "position":
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
