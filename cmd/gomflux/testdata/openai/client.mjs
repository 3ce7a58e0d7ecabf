// Checks gomflux serve with openai-node, as client.py does with openai-python. TestServeNode runs
// it: client.mjs MODULES URL TOKEN IMAGE MASK RESULT. MODULES is a folder with node_modules.

import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const [modules, base, token, image, mask, result] = process.argv.slice(2);
const { OpenAI, toFile } = createRequire(modules + "/")("openai");
const url = base.replace(/\/$/, "");
const slow = { steps: 1000 };
const fast = { steps: 2 };

const client = (options) =>
  new OpenAI({ baseURL: url + "/v1", apiKey: token, maxRetries: 0, timeout: 300_000, ...options });

function size(b64) {
  const data = Buffer.from(b64, "base64");
  assert.equal(data.toString("latin1", 1, 4), "PNG");
  return `${data.readUInt32BE(16)}x${data.readUInt32BE(20)}`;
}

async function raises(kind, promise, attributes = {}) {
  try {
    await promise;
  } catch (error) {
    assert(error instanceof kind, error);
    for (const [name, value] of Object.entries(attributes)) assert.equal(error[name], value, name);
    return error;
  }
  assert.fail(`expected ${kind.name}`);
}

async function metrics() {
  const response = await fetch(url + "/metrics", { headers: { Authorization: `Bearer ${token}` } });
  const found = {};
  for (const line of (await response.text()).trim().split("\n")) {
    const end = line.lastIndexOf(" ");
    if (!line.startsWith("#")) found[line.slice(0, end)] = Number(line.slice(end));
  }
  return found;
}

async function until(what, test) {
  for (const end = Date.now() + 60_000; ; await sleep(50)) {
    const found = await metrics();
    if (test(found)) return;
    assert(Date.now() < end, `${what}: ${JSON.stringify(found)}`);
  }
}

const jobs = (found, ...states) => states.reduce((sum, state) => sum + found[`gomflux_jobs{state="${state}"}`], 0);
const idle = (canceled) =>
  until("no jobs", (found) =>
    jobs(found, "queued", "loading", "running") === 0 && found[`gomflux_jobs_ended_total{state="canceled"}`] === canceled);

async function checkModels() {
  const models = [];
  for await (const model of ai.models.list()) models.push(model);
  assert.equal(models[0].id, "shapes");
  const editor = models.find((m) => m.edits).id;
  assert.equal((await ai.models.retrieve(editor)).id, editor);
  await raises(OpenAI.NotFoundError, ai.models.retrieve("other"), { code: "model_not_found" });
  return editor;
}

async function checkGenerate() {
  const { data: answer, response } = await ai.images
    .generate({ model: "gpt-image-2", prompt: "a red circle", n: 2, size: "128x64", seed: 7, steps: 3 })
    .withResponse();
  assert.match(response.headers.get("x-gomflux-warning"), /gpt-image-2/);
  assert.equal(answer.model, "shapes");
  assert.deepEqual(answer.data.map((d) => size(d.b64_json)), ["128x64", "128x64"]);
  assert.deepEqual(answer.data.map((d) => d.seed), [7, 8]);
  assert.equal(answer.usage.output_tokens, 2 * 8 * 4);
  fs.writeFileSync(result, Buffer.from(answer.data[0].b64_json, "base64"));
  for (const [kind, start] of [["jpeg", 0xffd8], ["webp", 0x5249]]) {
    const stored = await ai.images.generate({
      prompt: "x", size: "64x64", response_format: "url", output_format: kind, output_compression: 80, ...fast,
    });
    const file = await fetch(stored.data[0].url); // without the token
    assert.equal(file.headers.get("content-type"), `image/${kind}`);
    assert.equal(Buffer.from(await file.arrayBuffer()).readUInt16BE(), start);
  }
}

async function checkEdit(editor) {
  const data = fs.readFileSync(image);
  const file = (name) => toFile(data, name, { type: "image/png" });
  const edit = (more) => ai.images.edit({ prompt: "make it blue", model: editor, seed: 1, ...fast, ...more });
  const single = await edit({ image: fs.createReadStream(image) });
  const again = await edit({ image: [await file("in.png")], model: "gpt-image-2" });
  const several = await edit({ image: [await file("a.png"), await file("b.png"), await file("c.png")], input_fidelity: "high" });
  for (const answer of [single, again, several]) assert.equal(answer.model, editor);
  const tokens = single.usage.input_tokens_details.image_tokens;
  assert(tokens > 0);
  assert.equal(several.usage.input_tokens_details.image_tokens, 3 * tokens);
  assert.equal(size(single.data[0].b64_json), size(several.data[0].b64_json));
  assert.notEqual(single.data[0].b64_json, several.data[0].b64_json);
  const started = await edit({ image: await file("in.png"), model: "shapes", strength: 0.5, size: "64x64", steps: 4 });
  assert.equal(started.model, "shapes");
  const masked = await edit({ image: await file("in.png"), mask: fs.createReadStream(mask), model: "shapes", strength: 0.9, steps: 4 });
  assert.equal(size(masked.data[0].b64_json), "64x64");
  const error = await raises(OpenAI.BadRequestError, edit({ image: await file("in.png"), model: "shapes" }), { param: "model" });
  assert.match(error.message, /takes no reference images/);
  await raises(OpenAI.BadRequestError, edit({ image: await toFile(Buffer.from("no image"), "in.png") }), { code: "invalid_image_file" });
}

