// The list of jobs that wait or run.

import { call, events } from "./api.js";

const template = document.getElementById("job-template");

export class Jobs {
  constructor(list, say, fail, finished) {
    this.list = list;
    this.say = say;
    this.fail = fail;
    this.finished = finished; // is called with each finished image
    this.followed = new Set();
  }

  // find follows the jobs that were started before the page was loaded, or elsewhere.
  async find() {
    const { jobs } = await call("GET", "jobs");
    for (const job of jobs.reverse()) {
      if (!["done", "failed", "canceled"].includes(job.state)) {
        this.follow(job, `Job of ${new Date(job.created).toLocaleTimeString()}`);
      }
    }
  }

  follow(job, title) {
    if (this.followed.has(job.id)) return;
    this.followed.add(job.id);
    const item = template.content.firstElementChild.cloneNode(true);
    const part = name => item.querySelector(name);
    part(".prompt").textContent = title;
    part(".cancel").setAttribute("aria-label", `Cancel ${title.slice(0, 80)}`);
    part(".cancel").addEventListener("click", async () => {
      if (part(".cancel").ariaDisabled === "true") return;
      part(".cancel").ariaDisabled = "true"; // and not disabled, which would lose the focus
      try {
        await call("DELETE", `jobs/${encodeURIComponent(job.id)}`);
      } catch (error) {
        part(".cancel").ariaDisabled = "false";
        this.fail(error.message);
      }
    });
    this.show(part, job);
    this.list.append(item);
    this.update();
    this.newest = item;
    const remove = () => {
      const focused = item.contains(document.activeElement);
      item.remove();
      this.update();
      if (focused) document.getElementById("generate").focus();
    };
    let said = "";
    events(job.id, (kind, data) => {
      this.show(part, data);
      if (data.preview) {
        part(".preview").src = `data:image/${data.preview.format};base64,${data.preview.data}`;
        part(".preview").alt = `Preview of image ${data.index + 1}`;
        part(".preview").hidden = false;
      }
      const text = this.spoken(kind, data);
      if (text && text !== said) this.say(said = text);
      if (data.picture) this.finished(data.picture);
      if (kind === "failed") this.fail(data.error?.message ?? "the job failed");
      if (["done", "failed", "canceled"].includes(kind)) remove();
    }, () => {
      this.followed.delete(job.id);
      remove();
      this.fail("the server does not know the job any more");
    });
  }

  update() {
    document.getElementById("no-jobs").hidden = this.list.children.length > 0;
  }

  // show shows the progress of a job.
  show(part, job) {
    const bar = part("progress");
    let text = "";
    switch (job.state) {
      case "queued":
        bar.removeAttribute("value");
        text = job.ahead === 0 ? "Next in the queue" : `Waiting, ${job.ahead} before it in the queue`;
        break;
      case "loading":
        if (job.total_bytes) {
          bar.value = job.bytes / job.total_bytes;
          text = `Loading ${job.model}: ${Math.round(100 * bar.value)} %`;
        } else {
          bar.removeAttribute("value");
          text = `Loading ${job.model}`;
        }
        break;
      case "running": {
        const within = job.steps ? job.step / job.steps : 0;
        bar.value = Math.min(1, (job.index + within) / Math.max(1, job.count));
        text = job.count > 1 ? `Image ${job.index + 1} of ${job.count}` : "Generating";
        if (job.steps) text += `, step ${job.step} of ${job.steps}`;
        break;
      }
      default:
        text = job.state;
    }
    if (job.seconds_left) text += `, about ${duration(job.seconds_left)} left`;
    part(".state").textContent = text;
  }

  // spoken returns what is announced. It is the same for all steps of an image, since there are
  // many.
  spoken(kind, job) {
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
}

function duration(seconds) {
  return seconds < 100 ? `${Math.ceil(seconds)} s` : `${Math.ceil(seconds / 60)} min`;
}
