"use strict";
// What the server sends is written as text or as addresses of images that it made itself, never as HTML.
const at = (id) => document.getElementById(id);
const energy = (value) => (value === null ? "not finite" : Number(value).toPrecision(4));
let model = null;
let samples = [];
let drawn = 0; // the seed of what is shown
let chosen = []; // indices of samples picked for a walk

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

const ask = async (path, options) => {
  at("problem").hidden = true;
  try {
    const response = await fetch(path, options);
    const answer = await response.json();
    if (response.ok) return answer;
    throw new Error(answer.error);
  } catch (error) {
    complain(error.message);
    return null;
  }
};

const complain = (sentence) => {
  at("problem").textContent = sentence;
  at("problem").hidden = false;
};

const picture = (shown, name, tag = "figure") => {
  const text = `energy ${energy(shown.energy)}`;
  const label = element(tag === "figure" ? "figcaption" : "span", { textContent: energy(shown.energy) });
  return element(tag, { className: "picture", title: `${name}, ${text}` }, element("img", { src: shown.image, alt: `${name}, ${text}` }), label);
};

// -- the map of the plane: traces 0 to 2 are density, data and samples; then the walk, and points of your own

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return { "font.color": style.getPropertyValue("--text").trim() };
};
const WALK = 3;
const OWN = 4;
const drawMap = async () => {
  const density = await ask("/api/density");
  if (!density) return;
  const own = { x: [], y: [], mode: "markers", name: "your points", marker: { symbol: "star", size: 12, color: "#56b4e9", line: { width: 1, color: "#000000" } } };
  const walk = { x: [], y: [], mode: "lines+markers", name: "walk", line: { color: "#ffffff" }, marker: { size: 4 } };
  at("map").hidden = false;
  at("map").setAttribute("aria-label", "Map of the log-density with samples; a click on it scores that point");
  Plotly.newPlot("map", [...density.data, walk, own], { ...density.layout, height: 560, dragmode: false }, { responsive: true, displayModeBar: false });
  Plotly.relayout("map", colours());
  at("map").on("plotly_click", ({ points: [point] }) => score(`${point.x},${point.y}\n`));
};
const place = (trace, points) => Plotly.restyle("map", { x: [points.map((p) => p[0])], y: [points.map((p) => p[1])] }, [trace]);

// -- samples and walks

const draw = async () => {
  const order = at("by-energy").checked ? "energy" : "drawn";
  const start = performance.now();
  at("took").textContent = "drawing …";
  const answer = await ask(`/api/samples?seed=${encodeURIComponent(at("seed").value)}&order=${order}`);
  at("took").textContent = answer ? `${answer.length} samples in ${((performance.now() - start) / 1000).toFixed(2)} s` : "";
  if (!answer) return;
  [samples, drawn, chosen] = [answer, Number(at("seed").value), []];
  if (model.kind === "images") {
    at("samples").replaceChildren(...samples.map((shown) => {
      const button = picture(shown, `sample ${shown.index}`, "button");
      button.type = "button";
      button.addEventListener("click", () => choose(shown, button));
      return button;
    }));
  } else {
    place(2, samples.map((shown) => shown.point));
    at("listed").hidden = false;
    at("listed").tBodies[0].replaceChildren(...samples.slice(0, 8).map((shown) => element("tr", {}, ...[shown.index, ...shown.point.map((c) => c.toFixed(3)), energy(shown.energy)].map((text, i) => element(i ? "td" : "th", { textContent: text })))));
  }
};

const choose = ({ index, energy: value }, button) => {
  if (chosen.length === 2) {
    chosen = [];
    document.querySelectorAll(".chosen").forEach((each) => each.classList.remove("chosen"));
  }
  chosen.push(index);
  button.classList.add("chosen");
  at("hint").textContent = `Sample ${index}, energy ${energy(value)}${chosen.length === 1 ? ": choose another one to walk to" : ""}.`;
  at(chosen.length === 1 ? "from" : "to").value = index;
  if (chosen.length === 2) walk();
};

