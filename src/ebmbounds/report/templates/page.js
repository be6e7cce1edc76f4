"use strict";
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const charts = [...document.querySelectorAll(".chart")];

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const [text, line, card] = ["--text", "--line", "--card"].map((name) => style.getPropertyValue(name).trim());
    const changes = { "font.color": text, "hoverlabel.bgcolor": card, "hoverlabel.font.color": text };
    for (const axis of ["xaxis", "yaxis"]) {
      Object.assign(changes, { [`${axis}.gridcolor`]: line, [`${axis}.linecolor`]: line, [`${axis}.zerolinecolor`]: line });
    }
    return changes;
  };
  const draw = (chart) => {
    if (chart.dataset.drawn) return;
    chart.dataset.drawn = "yes";
    const { data, layout } = JSON.parse(chart.querySelector("script").textContent);
    if (touch.matches) layout.dragmode = false; // a finger scrolls the page; the buttons zoom
    // By name, since the default set has a button that sends the chart to a server.
    const modeBarButtons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
    Plotly.newPlot(chart, data, layout, { responsive: true, displaylogo: false, modeBarButtons });
    Plotly.relayout(chart, colours());
    show(chart);
  };
  // What the legend of a chart's section has left switched on; traces carry the number of their experiment.
  const show = (chart) => {
    const off = [...chart.closest("section, .curves").querySelectorAll('.legend [aria-pressed="false"]')].map((button) => Number(button.dataset.number));
    const traces = chart.data.flatMap((trace, i) => (typeof trace.meta === "number" ? [i] : []));
    if (traces.length) Plotly.restyle(chart, { visible: traces.map((i) => !off.includes(chart.data[i].meta)) }, traces);
  };
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
      charts.filter((chart) => chart.dataset.drawn && button.closest(".curves").contains(chart)).forEach(show);
    });
  }
  const recolour = () => charts.filter((chart) => chart.dataset.drawn).forEach((chart) => Plotly.relayout(chart, colours()));

  // A chart is drawn when it comes near the window: a page of many runs opens at once.
  const near = new IntersectionObserver(
    (seen) => seen.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "400px" },
  );
  charts.forEach((chart) => near.observe(chart));
  dark.addEventListener("change", recolour);
  addEventListener("beforeprint", () => { charts.forEach(draw); recolour(); });
  addEventListener("afterprint", recolour);

  for (const film of document.querySelectorAll(".film")) {
    const frames = [...film.querySelectorAll("img")];
    const slider = film.querySelector("input");
    if (!slider) continue;
    slider.addEventListener("input", () => {
      frames.forEach((frame, i) => { frame.hidden = i !== Number(slider.value); });
      film.querySelector("output").textContent = frames[slider.value].dataset.iteration;
      slider.setAttribute("aria-valuetext", `iteration ${frames[slider.value].dataset.iteration}`);
    });
  }
}
