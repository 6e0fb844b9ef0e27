// The current view. It is stored after the # of the address, so that links and reloads show the same
// view, and the server has only one address to serve.

import { useEffect, useState } from "./dom.js";

/** {parts: ["orders", "dead-letters", "12"], fields: {vertex: "store"}} */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts, fields: Object.fromEntries(new URLSearchParams(search)) };
}

export function address(parts, fields = {}) {
  const entries = Object.entries(fields).filter(([, value]) => value != null && value !== "");
  const search = entries.length ? `?${new URLSearchParams(entries)}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${search}`;
}

export function go(parts, fields) {
  location.hash = address(parts, fields);
}

/** Changes the address without a new entry in the browser's history, as for each keystroke. */
export function amend(parts, fields) {
  history.replaceState(null, "", address(parts, fields));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const follow = () => setRoute(parse(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
