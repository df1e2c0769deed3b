// Draws the diagrams in the colours of the page, again when they change.
const diagrams = [...document.querySelectorAll("pre.mermaid")].map((block) => [block, block.textContent]);

function isDark() {
  const chosen = document.body.dataset.theme;
  return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

async function draw() {
  mermaid.initialize({ startOnLoad: false, theme: isDark() ? "dark" : "neutral" });
  for (const [block, text] of diagrams) {
    block.removeAttribute("data-processed");
    block.textContent = text;
  }
  await mermaid.run({ nodes: diagrams.map(([block]) => block) });
}

if (diagrams.length) {
  draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
