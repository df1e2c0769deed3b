// What the theme leaves out for people who use a keyboard or a screen reader.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  // A box that scrolls can be reached and moved by keys.
  for (const box of document.querySelectorAll(".table-wrapper, article pre")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
