// The prompts that were used in this browser.

import { row } from "./rows.js";

const byID = id => document.getElementById(id);
const key = "prompts";
const most = 100;

function read() {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? [];
  } catch {
    return [];
  }
}

function write(prompts) {
  try {
    localStorage.setItem(key, JSON.stringify(prompts.slice(0, most)));
  } catch {
    // no room, or the user keeps nothing
  }
}

// remember adds a prompt as the newest.
export function remember(prompt) {
  if (prompt.trim() !== "") write([prompt, ...read().filter(p => p !== prompt)]);
}

function show() {
  const prompts = read();
  byID("no-prompts").hidden = prompts.length > 0;
  byID("clear-history").hidden = prompts.length === 0;
  byID("prompts").replaceChildren(...prompts.map(prompt => row(prompt, prompt, () => {
    byID("prompt").value = prompt;
    byID("prompt").dispatchEvent(new Event("input", { bubbles: true }));
    byID("history").close();
    byID("prompt").focus();
  }, () => {
    write(read().filter(p => p !== prompt));
    show();
    byID("close-history").focus();
  })));
}

byID("open-history").addEventListener("click", () => {
  show();
  byID("history").showModal();
});
byID("clear-history").addEventListener("click", () => {
  if (!confirm("Delete all prompts of the history?")) return;
  write([]);
  show();
  byID("close-history").focus();
});
byID("close-history").addEventListener("click", () => byID("history").close());
