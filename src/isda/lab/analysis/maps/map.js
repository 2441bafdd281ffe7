"use strict";
// Draws the maps on canvases and shows the image under the pointer or chosen by keys, in all maps at once.
const data = JSON.parse(document.getElementById("map-data").textContent);
const part = (id) => document.getElementById(id);
const COLOURS = 6;
const SHAPES = 5;
const LEGEND = COLOURS * SHAPES; // as many classes have a colour and shape of their own
const NAMED = 20;
const REACH = 16; // pixels from the pointer to a point
const MARGIN = 16;
const CARD = 96; // side of the enlarged image
const slots = new Map(data.thumbnails.rows.map((row, slot) => [row, slot]));
const wrong = data.maps.map((map) => map.predicted.map((label, row) => label !== data.labels[row]));
const anyWrong = data.labels.map((label, row) => wrong.some((list) => list[row]));
const panels = [...document.querySelectorAll(".box > canvas")].map((canvas) => ({
  canvas,
  number: Number(canvas.dataset.map),
  card: canvas.parentElement.querySelector(".card"),
  picture: document.createElement("canvas"), // all points, drawn once
}));
let colours, chosen = -1;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = { ink: value("ink"), paper: value("paper"), soft: value("soft"), classes: [...Array(COLOURS).keys()].map((i) => value(`c${(i + 1) % COLOURS}`)) };
}

// Classes of one colour differ in shape: circle, square, triangle, diamond, cross.
function mark(context, label, x, y, r) {
  context.fillStyle = colours.classes[label % COLOURS];
  context.beginPath();
  const shape = Math.floor(label / COLOURS) % SHAPES;
  if (shape === 0) context.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === 1) context.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
  else if (shape === 2) { context.moveTo(x, y - 1.25 * r); context.lineTo(x + 1.2 * r, y + r); context.lineTo(x - 1.2 * r, y + r); }
  else if (shape === 3) { context.moveTo(x, y - 1.4 * r); context.lineTo(x + 1.4 * r, y); context.lineTo(x, y + 1.4 * r); context.lineTo(x - 1.4 * r, y); }
  else { context.rect(x - 1.3 * r, y - 0.45 * r, 2.6 * r, 0.9 * r); context.rect(x - 0.45 * r, y - 1.3 * r, 0.9 * r, 2.6 * r); }
  context.fill();
}

function ring(context, x, y, r, width) {
  context.beginPath();
  context.arc(x, y, r, 0, 2 * Math.PI);
  context.lineWidth = width;
  context.strokeStyle = colours.ink;
  context.stroke();
}

const visible = (panel, row) => (!part("only").checked || wrong[panel.number][row]) && [-1, data.labels[row]].includes(Number(part("class").value));

function layOut(panel) {
  const size = panel.canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  for (const canvas of [panel.canvas, panel.picture]) canvas.width = canvas.height = Math.round(size * ratio);
  panel.size = size;
  panel.ratio = ratio;
  const scale = (size - 2 * MARGIN) / data.grid;
  [panel.x, panel.y] = data.maps[panel.number].positions.map((axis) => axis.map((value) => MARGIN + scale * value));
  // Smaller on small maps and for many points, so that groups stay visible.
  panel.r = Math.min(3.4, Math.max(1.2, (size / 160) * Math.sqrt(2000 / data.labels.length)));
  drawPicture(panel);
}

function drawPicture(panel) {
  const context = panel.picture.getContext("2d");
  context.setTransform(panel.ratio, 0, 0, panel.ratio, 0, 0);
  context.clearRect(0, 0, panel.size, panel.size);
  const cells = panel.cells = new Map();
  data.labels.forEach((label, row) => {
    const shown = visible(panel, row);
    const [x, y] = [panel.x[row], panel.y[row]];
    context.globalAlpha = shown ? 0.85 : 0.12;
    mark(context, label, x, y, panel.r);
    if (!shown) return;
    const key = cellOf(x, y);
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(row);
  });
  context.globalAlpha = 1;
  if (part("mark").checked) {
    wrong[panel.number].forEach((is, row) => { if (is && visible(panel, row)) ring(context, panel.x[row], panel.y[row], 1.8 * panel.r, 0.4 * panel.r); });
  }
  if (data.classes.length <= NAMED) drawNames(panel, context);
  drawChosen(panel);
}

const cellOf = (x, y) => 1000 * Math.floor(y / REACH) + Math.floor(x / REACH);

function drawNames(panel, context) {
  const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  context.font = "600 13px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  data.classes.forEach((name, label) => {
    const rows = [...data.labels.keys()].filter((row) => data.labels[row] === label);
    if (!rows.length) return;
    const half = context.measureText(name).width / 2 + 4;
    const x = Math.min(panel.size - half, Math.max(half, middle(rows.map((row) => panel.x[row]))));
    const y = middle(rows.map((row) => panel.y[row]));
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = colours.paper;
    context.strokeText(name, x, y);
    context.fillStyle = colours.ink;
    context.fillText(name, x, y);
  });
}

