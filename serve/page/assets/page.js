// The page of gomflux serve.

import { call } from "./api.js";
import { Form } from "./form.js";
import { Draft } from "./draft.js";
import { Gallery } from "./gallery.js";
import { Grids, requests } from "./grid.js";
import { remember } from "./history.js";
import { Jobs, kinds } from "./jobs.js";
import { follow } from "./live.js";
import { Presets } from "./presets.js";
import { Pulls } from "./pulls.js";
import { Texts } from "./texts.js";

const byID = id => document.getElementById(id);

// say announces a message, to screen readers too.
function say(text) {
  byID("status").textContent = text;
}

// fail shows an error, or none if there is no text. One about the mask is shown next to it.
function fail(text) {
  const concernsMask = text !== "" && form.inpainting.concerns(text);
  form.inpainting.problem(concernsMask ? text : "");
  if (concernsMask) text = "";
  byID("error").textContent = text;
  byID("error").hidden = text === "";
  if (text !== "") byID("error").scrollIntoView({ block: "nearest" });
}

const form = new Form(say);
const gallery = new Gallery(form, say, fail);
const grids = new Grids(say, fail);
const jobs = new Jobs(say, fail, picture => gallery.finished(picture), grids);
new Draft(form);
const texts = new Texts(form, say, fail);
gallery.describer = texts;
new Presets(form, say);
const pulls = new Pulls(() => byID("model").value, say, fail, () => {
  listModels().catch(error => fail(error.message));
});

byID("form").addEventListener("submit", async event => {
  event.preventDefault();
  fail("");
  byID("generate").disabled = true;
  try {
    if (texts.rewriting.busy) throw new Error("The prompt is being rewritten: wait for it, or stop it.");
    const body = form.request();
    const cells = requests(body);
    for (const { prompt } of cells ?? [body]) remember(prompt);
    if (cells) {
      grids.send(cells, job => jobs.add(job));
      return;
    }
    jobs.add(await call("POST", "jobs", body));
  } catch (error) {
    fail(error.message);
  } finally {
    byID("generate").disabled = false;
    byID("generate").focus({ preventScroll: true });
  }
});

document.addEventListener("keydown", event => {
  if (event.defaultPrevented) return; // a dialog has used the key
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    byID("form").requestSubmit();
  }
});

// readSettings fills in the settings of a file.
async function readSettings(file) {
  fail("");
  try {
    const found = await call("POST", "settings", file);
    form.fill(found.settings, found.not_used);
  } catch (error) {
    fail(`${file.name}: ${error.message}`);
  }
}

byID("read").addEventListener("change", async () => {
  const [file] = byID("read").files;
  if (file) await readSettings(file);
  byID("read").value = "";
});

// boxOf returns the box of images that an element or a text is in, or undefined.
function boxOf(node) {
  return [form.start, form.inpainting.mask, form.references].find(box => box.fieldset.contains(node));
}

// Files are dropped on the page; text goes to the field below it.
document.addEventListener("dragover", event => {
  if (event.dataTransfer.types.includes("Files")) event.preventDefault();
});
document.addEventListener("drop", async event => {
  const files = [...event.dataTransfer.files];
  if (files.length === 0) return;
  event.preventDefault();
  if (document.querySelector("dialog[open]")) return;
  const box = boxOf(event.target);
  await (box ? box.add(files) : readSettings(files[0]));
});
document.addEventListener("paste", async event => {
  const files = [...event.clipboardData?.files ?? []];
  if (files.length === 0 || document.querySelector("dialog[open]")) return; // text goes to the field that has the focus
  event.preventDefault();
  const focused = boxOf(document.activeElement); // in Firefox, not always the target of the event
  await (focused ?? (form.model()?.edits ? form.references : form.start)).add(files);
});

async function listModels() {
  const { models, max_pixels: maxPixels } = await call("GET", "models");
  form.setModels(models, maxPixels);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) gallery.refresh(); // other programs may have generated images
});

// load fills the page; parts that fail do not stop the others.
async function load() {
  const parts = [
    listModels(),
    call("GET", "loras").then(({ loras }) => form.setLoRAs(loras)),
    gallery.load(),
    pulls.find(),
  ];
  for (const part of await Promise.allSettled(parts)) {
    if (part.status === "rejected") fail(part.reason.message);
  }
}

// offline shows whether the server answers. What may have changed since it did is asked for again.
let away = false;
function offline(now) {
  if (now === away) return;
  away = now;
  byID("offline").hidden = !now;
  if (now) return;
  fail("");
  say("The server answers again.");
  Promise.allSettled([listModels(), call("GET", "loras").then(({ loras }) => form.setLoRAs(loras)), pulls.find()]);
}

load();
follow(kinds, (kind, data) => {
  jobs.handle(kind, data);
  if (kind !== "jobs") return;
  gallery.refresh(); // images may have been missed
  jobs.find().catch(error => fail(error.message));
}, offline);
