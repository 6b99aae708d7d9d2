/* The report's switches and charts. Reads the page's block of data, asks nobody for anything. */
(function () {
  "use strict";
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);

  /* --- light, dark, or as the system has it */
  const themes = ["automatic", "light", "dark"];
  const button = find("theme");
  let theme = "automatic";
  try { theme = localStorage.getItem("trainyard-theme") || theme; } catch (error) { /* a file may have no storage */ }
  function wear(name) {
    theme = themes.includes(name) ? name : "automatic";
    if (theme === "automatic") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = "Theme: " + theme;
    charts.forEach((chart) => chart.redraw(false));
  }
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  /* --- what the charts draw */
  const charts = [];
  const state = { along: "s", logarithm: false, picked: "", measure: data.main };
  const words = { s: "step", t: "time" };
  function clock(seconds) {
    const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    const two = (value) => String(value).padStart(2, "0");
    return hours ? hours + ":" + two(minutes) + ":" + two(whole % 60) : minutes + ":" + two(whole % 60);
  }
  function figure(value) {
    if (value == null) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size < 1e-3 || size >= 1e6 ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
  }
  const along = (value) => (value == null ? "–" : state.along === "t" ? clock(value) : String(Math.round(value)));
  const counts = [1, 2, 5].flatMap((one) => Array.from({ length: 13 }, (none, power) => one * 10 ** power)).sort((one, other) => one - other);
  const clocks = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

  /* The summed speed has times only; its steps are those that the run's first curve had by then. */
  function stepped(curve) {
    if (curve.s || !data.curves.length) return curve;
    const lead = data.curves.find((one) => one.run === curve.run) || data.curves[0];
    let at = 0;
    const found = curve.t.map((time) => {
      while (at < lead.t.length - 1 && (lead.t[at + 1] == null || lead.t[at + 1] <= time)) at += 1;
      return lead.s[at];
    });
    return Object.assign({}, curve, { s: found });
  }
  function line(curve, values) {
    const xs = [], ys = [];
    const places = curve[state.along] || curve.t;
    for (let i = 0; i < places.length; i += 1) {
      if (places[i] == null || values[i] == null || (xs.length && places[i] <= xs[xs.length - 1])) continue;
      xs.push(places[i]);
      ys.push(values[i]);
    }
    return xs.length ? { label: curve.label, index: curve.index, hot: curve.hot, table: [xs, ys] } : null;
  }
  const chosen = (curve) => state.picked === "" || String(curve.index) === state.picked || (state.picked === "hot" && curve.hot);
  const what = {
    loss: () => data.curves.map((curve) => line(curve, curve.loss)),
    ips: () => data.curves.map((curve) => line(curve, curve.ips)),
    lr: () => data.curves.map((curve) => line(curve, curve.lr)),
    sum: () => data.sums.map((curve) => line(stepped(curve), curve.ips)),
    evaluation: () => data.evaluations.map((curve) => line(curve, curve.figures[state.measure] || [])),
  };
  const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

  function series(lines, crowd) {
    return lines.map((one, number) => {
      const loud = !crowd || one.hot || (state.picked !== "" && chosen(one));
      const tone = crowd ? (loud ? "c1" : "c7") : "c" + (one.index % 8);
      return {
        label: one.label,
        class: crowd && !loud ? "quiet" : "loud",
        stroke: () => colour(tone),
        alpha: crowd && !loud ? 0.25 : 1,
        width: crowd && !loud ? 1 : 1.75,
        dash: crowd ? [] : dashes[Math.floor(one.index / 8) % dashes.length],
        points: { show: one.table[0].length < 40, size: one.table[0].length < 5 ? 8 : 4, fill: () => colour("card") },
        spanGaps: true,
        value: (chart, value) => figure(value),
      };
    });
  }

  /* what is looked for is drawn over the others */
  const behind = (one, other) => Number(Boolean(one.hot)) - Number(Boolean(other.hot)) || one.index - other.index;

  let moving = false;
  function together(chart, key) {
    if (key !== "x" || moving || !chart.ready) return;
    moving = true;
    charts.forEach((other) => { if (other !== chart) other.setScale("x", { min: chart.scales.x.min, max: chart.scales.x.max }); });
    moving = false;
  }

  function draw(holder, lines, range) {
    const crowd = lines.length > data.many;
    const name = holder.dataset.chart;
    const axis = { size: 34, stroke: () => colour("muted"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { stroke: () => colour("line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const options = {
      width: Math.max(240, holder.clientWidth),
      height: 240,
      padding: [12, 14, 0, 0],
      scales: { x: { time: false, range: (chart, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { distr: name === "loss" && state.logarithm ? 3 : 1 } },
      axes: [
        Object.assign({}, axis, { values: (chart, splits) => splits.map(along), incrs: state.along === "t" ? clocks : counts, space: state.along === "t" ? 64 : 48 }),
        Object.assign({}, axis, { values: (chart, splits) => splits.map((value) => (value == null ? "" : figure(value))), size: 62 }),
      ],
      series: [{ label: words[state.along], value: (chart, value) => along(value) }].concat(series(lines, crowd)),
      cursor: { sync: { key: "all" }, drag: { x: true, y: false }, points: { size: 6 } },
      legend: { live: true },
      hooks: { setScale: [together] },
    };
    const chart = new uPlot(options, uPlot.join(lines.map((one) => one.table)), holder);
    chart.setScale("x", { min: range[0], max: range[1] });
    chart.whole = range;
    chart.over.addEventListener("dblclick", whole);
    charts.push(chart);
    chart.root.querySelector(".u-legend").setAttribute("aria-label", "Figures under the cursor");
    const last = lines[0].table[1];
    holder.setAttribute("aria-label", holder.closest("figure").querySelector("h3").textContent + ": " + lines.length + (lines.length > 1 ? " curves" : " curve") +
      "; " + lines[0].label + " from " + figure(last[0]) + " to " + figure(last[last.length - 1]));
  }
  function whole() {
    charts.slice(0, 1).forEach((chart) => chart.setScale("x", { min: chart.whole[0], max: chart.whole[1] }));
  }
  function rebuild() {
    charts.splice(0).forEach((chart) => chart.destroy());
    const holders = Array.from(document.querySelectorAll("[data-chart]"));
    const lines = holders.map((holder) => what[holder.dataset.chart]().filter(Boolean).sort(behind));
    const ends = lines.flat().map((one) => one.table[0]);
    const range = [Math.min(...ends.map((xs) => xs[0])), Math.max(...ends.map((xs) => xs[xs.length - 1]))];
    if (range[0] === range[1]) { range[0] -= 1; range[1] += 1; }
    const shown = lines.filter((group) => group.length).length;
    holders.forEach((holder, number) => {
      holder.closest("figure").hidden = !lines[number].length;
      holder.closest("figure").classList.toggle("wide", number === 0 && shown % 2 === 1);
      if (lines[number].length) draw(holder, lines[number], range);
    });
    /* what was asked for above is done in a microtask; only then may one chart move the others */
    Promise.resolve().then(() => charts.forEach((chart) => { chart.ready = true; }));
  }

  /* --- switches and keys */
  function option(select, value, text) {
    const one = document.createElement("option");
    one.value = value;
    one.textContent = text;
    select.append(one);
  }
  function prepare() {
    data.curves.forEach((curve, number) => { curve.index = number; });
    [data.sums, data.evaluations].forEach((group) => group.forEach((curve, number) => { curve.index = number; }));
    document.querySelector(".controls").hidden = false;
    document.querySelectorAll("input[name=along]").forEach((input) => input.addEventListener("change", () => { state.along = input.value; rebuild(); }));
    find("logarithm").addEventListener("change", (event) => { state.logarithm = event.target.checked; rebuild(); });
    find("whole").addEventListener("click", whole);
    if (data.curves.length > data.many) {
      option(find("curve"), "", data.curves.some((curve) => curve.hot) ? "all, the slow ones marked" : "all");
      data.curves.forEach((curve) => option(find("curve"), String(curve.index), curve.label + (curve.hot ? " (slow)" : "")));
      find("pick").hidden = false;
      find("curve").addEventListener("change", (event) => { state.picked = event.target.value; rebuild(); });
    }
    const names = Array.from(new Set(data.evaluations.flatMap((curve) => Object.keys(curve.figures))));
    if (!names.includes(state.measure)) state.measure = names[0];
    names.forEach((name) => option(find("measure"), name, name));
    find("measure").value = state.measure || "";
    find("figure").hidden = names.length < 2;
    find("measure").addEventListener("change", (event) => { state.measure = event.target.value; rebuild(); });
    document.querySelectorAll("[data-chart]").forEach((holder) => holder.addEventListener("keydown", (event) => {
      const chart = charts.find((one) => holder.contains(one.root));
      if (!chart) return;
      if (event.key === "Escape") whole();
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const xs = chart.data[0], at = chart.cursor.idx == null ? 0 : chart.cursor.idx + (event.key === "ArrowRight" ? 1 : -1);
        const place = xs[Math.max(0, Math.min(xs.length - 1, at))];
        chart.setCursor({ left: chart.valToPos(place, "x"), top: 20 });
      } else return;
      event.preventDefault();
    }));
    let width = 0;
    new ResizeObserver(() => {
      const now = document.querySelector(".charts").clientWidth;
      if (Math.abs(now - width) < 2) return;
      width = now;
      fit();
    }).observe(document.querySelector(".charts"));
    rebuild();
  }
  function fit(paper) {
    charts.forEach((chart) => {
      const wide = chart.root.closest("figure").classList.contains("wide");
      chart.setSize({ width: paper ? (wide ? 2 : 1) * paper : Math.max(240, chart.root.parentNode.clientWidth), height: 240 });
    });
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    wear(themes[(themes.indexOf(theme) + 1) % themes.length]);
    try { localStorage.setItem("trainyard-theme", theme); } catch (error) { /* as above */ }
  });
  if (window.uPlot && document.querySelector("[data-chart]")) prepare();
  wear(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw(false)));

  /* --- paper: light, everything open, charts as wide as half a page */
  let closed = [];
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    closed.forEach((one) => { one.open = true; });
    fit(320);
  });
  addEventListener("afterprint", () => {
    closed.forEach((one) => { one.open = false; });
    wear(theme);
    fit();
  });
})();
