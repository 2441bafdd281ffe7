// Reads the mean curves at the epoch under the pointer, and marks tables that are wider than the page. The page is
// complete without it.
for (const chart of document.querySelectorAll("svg.curves")) {
  const cursor = chart.querySelector(".cursor");
  const { left, right, last } = Object.fromEntries(Object.entries(chart.dataset).map(([key, value]) => [key, Number(value)]));
  const means = [...chart.querySelectorAll("path.mean")].map((path) => ({
    path,
    label: path.dataset.label,
    points: JSON.parse(path.dataset.points),
  }));
  const readout = document.createElement("p");
  chart.after(readout);
  // Once per section is enough; the small charts stand in a pair.
  const hint = chart.closest(".pair") ? "" : "Point at the chart to read the means.";

  const rest = () => {
    cursor.style.visibility = "hidden";
    readout.className = "readout idle";
    readout.textContent = hint;
  };
  const read = (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) * chart.viewBox.baseVal.width) / box.width;
    const share = Math.min(1, Math.max(0, (x - left) / (right - left)));
    const epoch = Math.round(1 + share * (last - 1));
    const shown = means.filter(({ path, points }) => epoch in points && getComputedStyle(path.parentNode).display !== "none");
    cursor.setAttribute("x1", left + ((right - left) * (epoch - 1)) / (last - 1));
    cursor.setAttribute("x2", cursor.getAttribute("x1"));
    cursor.style.visibility = "visible";
    readout.className = "readout";
    readout.textContent = `Epoch ${epoch}: ${shown.map(({ label, points }) => `${label} ${Number(points[epoch].toPrecision(4))}`).join(", ")}`;
  };
  chart.addEventListener("pointermove", read);
  chart.addEventListener("pointerdown", read);
  chart.addEventListener("pointerleave", rest);
  rest();
}

for (const box of document.querySelectorAll(".scroll")) {
  const mark = () => box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  // Also when a folded part is opened, or a phone is turned.
  new ResizeObserver(mark).observe(box);
}
