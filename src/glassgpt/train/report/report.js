// Show the values at the pointer as text. Without this script the page lacks only that.
"use strict";
const nearest = (points, step) => points.reduce((best, point) =>
  Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best);

for (const chart of document.querySelectorAll(".chart")) {
  const curves = Object.entries(JSON.parse(chart.dataset.values));
  const steps = Math.max(1, Number(chart.dataset.steps));
  const output = chart.querySelector("output");
  for (const area of chart.querySelectorAll(".area")) {
    const cross = area.querySelector(".cross");
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      const step = nearest(curves[0][1], share * steps)[0];
      cross.style.display = "block";
      cross.style.left = `${100 * step / steps}%`;
      output.textContent = [`step ${step.toLocaleString("en")}`,
        ...curves.map(([name, points]) => `${name} ${nearest(points, step)[1]}`)].join("  ·  ");
    });
    area.addEventListener("pointerleave", () => {
      cross.style.display = "none";
      output.textContent = "";
    });
  }
}
