// Draws the diagrams of the pages. Without the library, their text stays as it is.
(async () => {
  const blocks = document.querySelectorAll("code.language-mermaid");
  if (blocks.length === 0) return;
  const library = document.createElement("script");
  library.src = (window.path_to_root ?? "") + "mermaid.min.js";
  await new Promise((resolve, reject) => {
    library.onload = resolve;
    library.onerror = reject;
    document.head.append(library);
  });
  for (const block of blocks) {
    const drawing = document.createElement("div");
    drawing.className = "mermaid";
    drawing.textContent = block.textContent;
    block.parentElement.replaceWith(drawing);
  }
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict" });
  await mermaid.run();
})().catch(() => {});