const walk = async () => {
  const answer = await ask(`/api/walk?seed=${drawn}&from=${encodeURIComponent(at("from").value)}&to=${encodeURIComponent(at("to").value)}`);
  if (!answer) return;
  if (model.kind === "images") at("walk").replaceChildren(...answer.map((shown, i) => picture(shown, `stop ${i + 1} of ${answer.length}`)));
  else place(WALK, answer.map((shown) => shown.point));
};

// -- your own data

const percentile = (value) => (value === null ? "no test set at hand to compare with" : `stranger than ${value.toFixed(1)}% of the test set`);
const score = async (content) => {
  if (content.size > model.largest_upload) { // the server refuses it too, but only after a while
    complain(`your file is too large: at most ${model.largest_upload / 1e6} MB are taken.`);
    return;
  }
  const answer = await ask("/api/score", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: content });
  if (!answer) return;
  at("scores").replaceChildren(...answer.slice(0, 100).map((shown, i) => {
    const where = shown.point ? `(${shown.point.map((c) => c.toFixed(3)).join(", ")}): ` : "";
    const words = element("p", { textContent: `${where}energy ${energy(shown.energy)}, ${percentile(shown.percentile)}` });
    const own = element("div", { className: "own" }, ...(shown.image ? [element("img", { src: shown.image, alt: "your image as the model sees it" })] : []), words);
    const parts = [own];
    if (shown.nearest.length && model.kind === "images") {
      parts.push(element("p", { className: "quiet", textContent: `The nearest of ${model.pool} samples, by the distance of their pixels:` }), element("div", { className: "pictures strip" }, ...shown.nearest.map((near, j) => picture(near, `nearest sample ${j + 1}`))));
    } else if (shown.nearest.length) {
      parts.push(element("p", { className: "quiet", textContent: `The nearest of ${model.pool} samples: ${shown.nearest.map((near) => `(${near.point.map((c) => c.toFixed(3)).join(", ")})`).join(" ")}` }));
    }
    return element("div", { className: "scored" }, ...parts);
  }));
  if (answer.length > 100) at("scores").append(element("p", { textContent: `and ${answer.length - 100} more rows` }));
  if (model.kind === "plane") place(OWN, answer.map((shown) => shown.point));
};

// -- the page

at("draw").addEventListener("submit", (event) => { event.preventDefault(); draw(); });
at("way").addEventListener("submit", (event) => { event.preventDefault(); walk(); });
at("by-energy").addEventListener("change", draw);
at("another").addEventListener("click", () => { at("seed").value = (Number(at("seed").value) + 1) % 2 ** 31; draw(); });
at("file").addEventListener("change", () => { if (at("file").files.length) score(at("file").files[0]); at("file").value = ""; });
const drop = at("drop");
drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  if (event.dataTransfer.files.length) score(event.dataTransfer.files[0]);
});

const start = async () => {
  const answer = await ask("/api/about");
  if (!answer) return;
  model = answer;
  at("name").textContent = model.name;
  at("about").textContent = `${model.experiment} after ${model.iterations.toLocaleString("en")} iterations; latents of dimension ${model.latent_dim}, data of shape ${model.data_shape.join(" × ")}.`;
  at("wanted").textContent = model.kind === "images" ? "Drop an image here, or choose one:" : "Click on the map, drop a CSV file of x,y rows here, or choose one:";
  at("hint").textContent = model.kind === "images" ? "Energies: the lower, the more likely. Choose two samples to walk between them." : "The first samples in the order drawn, or by their energy, the lower the more likely.";
  at("from").max = at("to").max = model.shown - 1;
  if (model.kind === "plane") {
    at("took").textContent = "drawing the map …";
    await drawMap();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Plotly.relayout("map", colours()));
  }
  draw();
};
start();