async function checkStream(editor) {
  const collect = async (stream) => {
    const events = [];
    for await (const event of await stream) events.push(event);
    return events;
  };
  let events = await collect(ai.images.generate({ prompt: "a cat", stream: true, partial_images: 2, size: "64x64", steps: 4 }));
  assert.deepEqual(events.map((e) => e.type),
    ["image_generation.partial_image", "image_generation.partial_image", "image_generation.completed"]);
  assert.deepEqual(events.map((e) => e.partial_image_index), [0, 1, undefined]);
  assert.equal(size(events[2].b64_json), "64x64");
  assert.equal(events[2].usage.output_tokens, 16);
  events = await collect(
    ai.images.edit({ image: fs.createReadStream(image), prompt: "x", model: editor, stream: true, partial_images: 1, ...fast }));
  assert.deepEqual(events.map((e) => e.type), ["image_edit.partial_image", "image_edit.completed"]);
}

async function checkChat() {
  const seer = (await ai.models.list()).data.find((m) => m.sees).id;
  const url = `data:image/png;base64,${fs.readFileSync(image).toString("base64")}`;
  const ask = { model: seer, temperature: 0, max_completion_tokens: 8, messages: [
    { role: "user", content: [{ type: "text", text: "What is it?" }, { type: "image_url", image_url: { url } }] }] };
  const answer = await ai.chat.completions.create(ask);
  assert.equal(answer.choices[0].message.role, "assistant");
  let text = "", finish;
  for await (const chunk of await ai.chat.completions.create({ ...ask, stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  assert.equal(text.trim(), answer.choices[0].message.content);
  assert.equal(finish, answer.choices[0].finish_reason);
  ask.messages[0].content[1].image_url.url = "https://example.org/x.png";
  await raises(OpenAI.BadRequestError, ai.chat.completions.create(ask), { code: "unsupported_value" });
}

async function checkErrors() {
  const error = await raises(OpenAI.BadRequestError, ai.images.generate({ prompt: "x", n: 11 }), { param: "n", type: "invalid_request_error" });
  assert.match(error.message, /from 1 to 10/);
  await raises(OpenAI.BadRequestError, ai.images.generate({ prompt: "x", sead: 1 }), { code: "unknown_parameter" });
  await raises(OpenAI.AuthenticationError, client({ apiKey: "wrong" }).images.generate({ prompt: "x" }));
  const missing = await raises(OpenAI.NotFoundError, ai.images.generate({ prompt: "x", model: "z-image-turbo" }), { code: "model_not_found" });
  assert.match(missing.message, /gomflux pull z-image-turbo/);
}

async function checkCancel() {
  await raises(OpenAI.APIConnectionTimeoutError, client({ timeout: 1000 }).images.generate({ prompt: "x", ...slow }));
  await idle(1);
  const stop = new AbortController();
  const started = [];
  for (const state of ["running", "queued"]) {
    started.push(raises(OpenAI.APIUserAbortError, ai.images.generate({ prompt: "x", ...slow }, { signal: stop.signal })));
    await until(state, (found) => jobs(found, state) === 1);
  }
  const full = await raises(OpenAI.RateLimitError, ai.images.generate({ prompt: "x" }), { code: "rate_limit_exceeded" });
  assert(Number(full.headers.get("retry-after")) >= 1);
  stop.abort();
  await Promise.all(started);
  await idle(3);
  const stream = await ai.images.generate({ prompt: "x", stream: true, partial_images: 3, steps: 40 });
  for await (const event of stream) {
    assert.equal(event.partial_image_index, 0);
    break; // which aborts the request
  }
  await idle(4);
  assert.equal((await ai.images.generate({ prompt: "x", size: "64x64", ...fast })).data.length, 1);
}

const ai = client();
const editor = await checkModels();
await checkGenerate();
await checkEdit(editor);
await checkStream(editor);
await checkChat();
await checkErrors();
await checkCancel();
console.log("all checks passed");
