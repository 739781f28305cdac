// Draws every picture of a report with draw.js, again for another width or in dark mode, and shows tips.
"use strict";
const tip = document.getElementById("tip"), dark = matchMedia("(prefers-color-scheme: dark)");
const figures = [...document.querySelectorAll("canvas")].map((canvas) => ({canvas, picture: JSON.parse(canvas.dataset.picture), places: []}));

function drawAll(paper = false) {
  for (const one of figures) {
    const width = one.canvas.clientWidth, colors = PALETTES[dark.matches && !paper ? "dark" : "light"];
    const height = Math.ceil(drawPicture(new Ruler(), one.picture, width));
    one.places = [];
    drawPicture(new CanvasPainter(one.canvas, width, height, colors), one.picture, width, one.places);
  }
}

function show(text, at) {
  tip.textContent = text;
  tip.style.visibility = text ? "visible" : "hidden";
  const box = tip.getBoundingClientRect();
  const left = at.clientX + 14 + box.width < innerWidth ? at.clientX + 14 : at.clientX - 14 - box.width;
  const top = at.clientY + 16 + box.height < innerHeight ? at.clientY + 16 : at.clientY - 12 - box.height;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}

for (const one of figures) {
  for (const name of ["pointermove", "pointerdown"]) one.canvas.addEventListener(name, (event) => show(tipAt(one.places, event.offsetX, event.offsetY), event));
  one.canvas.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
}
drawAll();
addEventListener("resize", () => drawAll());
addEventListener("beforeprint", () => drawAll(true));
addEventListener("afterprint", () => drawAll());
dark.addEventListener("change", () => drawAll());
