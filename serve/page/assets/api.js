// Requests to the server's interface, which /api/v1/openapi.json describes.

const root = "/api/v1/";

// parse keeps seeds as strings, since they may have 64 bits.
export function parse(text) {
  return JSON.parse(text, (key, value, context) =>
    key === "seed" && typeof value === "number" ? context?.source ?? String(value) : value);
}

// call sends a request and returns the JSON of the answer. It throws an error with the server's
// message.
export async function call(method, path, body) {
  const answer = await send(method, path, body);
  const text = await answer.text();
  try {
    return text === "" ? null : parse(text);
  } catch {
    return null;
  }
}

// enlarged returns an image file so many times as large.
export async function enlarged(file, scale) {
  return (await send("POST", `upscale?scale=${scale}`, file)).blob();
}

// send returns the answer to a request.
async function send(method, path, body) {
  const options = { method };
  if (body instanceof Blob) {
    options.body = body;
    options.headers = { "Content-Type": "application/octet-stream" };
  } else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  let answer;
  try {
    answer = await fetch(root + path, options);
  } catch {
    throw new Error("the server does not answer");
  }
  if (answer.status === 401) location.assign("/login");
  if (answer.ok) return answer;
  let value = null;
  try {
    value = parse(await answer.text());
  } catch {
    // not JSON
  }
  const error = new Error(value?.error?.message ?? `the server answered ${answer.status}`);
  error.status = answer.status;
  error.code = value?.error?.code;
  throw error;
}

// events follows a job or a download: handle is called with the kind and the data of each event.
// The browser reconnects by itself, and resumes after the last event. lost is called when the server
// does not know the path any more.
export function events(path, kinds, handle, lost) {
  const source = new EventSource(`${root}${path}/events`);
  for (const kind of kinds) {
    source.addEventListener(kind, event => {
      if (["done", "failed", "canceled"].includes(kind)) source.close();
      handle(kind, parse(event.data));
    });
  }
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) lost();
  });
}
