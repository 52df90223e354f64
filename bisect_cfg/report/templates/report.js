(async () => {
  "use strict";
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, words) => { const made = document.createElement(tag); if (words !== undefined) made.textContent = words; return made; };

  // ---- the matrix: a column at a time, by pointer or by arrow keys

  const buttons = all("#matrix button"), cells = all("#matrix tbody tr").map((row) => row.cells);
  const VALUES = 3; // columns before the first trial: setting, yours, good
  let chosen = -1, highlight = () => {};
  const mark = (column, on) => {
    if (column < 0) return;
    for (const row of cells) row[column + VALUES].classList.toggle("at", on);
    buttons[column].setAttribute("aria-pressed", on);
    buttons[column].tabIndex = on ? 0 : -1;
  };
  const choose = (column) => {
    mark(chosen < 0 ? 0 : chosen, false);
    mark(chosen = column, true);
    const row = find("#t" + buttons[column].dataset.t), told = find("#told");
    const [number, outcome, tested, asked, took] = [...row.cells].map((cell) => cell.textContent);
    told.replaceChildren();
    const say = (label, words, kind) => {
      if (!words) return;
      const line = make("p"), text = make("span", words);
      if (kind) text.className = kind;
      line.append(make("small", label), text);
      told.append(line);
    };
    say("Trial " + number, outcome + (took ? " (" + took + ")" : ""), row.cells[1].className + " bold");
    say("Tested", tested);
    say("Asked", asked);
    highlight(number);
  };
  buttons.forEach((button, column) => {
    button.addEventListener("click", () => choose(column));
    button.addEventListener("focus", () => choose(column));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: column + 1, ArrowLeft: column - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (to === undefined || !buttons[to]) return;
      event.preventDefault();
      buttons[to].focus();
      buttons[to].scrollIntoView({ block: "nearest", inline: "center" });
    });
  });
  for (const link of all('a[href^="#t"]'))
    link.addEventListener("click", () => { const every = find(".every"); if (find(link.hash)) every.open = true; });

  // ---- what can be copied

  for (const button of all(".copy")) {
    const place = button.closest(".code, .change, dd");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText([...place.childNodes].filter((node) => node !== button).map((node) => node.textContent).join("").trim());
      button.textContent = "Copied";
    });
  }

  // ---- the plots

  try {
    const plots = JSON.parse(document.getElementById("payload").textContent);
    if (!plots.length) { document.documentElement.dataset.drawn = "0"; return; }

    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    const axis = (own = {}) => ({
      gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), zeroline: false,
      ...own, title: { ...(own.title || {}), standoff: 8, font: { size: 12, color: colour("soft") } },
    });
    const layout = (plot) => ({
      ...plot.layout, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      margin: { l: 48, r: 12, t: 10, b: 44 }, xaxis: axis(plot.layout.xaxis),
      yaxis: { ...axis(plot.layout.yaxis), automargin: "width" },
      hoverlabel: { font: { size: 12 }, align: "left", namelength: 0 },
      legend: { orientation: "h", y: 1.03, yanchor: "bottom", x: 0, font: { size: 12 }, ...(plot.layout.legend || {}) }, dragmode: false,
    });
    const options = { displayModeBar: false, responsive: true, displaylogo: false, scrollZoom: false };
    const byName = new Map(plots.map((plot) => [plot.name, plot]));
    for (const place of all("[data-plot]")) {
      const plot = byName.get(place.dataset.plot);
      await Plotly.newPlot(place, plot.data, layout(plot), options);
    }
    for (const chart of all("details.chart"))
      chart.addEventListener("toggle", () => { for (const place of all("[data-plot]", chart)) Plotly.Plots.resize(place); });
    // A chosen trial stands out among the others.
    const ofTrial = (name, number) => name !== undefined && name.startsWith("trial " + number + ":");
    highlight = (number) => {
      for (const place of all("#traces [data-plot]")) {
        const lines = place.data.map((trace, at) => (trace.meta === "evidence" ? at : -1)).filter((at) => at >= 0);
        const one = lines.some((at) => ofTrial(place.data[at].name, number));
        if (one || place.dataset.lit) Plotly.restyle(place, { opacity: lines.map((at) => (!one || ofTrial(place.data[at].name, number) ? 1 : 0.2)) }, lines);
        if (one) place.dataset.lit = number; else delete place.dataset.lit;
      }
    };
    if (chosen >= 0) highlight(buttons[chosen].dataset.t);
    const again = (size) => { for (const place of all("[data-plot]")) Plotly.relayout(place, { ...layout(byName.get(place.dataset.plot)), ...size(place) }); };
    const onScreen = () => ({ width: null });
    // A page is laid out after this, so that a plot cannot ask how wide it will be: A4 and Letter have 700 pixels at least.
    const onPaper = (place) => ({ autosize: false, width: place.closest(".grid") ? 330 : 680 });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again(onScreen));
    addEventListener("beforeprint", () => again(onPaper));
    addEventListener("afterprint", () => again(onScreen));

    // ---- the numbers behind a plot, made when they are asked for

    const plain = (words) => words.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
    const written = (value) => (value === null || value === undefined ? "" : String(value));
    for (const details of all("details[data-of]"))
      details.addEventListener("toggle", () => {
        if (!details.open || find("table", details)) return;
        const plot = byName.get(details.dataset.of);
        const lines = plot.data.filter((trace) => trace.mode === "lines");
        const shown = lines.length ? lines : plot.data.slice(0, 1);
        const rows = new Map();
        shown.forEach((trace, at) => trace.x.forEach((x, i) => {
          if (x === null) return;
          if (!rows.has(x)) rows.set(x, []);
          rows.get(x)[at] = trace.y[i];
        }));
        const table = make("table"), head = table.createTHead().insertRow(), body = table.createTBody();
        const heads = [plot.layout.xaxis.title.text, ...shown.map((trace) => trace.name)];
        for (const words of heads) { const cell = make("th", plain(words)); cell.scope = "col"; head.append(cell); }
        for (const x of [...rows.keys()].sort((a, b) => a - b)) {
          const row = body.insertRow();
          row.insertCell().textContent = written(x);
          shown.forEach((_, at) => { row.insertCell().textContent = written(rows.get(x)[at]); });
        }
        const wide = make("div");
        wide.className = "wide";
        wide.tabIndex = 0;
        wide.append(table);
        details.append(wide);
      });
    document.documentElement.dataset.drawn = String(all("[data-plot]").length);
  } catch (error) {
    const told = find("#no-plots");
    told.hidden = false;
    find("span", told).textContent = "your browser is too old (" + error + ")";
    document.documentElement.dataset.drawn = "failed";
  }
})();
