"use strict";
// Draws the page's charts (uPlot) and slot timeline (SVG) from the JSON beside it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3], [12, 4], [5, 2], [3, 5], [10, 2, 2, 2]];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const digits = (v) => {
    const size = Math.abs(v);
    if (size >= 99.95) return Math.round(v).toLocaleString("en-US");
    if (size >= 9.995) return v.toFixed(1);
    return size >= 0.995 || size === 0 ? v.toFixed(2) : String(Number(v.toPrecision(3)));
  };
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const seconds = (v, form = digits) => {
    if (v == null) return "–";
    if (v === 0) return "0 s";
    if (v * 1e6 < 999.5) return form(v * 1e6) + " µs";
    if (v * 1e3 < 999.5) return form(v * 1e3) + " ms";
    return form(v) + " s";
  };
  const percentile = (nines) => trimmed((100 * (1 - 10 ** -nines)).toFixed(nines > 2 ? 3 : 1));
  const FORMS = {
    seconds,
    share: (v) => (v == null ? "–" : (100 * v).toFixed(1) + " %"),
    number: (v) => (v == null ? "–" : digits(v)),
    time: (v) => (v == null ? "–" : digits(v) + " s"),
    nines: (v) => (v == null ? "–" : "P" + percentile(v)),
  };
  const NINES = [Math.log10(2), 1, 2, 3, 4];
  const sync = uPlot.sync("time");

  function options(chart, width) {
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 },
      ticks: { stroke: css("--grid"), width: 1 }, font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif", labelSize: 18, labelGap: 2 };
    const log = chart.ykind === "seconds";
    const short = (v) => trimmed(digits(v));
    const x = { ...axis, label: chart.xlabel, size: 28, gap: 3 };
    const y = { ...axis, label: chart.ylabel, size: 58 };
    if (chart.xkind === "nines") {
      x.splits = (u, i, min, max) => NINES.filter((v) => v >= min - 1e-9 && v <= max + 1e-9);
      x.values = (u, splits) => splits.map((v) => (v == null ? "" : percentile(v) + " %"));
    } else x.values = (u, splits) => splits.map(short);
    if (log) y.values = (u, splits) => splits.map((v) => (v == null ? null : seconds(v, short)));
    else y.values = (u, splits) => splits.map(chart.ykind === "share" ? (v) => Math.round(v * 100) + " %" : short);
    return {
      width, height: 250, padding: [10, 26, 0, 0],
      scales: {
        x: { time: false },
        y: log ? { distr: 3 } : { range: (u, min, max) => [0, chart.ykind === "share" ? Math.max(1, max) : max * 1.08 || 1] },
      },
      axes: [x, y],
      cursor: chart.xkind === "time" ? { sync: { key: sync.key }, drag: { x: true, y: false } } : { drag: { x: true, y: false } },
      legend: { live: true },
      series: [
        { label: chart.xkind === "time" ? "at" : "percentile", value: (u, v) => FORMS[chart.xkind](v) },
        ...chart.series.map((one) => {
          const colour = one.level ? css("--bad") : css("--c" + (one.colour % 8));
          return {
            label: one.label, stroke: colour, width: one.level ? 1.5 : 2,
            dash: one.level ? [6, 4] : DASHES[one.dash % DASHES.length],
            fill: one.fill ? colour + "40" : undefined, points: { show: false }, spanGaps: true,
            value: (u, v, s, i) => FORMS[chart.ykind](one.shown && i != null ? one.shown[i] : v),
          };
        }),
      ],
    };
  }

  const drawn = [];
  function draw(chart) {
    const place = document.getElementById("chart-" + chart.id);
    if (!place) return;
    const make = () => {
      place.replaceChildren();
      const plot = new uPlot(options(chart, place.clientWidth), [chart.x, ...chart.series.map((s) => s.values)], place);
      plot.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
        if (!i) return;
        const label = row.querySelector("th");
        label.tabIndex = 0;
        label.setAttribute("role", "button");
        label.setAttribute("aria-pressed", "true");
        const mark = () => label.setAttribute("aria-pressed", String(plot.series[i].show));
        label.addEventListener("click", () => setTimeout(mark));
        label.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          plot.setSeries(i, { show: !plot.series[i].show });
          mark();
        });
      });
      return plot;
    };
    let plot = make();
    new ResizeObserver(() => {
      if (place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: plot.height });
    }).observe(place);
    drawn.push(() => { plot.destroy(); plot = make(); });
  }
  data.charts.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((redraw) => redraw()));

  // The slot timeline: what is empty is wasted. A playhead uncovers it and counts along.
  const SVG = "http://www.w3.org/2000/svg";
  function node(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text != null) made.textContent = text;
    return made;
  }
  const FILLS = { prefill: "var(--c1)", decode: "var(--c0)", recompute: "url(#recompute)", held: "url(#held)" };
  const SAID = { prefill: "prefill", decode: "decode", recompute: "recompute after a preemption", held: "finished, slot still held" };

  function slotTimeline(place) {
    const { end, bands } = data.slots;
    const left = 30, row = 13, head = 26, gap = 14;
    let width, at, counts, curtain, line;

    function draw() {
      width = Math.max(place.clientWidth, 300);
      at = (t) => left + (t / end) * (width - left - 8);
      let top = 4;
      const svg = node("svg", { role: "img", "aria-label": place.dataset.alt });
      const defs = node("defs", {});
      const held = node("pattern", { id: "held", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
      held.append(node("rect", { width: 6, height: 6, fill: "var(--card)" }), node("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: "var(--held)", "stroke-width": 2 }));
      const again = node("pattern", { id: "recompute", width: 5, height: 5, patternUnits: "userSpaceOnUse" });
      again.append(node("rect", { width: 5, height: 5, fill: "var(--c3)" }), node("circle", { cx: 2.5, cy: 2.5, r: 1, fill: "var(--card)" }));
      defs.append(held, again);
      svg.append(defs);
      counts = bands.map((band) => {
        const title = node("text", { x: left, y: top + 16 });
        const count = node("tspan", { class: "count" });
        title.append(node("tspan", { class: "name" }, band.name ? band.name + "  " : ""), count);
        top += head;
        for (let i = 0; i < band.rows; i++)
          svg.append(node("rect", { x: left, y: top + i * row + 1, width: width - left - 8, height: row - 2, fill: "var(--empty)", rx: 2 }));
        if (band.rows) svg.append(node("text", { x: left - 6, y: top + row - 2, "text-anchor": "end", class: "tick" }, 1));
        if (band.rows > 1) svg.append(node("text", { x: left - 6, y: top + band.rows * row - 2, "text-anchor": "end", class: "tick" }, band.rows));
        for (const [slot, kind, from, to, request] of band.bars) {
          const bar = node("rect", { x: at(from), y: top + slot * row + 1, width: Math.max(at(to) - at(from) - 0.6, 0.6), height: row - 2, fill: FILLS[kind] });
          bar.append(node("title", {}, `request ${request}: ${SAID[kind]}, ${seconds(from)} to ${seconds(to)}`));
          svg.append(bar);
        }
        for (const [slot, t] of band.crosses) {
          const cross = node("text", { x: at(t), y: top + slot * row + row - 2, "text-anchor": "middle", class: "cross" }, "×");
          cross.append(node("title", {}, `preempted at ${seconds(t)}`));
          svg.append(cross);
        }
        svg.append(title);
        top += band.rows * row + gap;
        return count;
      });
      const low = top - gap;
      curtain = node("rect", { y: 0, height: low, fill: "var(--card)", opacity: 0.88 });
      line = node("line", { y1: 4, y2: low, stroke: "var(--ink)", "stroke-width": 1.5 });
      svg.append(curtain, line);
      // Names and counts stay readable above the curtain.
      counts.forEach((count) => svg.append(count.parentNode));
      const parts = width < 560 ? 3 : 6;
      for (let i = 0; i <= parts; i++) {
        const t = (end * i) / parts;
        const anchor = i === 0 ? "start" : i === parts ? "end" : "middle";
        svg.append(node("text", { x: at(t), y: low + 18, "text-anchor": anchor, class: "tick" }, seconds(t, (v) => trimmed(digits(v)))));
      }
      svg.setAttribute("viewBox", `0 0 ${width} ${low + 26}`);
      place.replaceChildren(svg);
    }

    const player = document.getElementById("player");
    const [play, back, on, slider, clock] = ["play", "back", "on", "slider", "clock"].map((name) => player.querySelector("." + name));
    const instants = [...new Set(bands.flatMap((band) => band.bars.flatMap((bar) => [bar[2], bar[3]])))].sort((a, b) => a - b);
    let now = end, timer = 0, last = 0;
    function show(t) {
      now = Math.min(Math.max(t, 0), end);
      curtain.setAttribute("x", at(now));
      curtain.setAttribute("width", Math.max(width - at(now), 0));
      line.setAttribute("x1", at(now));
      line.setAttribute("x2", at(now));
      slider.value = String(Math.round((1000 * now) / end));
      clock.textContent = seconds(now);
      slider.setAttribute("aria-valuetext", seconds(now));
      bands.forEach((band, i) => {
        let busy = 0;
        for (const [, kind, from, to] of band.bars)
          if (kind !== "held" && from < now) busy += Math.min(to, now) - from;
        const of = band.slots > band.rows ? ` (first ${band.rows} of ${band.slots} slots)` : "";
        counts[i].textContent = now ? `${((100 * busy) / (band.rows * now)).toFixed(1)} % of slot time works${of}` : "";
      });
    }
    function stop() { cancelAnimationFrame(timer); timer = 0; play.textContent = "▶ Play"; }
    function frame(stamp) {
      if (last) show(now + ((stamp - last) / 1000) * (end / 14));
      last = stamp;
      if (now >= end) return stop();
      timer = requestAnimationFrame(frame);
    }
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (now >= end) show(0);
      last = 0;
      play.textContent = "❚❚ Pause";
      timer = requestAnimationFrame(frame);
    });
    back.addEventListener("click", () => { stop(); show(instants.filter((t) => t < now - 1e-9).pop() ?? 0); });
    on.addEventListener("click", () => { stop(); show(instants.find((t) => t > now + 1e-9) ?? end); });
    slider.addEventListener("input", () => { stop(); show((slider.value / 1000) * end); });
    player.hidden = false;
    draw();
    show(end);
    new ResizeObserver(() => {
      if (Math.max(place.clientWidth, 300) === width) return;
      draw();
      show(now);
    }).observe(place);
  }
  const place = document.getElementById("slot-timeline");
  if (place && data.slots.end > 0) slotTimeline(place);

  // Sortable tables: a button per head, values in data-v.
  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    table.querySelectorAll("thead th button").forEach((button) => {
      button.addEventListener("click", () => {
        const head = button.parentElement, at = head.cellIndex;
        const down = head.getAttribute("aria-sort") !== "descending";
        table.querySelectorAll("thead th").forEach((th) => th.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (tr) => tr.cells[at].dataset.v ?? tr.cells[at].textContent;
        const number = head.dataset.kind !== "text";
        [...body.rows]
          .sort((a, b) => {
            const [x, y] = [value(a), value(b)];
            // What is undefined goes last, whichever way.
            if (number && (x === "" || y === "")) return (x === "") - (y === "");
            return (number ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
          })
          .forEach((tr) => body.append(tr));
      });
    });
  });
})();
