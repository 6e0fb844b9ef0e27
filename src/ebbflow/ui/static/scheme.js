// Dark or light before anything is drawn: what the person chose here, else what the system prefers.
// No module, so that it runs before the first paint.

(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("ebbflow-scheme");
  } catch {
    // storage is off: the system's preference stands
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.scheme = chosen;
})();
