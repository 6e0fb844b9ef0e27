// Sets dark or light colours: the user's choice, or else the system's preference. Not a module, so
// that it runs before the first paint.

(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("ebbflow-scheme");
  } catch {
    // storage is disabled: the system's preference applies
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.scheme = chosen;
})();
