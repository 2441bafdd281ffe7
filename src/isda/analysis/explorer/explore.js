"use strict";
// Choose a class and an image, move its feature by sliders; the server returns what is near the moved feature.
const AT_ONCE = 24;
const STEP = 0.25;
const ATTEMPTS = 5;
const part = (id) => document.getElementById(id);
const make = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const shape = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const image = (row, text) => make("img", { src: `/image/${row}`, alt: text });
const percent = (value) => `${(100 * value).toFixed(1)}%`;

let run, map, shownClass, chosen, first = 0, requests = 0;

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
  chosen = data.rows[0];
  drawChoices();
  drawSliders();
  drawMap();
  await look();
});

function drawChoices() {
  const rows = shownClass.rows.slice(first, first + AT_ONCE);
  part("choices").replaceChildren(...rows.map((row) => {
    const text = `${shownClass.name}, image ${shownClass.rows.indexOf(row) + 1}`;
    const button = make("input", { type: "radio", name: "image", value: row, "aria-label": text });
    button.checked = row === chosen;
    button.addEventListener("change", () => { chosen = row; look(); });
    return make("label", {}, button, image(row, ""));
  }));
  part("earlier").disabled = first === 0;
  part("later").disabled = first + AT_ONCE >= shownClass.rows.length;
  part("shown").textContent = rows.length ? `${first + 1} to ${first + rows.length} of ${shownClass.rows.length}` : "none";
}

function drawSliders() {
  part("sliders").replaceChildren(...shownClass.directions.map((one, index) => {
    const name = `Direction ${index + 1}, ${percent(one.share)} of the variance`;
    const slider = make("input", { type: "range", id: `slider${index}`, min: -run.furthest, max: run.furthest, step: STEP, value: 0 });
    const text = make("output", { for: slider.id });
    slider.addEventListener("input", look);
    const ends = [[one.low, "low"], [one.high.slice().reverse(), "high"]].map(([rows, end]) =>
      make("span", {}, ...rows.map((row) => image(row, `at the ${end} end`))));
    return make("div", { class: "slider" }, make("label", { for: slider.id }, name, text), slider, make("div", { class: "ends-of" }, ...ends));
  }));
  if (!shownClass.directions.length) part("sliders").textContent = "This class has too few images for a direction.";
}

const look = attempt(async () => {
  const mine = ++requests;
  if (chosen === undefined) {
    part("nearest").replaceChildren();
    part("probabilities").replaceChildren();
    part("said").textContent = "";
    return;
  }
  const sliders = [...part("sliders").querySelectorAll("input")];
  for (const slider of sliders) {
    const value = Number(slider.value);
    const text = `${value > 0 ? "+" : ""}${value.toFixed(2).replace("-", "−")} σ`;
    slider.parentElement.querySelector("output").textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  const moves = sliders.map((slider) => slider.value).join(",");
  const query = `row=${chosen}&moves=${moves}&among=${part("own").checked ? "own" : "any"}`;
  part("save").href = `/picture.png?${query}`;
  part("imagine").dataset.query = query;
  const data = await request(`/view.json?${query}`);
  if (mine === requests) drawView(data); // else there is a newer request
});

function drawView(data) {
  const best = data.probabilities[0];
  part("said").textContent = `The classifier says ${best.class}, ${percent(best.probability)}.`;
  part("probabilities").replaceChildren(...data.probabilities.map((one) => {
    const bar = make("span", { class: "full" });
    bar.style.width = percent(one.probability);
    return make("tr", {}, make("th", { scope: "row" }, one.class), make("td", {}, bar), make("td", { class: "n" }, percent(one.probability)));
  }));
  part("nearest").replaceChildren(...data.nearest.map((one) => {
    const name = make("span", one.class === data.class ? {} : { class: "other" }, one.class);
    return make("li", {}, image(one.row, `training image of ${one.class}`), name);
  }));
  drawMove(data);
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
  const at = (selector, attributes) => {
    for (const [key, value] of Object.entries(attributes)) part("map").querySelector(selector).setAttribute(key, value);
  };
  at(".path", { x1, y1, x2, y2 });
  at(".start", { cx: x1, cy: y1 });
  at(".moved", { cx: x2, cy: y2 });
}

// Takes seconds, so only on request; the server caches results.
const imagine = attempt(async () => {
  const query = part("imagine").dataset.query;
  part("imagine").disabled = true;
  part("imagined-said").textContent = "The image is being made.";
  try {
    const data = await request(`/imagined.json?${query}`);
    part("imagined").src = `/imagined.png?${query}`;
    part("imagined").alt = `The image, its reconstruction, and the image for the moved feature, seen as ${data.class}`;
    part("imagined").hidden = false;
    part("imagined-said").textContent = `The classifier sees ${data.class} in it; ${percent(data.left)} of the feature error is left.`;
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
  part("class").replaceChildren(...run.classes.map((one) => make("option", { value: one.label }, one.name)));
  part("class").addEventListener("change", chooseClass);
  part("earlier").addEventListener("click", () => turn(-AT_ONCE));
  part("later").addEventListener("click", () => turn(AT_ONCE));
  part("own").addEventListener("change", look);
  part("imagine").addEventListener("click", imagine);
  document.querySelector(".imagined").hidden = !run.imagines;
  part("reset").addEventListener("click", () => {
    for (const slider of part("sliders").querySelectorAll("input")) slider.value = 0;
    look();
  });
  await chooseClass();
});

start();
