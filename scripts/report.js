// Tips under the pointer. The pictures themselves are in the page and need no script.
"use strict";
const tip = document.getElementById("tip");

function show(text, at) {
  tip.textContent = text;
  tip.style.visibility = "visible";
  const box = tip.getBoundingClientRect();
  const left = at.clientX + 14 + box.width < innerWidth ? at.clientX + 14 : at.clientX - 14 - box.width;
  const top = at.clientY + 16 + box.height < innerHeight ? at.clientY + 16 : at.clientY - 12 - box.height;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}

function hide() {
  tip.style.visibility = "hidden";
}

// Points are [step, what to say, x, y], in the order of their x.
function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][2] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][2] < points[low][2] - x ? points[low - 1] : points[low];
}

for (const svg of document.querySelectorAll("svg[data-series]")) {
  const series = JSON.parse(svg.dataset.series);
  const hair = svg.querySelector(".hair"), spots = svg.querySelectorAll(".spot");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const first = nearest(series[0].points, x);
    const lines = ["step " + first[0]];
    series.forEach((one, i) => {
      const point = nearest(one.points, x);
      // A validation is told where it is, not everywhere beside it.
      const near = i === 0 || Math.abs(point[2] - x) < 8;
      spots[i].style.visibility = near ? "visible" : "hidden";
      spots[i].setAttribute("cx", point[2]);
      spots[i].setAttribute("cy", point[3]);
      if (near) lines.push(one.name + "  " + point[1] + (point[0] === first[0] ? "" : "  (step " + point[0] + ")"));
    });
    hair.setAttribute("x1", first[2]);
    hair.setAttribute("x2", first[2]);
    hair.style.visibility = "visible";
    show(lines.join("\n"), event);
  });
  svg.addEventListener("pointerleave", () => {
    hair.style.visibility = "hidden";
    for (const spot of spots) spot.style.visibility = "hidden";
    hide();
  });
}

document.addEventListener("pointerover", (event) => {
  const told = event.target.closest("[data-tip]");
  if (told) show(told.dataset.tip, event);
  else if (!event.target.closest("svg[data-series]")) hide();
});