function drawChosen(panel) {
  const context = panel.canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  context.drawImage(panel.picture, 0, 0);
  if (chosen < 0) return;
  context.setTransform(panel.ratio, 0, 0, panel.ratio, 0, 0);
  const [x, y] = [panel.x[chosen], panel.y[chosen]];
  mark(context, data.labels[chosen], x, y, panel.r + 2);
  ring(context, x, y, panel.r + 6, 3);
}

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function lines(row) {
  const said = data.maps.map((map, number) => {
    const prediction = `${data.classes[map.predicted[row]]}, ${(map.confidence[row] / 10).toFixed(1)}%`;
    const by = data.maps.length > 1 ? map.title : "predicted";
    return { text: `${by}: ${prediction}${wrong[number][row] ? " (error)" : ""}`, kind: wrong[number][row] ? "wrong" : "" };
  });
  return [{ text: `${data.part} image ${data.indices[row]}` }, { text: `class: ${data.classes[data.labels[row]]}` }, ...said];
}

function enlarged(row) {
  const { columns, cell: [width, height], gap } = data.thumbnails;
  const slot = slots.get(row);
  const [w, h] = [width - gap, height - gap];
  const factor = Math.max(1, Math.round(CARD / Math.max(w, h)));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [factor * w, factor * h];
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(part("thumbnails"), (slot % columns) * width, Math.floor(slot / columns) * height, w, h, 0, 0, factor * w, factor * h);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${data.part} image ${data.indices[row]}`);
  return canvas;
}

// Show an image in all maps, with its card in one of them.
function choose(row, active, spoken) {
  chosen = row;
  for (const panel of panels) {
    drawChosen(panel);
    panel.card.hidden = panel !== active || row < 0;
  }
  if (row < 0) return;
  const text = document.createElement("div");
  text.append(...lines(row).map((line) => element("p", line.text, line.kind)));
  const { card } = active;
  card.replaceChildren(...slots.has(row) ? [enlarged(row)] : [], text);
  card.dataset.row = row;
  const [x, y] = [active.x[row], active.y[row]];
  const room = (at, size) => at + 14 + size <= active.size ? at + 14 : Math.max(0, at - 14 - size);
  card.style.left = `${Math.min(room(x, card.offsetWidth), Math.max(0, active.size - card.offsetWidth))}px`;
  card.style.top = `${room(y, card.offsetHeight)}px`;
  if (spoken) part("status").textContent = lines(row).map((line) => line.text).join("; ");
}

function nearest(panel, x, y) {
  let best = -1, least = REACH ** 2;
  for (const dy of [-REACH, 0, REACH]) for (const dx of [-REACH, 0, REACH]) {
    for (const row of panel.cells.get(cellOf(x + dx, y + dy)) || []) {
      const distance = (panel.x[row] - x) ** 2 + (panel.y[row] - y) ** 2;
      if (distance < least) [best, least] = [row, distance];
    }
  }
  return best;
}

const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

// The nearest visible point in a direction; the first one where none is chosen.
function neighbour(panel, [stepX, stepY]) {
  let best = -1, least = Infinity;
  data.labels.forEach((label, row) => {
    if (row === chosen || !visible(panel, row)) return;
    if (chosen < 0) { if (best < 0) best = row; return; }
    const [dx, dy] = [panel.x[row] - panel.x[chosen], panel.y[row] - panel.y[chosen]];
    const along = dx * stepX + dy * stepY;
    const across = Math.abs(dx * stepY) + Math.abs(dy * stepX);
    if (along <= 0 || across > 2 * along) return;
    if (along + 2 * across < least) [best, least] = [row, along + 2 * across];
  });
  return best < 0 ? chosen : best;
}

function nextError(step) {
  const label = Number(part("class").value);
  const rows = [...data.labels.keys()].filter((row) => anyWrong[row] && (label < 0 || data.labels[row] === label));
  if (!rows.length || !panels.length) {
    part("status").textContent = "no errors";
    return;
  }
  const at = rows.indexOf(chosen);
  const row = rows[(at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step + rows.length) % rows.length];
  const active = panels.find((panel) => wrong[panel.number][row]) || panels[0];
  choose(row, active, true);
}

function drawLegend() {
  const item = (name, draw) => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 32;
    canvas.style.width = "16px";
    canvas.setAttribute("aria-hidden", "true");
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    draw(context);
    const made = document.createElement("li");
    made.append(canvas, name);
    return made;
  };
  const few = data.classes.length <= LEGEND;
  const classes = few ? data.classes.map((name, label) => item(name, (context) => mark(context, label, 8, 8, 4))) : [];
  part("legend").replaceChildren(item("wrong prediction", (context) => ring(context, 8, 8, 6, 1.6)), ...classes);
}

function start() {
  readColours();
  drawLegend();
  panels.forEach(layOut);
}

for (const panel of panels) {
  const point = (event) => {
    const box = panel.canvas.getBoundingClientRect();
    const row = nearest(panel, event.clientX - box.left, event.clientY - box.top);
    if (row !== chosen || panel.card.hidden) choose(row, panel, false);
  };
  panel.canvas.addEventListener("pointermove", point);
  panel.canvas.addEventListener("pointerdown", point);
  panel.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") choose(-1, panel, false); });
  panel.canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(-1, panel, false);
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    choose(neighbour(panel, STEPS[event.key]), panel, true);
  });
}
for (const id of ["mark", "only", "class"]) part(id).addEventListener("change", () => { choose(-1, panels[0], false); panels.forEach(drawPicture); });
part("previous").addEventListener("click", () => nextError(-1));
part("next").addEventListener("click", () => nextError(1));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", start);
let width = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (document.documentElement.clientWidth === width) return; // a phone's address bar
  width = document.documentElement.clientWidth;
  choose(-1, panels[0], false);
  panels.forEach(layOut);
});
start();
