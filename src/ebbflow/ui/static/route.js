// Where in the page a person is. It stands behind the # of the address, so that a link or a reload
// shows the same, and the server has one address to serve.

import { useEffect, useState } from "./dom.js";

/** {parts: ["orders", "dead-letters", "12"], fields: {vertex: "store"}} */
export function parse(hash) {
  const [way, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = way.split("/").filter(Boolean).map(decodeURIComponent);
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

/** Changes the address without a new entry in the browser's history, as for each letter typed. */
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
