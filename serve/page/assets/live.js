// The events of all jobs of this user, from any tab and any program, and whether the server answers.

import { call, parse } from "./api.js";

const patience = 2500; // ms without the server before the page says so
const pause = 3000; // before the next try of browsers that give up

// follow calls handle with the kind and the data of each event, and offline with whether the server
// does not answer. It does so again and again, until the page is closed.
export function follow(kinds, handle, offline) {
  const tabs = new BroadcastChannel("gomflux-tabs"); // browsers have six connections to a host, for all tabs
  let source, late, again;
  const answers = () => {
    clearTimeout(late);
    late = undefined;
    offline(false);
  };
  const retry = async () => {
    try {
      await call("GET", "loras"); // which leads to the login, where that is the reason
    } catch (error) {
      if (!error.status) {
        again = setTimeout(retry, pause);
        return;
      }
    }
    open();
  };
  const open = () => {
    source = new EventSource("/api/v1/events");
    source.addEventListener("open", answers);
    for (const kind of kinds) source.addEventListener(kind, event => handle(kind, parse(event.data)));
    source.addEventListener("error", () => {
      late ??= setTimeout(() => offline(true), patience);
      if (source.readyState === EventSource.CLOSED) again = setTimeout(retry, pause);
    });
  };
  const seen = () => {
    if (document.hidden) return;
    tabs.postMessage("seen");
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(again);
      open();
    }
  };
  tabs.addEventListener("message", () => { // another tab is seen
    if (!document.hidden) return;
    clearTimeout(again);
    clearTimeout(late);
    late = undefined;
    source.close();
    document.title = "gomflux";
  });
  document.addEventListener("visibilitychange", seen);
  open();
  seen();
}
