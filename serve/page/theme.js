// Before anything is painted: the theme that was chosen, if one was.
"use strict";
try {
  const theme = localStorage.getItem("omnidraft.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the system's theme it is.
}
