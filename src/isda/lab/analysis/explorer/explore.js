"use strict";
// Choose a class and an image; move its feature by sliders or by random draws. The server returns what is near it.
const AT_ONCE = 24;
const STEP = 0.25;
const ATTEMPTS = 5;
const MOST_DRAWS = 50;
const LARGEST_CRISP = 64;
const part = (id) => document.getElementById(id);
const setAll = (element, attributes) => {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
const make = (name, attributes = {}, ...children) => {
  const made = setAll(document.createElement(name), attributes);
  made.append(...children);
  return made;
};
const shape = (name, attributes) => setAll(document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
// Small images are enlarged by a whole factor, so that all of their pixels are of one size.
const image = (row, text, size) => {
  const made = make("img", { src: `/image/${row}`, alt: text, width: size, height: size });
  made.addEventListener("load", () => {
    const longest = Math.max(made.naturalWidth, made.naturalHeight);
    if (longest > LARGEST_CRISP) return;
    const factor = Math.max(1, Math.round(size / longest));
    setAll(made, { width: factor * made.naturalWidth, height: factor * made.naturalHeight });
  });
  return made;
};
const percent = (value) => `${(100 * value).toFixed(1)}%`;
const signed = (value) => value === null ? "–" : `${value > 0 ? "+" : ""}${value.toFixed(2).replace("-", "−")}`;

let run, map, shownClass, chosen, present, first = 0, requests = 0, draws = [], nextDraw = 0;

async function request(address) {
  let answer = await fetch(address);
  for (let again = 0; again < ATTEMPTS && answer.status === 503; again++) { // the server is busy
    await new Promise((wake) => setTimeout(wake, 1000 * Number(answer.headers.get("Retry-After"))));
    answer = await fetch(address);
  }
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error);
  return data;
}

// Errors are shown on the page.
function attempt(action) {
  return async (...given) => {
    try {
      await action(...given);
      part("error").hidden = true;
    } catch (error) {
      part("error").textContent = `The server has no answer: ${error.message}`;
      part("error").hidden = false;
    }
  };
}

const chooseClass = attempt(async () => {
  const label = Number(part("class").value);
  const data = await request(`/class.json?label=${label}`);
  shownClass = { label, ...data };
  first = 0;
  drawChoices();
  drawSliders();
  drawMap();
  await chooseImage(data.rows[0]);
});

async function chooseImage(row) {
  chosen = row;
  for (const button of part("choices").querySelectorAll("input")) button.checked = Number(button.value) === row;
  clearDraws();
  await look();
}

function drawChoices() {
  const rows = shownClass.rows.slice(first, first + AT_ONCE);
  part("choices").replaceChildren(...rows.map((row) => {
    const text = `${shownClass.name}, image ${shownClass.rows.indexOf(row) + 1}`;
    const button = make("input", { type: "radio", name: "image", value: row, "aria-label": text });
    button.checked = row === chosen;
    button.addEventListener("change", () => chooseImage(row));
    return make("label", {}, button, image(row, "", 48));
  }));
  part("earlier").disabled = first === 0;
  part("later").disabled = first + AT_ONCE >= shownClass.rows.length;
  part("shown").textContent = rows.length ? `${first + 1} to ${first + rows.length} of ${shownClass.rows.length}` : "none";
}

const sliders = () => [...part("sliders").querySelectorAll("input")];

function drawSliders() {
  part("sliders").replaceChildren(...shownClass.directions.map((one, index) => {
    const name = `Direction ${index + 1}, ${percent(one.share)} of the variance`;
    const slider = make("input", { type: "range", id: `slider${index}`, min: -run.furthest, max: run.furthest, step: STEP, value: 0 });
    const text = make("output", { for: slider.id });
    slider.addEventListener("input", leaveDraw);
    const ends = [[one.low, "low"], [one.high.slice().reverse(), "high"]].map(([rows, end]) =>
      make("span", {}, ...rows.map((row) => image(row, `training image at the ${end} end of direction ${index + 1}`, 40))));
    return make("div", { class: "slider" }, make("label", { for: slider.id }, name, text), slider, make("div", { class: "ends-of" }, ...ends));
  }));
  if (!shownClass.directions.length) part("sliders").textContent = "This class has too few images for a direction.";
}

function resetSliders() {
  for (const slider of sliders()) slider.value = 0;
}

// The present view as a query: a draw, or the moves of the sliders.
function query() {
  const among = part("own").checked ? "own" : "any";
  if (present) return `row=${chosen}&draw=${present.seed}&strength=${present.strength}&among=${among}`;
  return `row=${chosen}&moves=${sliders().map((slider) => slider.value).join(",")}&among=${among}`;
}

const look = attempt(async () => {
  const mine = ++requests;
  for (const button of ["draw", "draw-ten", "own", "reset"]) part(button).disabled = chosen === undefined;
  part("save").hidden = chosen === undefined;
  if (chosen === undefined) {
    for (const id of ["nearest", "probabilities", "certainty", "source", "target", "source-text", "target-text"]) part(id).replaceChildren();
    part("said").textContent = "This class has no images.";
    return;
  }
  for (const slider of sliders()) {
    const text = `${Number(slider.value) ? signed(Number(slider.value)) : "0.00"} σ`;
    slider.parentElement.querySelector("output").textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  const asked = query();
  part("save").href = `/picture.png?${asked}`;
  part("imagine").dataset.query = asked;
  const data = await request(`/view.json?${asked}`);
  if (mine !== requests) return; // there is a newer request
  if (present) keepDraw(data);
  drawView(data);
});

function drawView(data) {
  const best = data.probabilities[0];
  const moved = data.distance > 0;
  const how = data.draw ? `Draw ${data.draw.seed} at λ = ${data.draw.strength}` : moved ? "Moved by the sliders" : "Not moved";
  const stays = best.class === data.class ? "" : ", another class";
  part("said").textContent = `${how}: the classifier says ${best.class}, ${percent(best.probability)}${stays}.`;
  part("source").replaceChildren(image(data.row, `the image that is moved, of class ${data.class}`, 128));
  part("source-text").textContent = `the image (${data.class})`;
  const [near] = data.nearest;
  part("target").replaceChildren(...near ? [image(near.row, `the nearest training image, of class ${near.class}`, 128)] : []);
  part("target-text").textContent = near ? `nearest training image (${near.class})` : "no other image";
  const rows = [
    ["predicted", (one) => one.predicted], ["probability", (one) => percent(one.probability)],
    ["margin", (one) => signed(one.margin)], ["entropy", (one) => one.entropy.toFixed(3)],
  ];
  part("certainty").replaceChildren(...rows.map(([name, text]) => make("tr", {}, make("th", { scope: "row" }, name),
    ...[data.source, data.moved].map((one) => make("td", { class: "n" }, text(one))))));
  part("probabilities").replaceChildren(...data.probabilities.map((one) => {
    const bar = make("span", { class: "full" });
    bar.style.width = percent(one.probability);
    return make("tr", {}, make("th", { scope: "row" }, one.class), make("td", {}, bar), make("td", { class: "n" }, percent(one.probability)));
  }));
  part("nearest").replaceChildren(...data.nearest.map((one) =>
    make("li", {}, image(one.row, `training image of ${one.class}`, 64), named(one.class, data.class))));
  drawMove(data);
}

const named = (name, own) => make("span", name === own ? {} : { class: "other" }, name);

// Draws of the image, the newest first.
function keepDraw(data) {
  const known = draws.findIndex((one) => one.draw.seed === data.draw.seed);
  if (known < 0) draws.unshift(data);
  else draws[known] = data;
  draws = draws.slice(0, MOST_DRAWS);
  drawDraws();
}

function drawDraws() {
  part("draws").replaceChildren(...draws.map((one) => {
    const { seed, strength } = one.draw;
    const button = make("button", { type: "button", "aria-label": `show draw ${seed}` }, `${seed}`);
    button.addEventListener("click", () => showDraw(seed, strength));
    const [near] = one.nearest;
    return make("tr", present && present.seed === seed ? { class: "present" } : {}, make("th", { scope: "row" }, button),
      make("td", { class: "n" }, strength.toFixed(2)), make("td", {}, ...near ? [image(near.row, `nearest: training image of ${near.class}`, 32)] : []),
      make("td", {}, named(one.moved.predicted, one.class), ` ${percent(one.moved.probability)}`),
      make("td", { class: "n" }, signed(one.moved.margin)), make("td", { class: "n" }, one.moved.entropy.toFixed(3)));
  }));
  const kept = draws.filter((one) => one.moved.predicted === one.class).length;
  part("draws-said").textContent = draws.length ? `${kept} of ${draws.length} draws are predicted as ${shownClass.name}.` : "";
  document.querySelector(".draws").hidden = !draws.length;
  const old = part("map").querySelectorAll(".cross");
  for (const one of old) one.remove();
  const before = part("map").querySelector(".path");
  for (const one of draws) {
    const [x, y] = project(one.to);
    part("map").insertBefore(shape("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, class: "cross" }), before);
  }
}

function clearDraws() {
  draws = [];
  nextDraw = 0;
  present = undefined;
  resetSliders();
  drawDraws();
}

// Back to the sliders; the draws stay in their table.
function leaveDraw() {
  present = undefined;
  drawDraws();
  look();
}

async function showDraw(seed, strength) {
  present = { seed, strength };
  part("strength").value = strength;
  showStrength();
  resetSliders();
  drawDraws();
  await look();
}

async function drawMore(count) {
  const row = chosen;
  for (let made = 0; made < count && row === chosen; made++) await showDraw(nextDraw++, Number(part("strength").value));
}

function showStrength() {
  const text = `λ = ${Number(part("strength").value).toFixed(2)}`;
  part("strength-text").textContent = text;
  part("strength").setAttribute("aria-valuetext", text);
}

function project([x, y]) {
  return [200 + map.scale * (x - map.middle[0]), 200 - map.scale * (y - map.middle[1])];
}

function drawMap() {
  const points = map.points.map((point) => {
    const [cx, cy] = project(point);
    return shape("circle", { cx, cy, r: 2.2, class: point[2] === shownClass.label ? "own" : "others" });
  });
  points.sort((a, b) => (a.getAttribute("class") === "own") - (b.getAttribute("class") === "own"));
  const few = map.names.length <= 20;
  const names = map.names.filter((one) => few || one[2] === shownClass.label).map((one) => {
    const [x, y] = project(one);
    const text = shape("text", { x, y, class: "name" });
    text.textContent = run.classes[one[2]].name;
    return text;
  });
  const line = shape("line", { class: "path" });
  const start = shape("circle", { r: 6, class: "start" });
  const moved = shape("circle", { r: 6, class: "moved" });
  part("map").replaceChildren(...points, ...names, line, start, moved);
}

function drawMove(data) {
  const [[x1, y1], [x2, y2]] = [project(data.from), project(data.to)];
  const at = (selector, attributes) => setAll(part("map").querySelector(selector), attributes);
  at(".path", { x1, y1, x2, y2 });
  at(".start", { cx: x1, cy: y1 });
  at(".moved", { cx: x2, cy: y2 });
}

// Takes seconds, so only on request; the server caches results.
const imagine = attempt(async () => {
  const asked = part("imagine").dataset.query;
  part("imagine").disabled = true;
  part("imagined-said").textContent = "The image is being generated.";
  try {
    const data = await request(`/imagined.json?${asked}`);
    part("imagined").src = `/imagined.png?${asked}`;
    part("imagined").alt = `The image, its reconstruction, and the image for the moved feature, predicted as ${data.class}`;
    part("imagined").hidden = false;
    part("imagined-said").textContent = `The classifier predicts ${data.class} for it; ${percent(data.left)} of the feature error is left.`;
  } finally {
    part("imagine").disabled = false;
  }
});

function turn(by) {
  first += by;
  drawChoices();
}

const start = attempt(async () => {
  [run, map] = await Promise.all([request("/run.json"), request("/map.json")]);
  const [xs, ys] = [0, 1].map((axis) => map.points.map((point) => point[axis]));
  const spans = [xs, ys].map((values) => [Math.min(...values), Math.max(...values)]);
  map.middle = spans.map(([low, high]) => (low + high) / 2);
  map.scale = 330 / Math.max(...spans.map(([low, high]) => high - low), 1e-9);
  part("title").textContent = run.title;
  part("about").textContent = run.about;
  document.title = `${run.title} · isda explore`;
  part("largest-entropy").textContent = run.largest_entropy.toFixed(2);
  setAll(part("strength"), { max: run.strongest, value: run.strength });
  part("strength").value = run.strength;
  showStrength();
  part("strength").addEventListener("input", () => {
    showStrength();
    if (present) showDraw(present.seed, Number(part("strength").value));
  });
  part("draw").addEventListener("click", () => drawMore(1));
  part("draw-ten").addEventListener("click", () => drawMore(10));
  part("clear").addEventListener("click", () => { clearDraws(); look(); });
  part("class").replaceChildren(...run.classes.map((one) => make("option", { value: one.label }, one.name)));
  part("class").addEventListener("change", chooseClass);
  part("earlier").addEventListener("click", () => turn(-AT_ONCE));
  part("later").addEventListener("click", () => turn(AT_ONCE));
  part("own").addEventListener("change", look);
  part("imagine").addEventListener("click", imagine);
  document.querySelector(".imagined").hidden = !run.imagines;
  part("reset").addEventListener("click", () => { resetSliders(); leaveDraw(); });
  await chooseClass();
});

start();
