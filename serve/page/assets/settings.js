// What the settings of an image tell: as a list, as the name of a file, and the images it was made from.

// own is the name of an image in the gallery.
const own = /^gomflux-\d{8}-\d{6}\.\d{6}-[0-9a-f]{16}-[0-9a-f]{32}\.png$/;

// describe lists settings.
export function describe(list, settings) {
  list.replaceChildren();
  for (const [name, value] of Object.entries(settings)) {
    if (name === "prompt" || name === "version") continue;
    const term = document.createElement("dt");
    term.textContent = name.replaceAll("_", " ");
    const text = document.createElement("dd");
    text.textContent = plain(value);
    list.append(term, text);
  }
}

// plain returns a value as text: images and LoRAs by their names.
function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (value?.path === undefined) return typeof value === "object" ? JSON.stringify(value) : String(value);
  return value.scale === undefined ? value.path : `${value.path} (${value.scale})`;
}

// fileName returns a short name for the file of an image: words of its prompt, and its seed.
export function fileName({ settings = {}, seed }) {
  const words = (settings.prompt ?? "").toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  let name = "";
  for (const word of words) {
    if (name.length + word.length > 40) break;
    name += `${word}-`;
  }
  return `${name || "image-"}${settings.seed ?? seed ?? 0}.png`;
}

// sources lists the images of the gallery that an image was made from: {title, url, path, sha256}.
export function sources(settings) {
  const named = [["Start image", settings.image], ...(settings.references ?? []).map(r => ["Reference image", r])];
  return named.filter(([, source]) => own.test(source?.path ?? "")).map(([title, source]) =>
    ({ title, url: `/api/v1/pictures/${source.path}`, ...source }));
}

// load returns the file of an image of the server. With a hash it must be the file that was used, as
// far as this browser can tell.
export async function load(url, name, sha256) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error("the image is not there any more");
  const data = await answer.blob();
  if (sha256 && globalThis.crypto?.subtle) { // which pages have on this machine and with HTTPS
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await data.arrayBuffer()));
    if ([...hash].map(b => b.toString(16).padStart(2, "0")).join("") !== sha256) {
      throw new Error(`${name} was changed before it was used`);
    }
  }
  return new File([data], name, { type: "image/png" });
}
