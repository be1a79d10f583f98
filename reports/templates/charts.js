"use strict";
// Draws the page's charts with uPlot.
(() => {
  const { data, css, digits, trimmed, seconds, FORMS } = batchlab;
  const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3], [12, 4], [5, 2], [3, 5], [10, 2, 2, 2]];
  const NINES = [Math.log10(2), 1, 2, 3, 4];
  const sync = uPlot.sync("time");

  // What of x a chart shows: all charts over time the same; points have room at the edges.
  const reach = (chart) => (u, min, max) => {
    const whole = min === chart.x[0] && max === chart.x[chart.x.length - 1];
    if (chart.span && whole) return chart.span;
    const room = chart.xkind === "number" ? (max - min || 1) * 0.05 : 0;
    return [min - room, max + room];
  };

  function options(chart, width) {
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 },
      ticks: { stroke: css("--grid"), width: 1 }, font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif", labelSize: 18, labelGap: 2 };
    const log = chart.ykind === "seconds";
    const short = (v) => (v == null ? "" : trimmed(digits(v)));
    const x = { ...axis, label: chart.xlabel, size: 28, gap: 3 };
    const y = { ...axis, label: chart.ylabel, size: 58 };
    if (chart.xkind === "nines") {
      x.splits = (u, i, min, max) => NINES.filter((v) => v >= min - 1e-9 && v <= max + 1e-9);
      x.values = (u, splits) => splits.map((v) => (v == null ? "" : FORMS.nines(v).slice(1) + " %"));
    } else x.values = (u, splits) => splits.map(short);
    if (log) y.values = (u, splits) => splits.map((v) => (v == null ? null : seconds(v, short)));
    else y.values = (u, splits) => splits.map(chart.ykind === "share" || chart.ykind === "part" ? (v) => Math.round(v * 100) + " %" : short);
    return {
      width, height: 250, padding: [10, 26, 0, 0],
      scales: {
        x: { time: false, ...(chart.xkind === "log" ? { distr: 3 } : { range: reach(chart) }) },
        y: log ? { distr: 3 } : { range: (u, min, max) => [0, chart.ykind === "share" ? Math.max(1, max) : max * 1.08 || 1] },
      },
      axes: [x, y],
      cursor: chart.xkind === "time" ? { sync: { key: sync.key }, drag: { x: true, y: false } } : { drag: { x: true, y: false } },
      legend: { live: true },
      series: [
        {
          label: chart.xkind === "time" ? "at" : chart.xkind === "nines" ? "percentile" : chart.xlabel,
          value: (u, v, s, i) => (chart.names && i != null ? chart.names[i] + ": " : "") + FORMS[chart.xkind](v),
        },
        ...chart.series.map((one) => {
          const colour = one.level ? css("--bad") : css("--c" + (one.colour % 8));
          return {
            label: one.label, stroke: colour, width: one.level ? 1.5 : 2,
            dash: one.level ? [6, 4] : DASHES[one.dash % DASHES.length],
            fill: one.fill ? colour + "40" : undefined, spanGaps: true,
            points: one.points ? { show: true, size: one.points, stroke: colour, fill: colour + "90", width: 0.5 } : { show: false },
            paths: one.steps ? uPlot.paths.stepped({ align: 1 }) : one.points && !one.line ? () => null : undefined,
            value: (u, v, s, i) => FORMS[chart.ykind](one.shown && i != null ? one.shown[i] : v),
          };
        }),
      ],
    };
  }

  const drawn = [];
  const plots = (batchlab.plots = []);
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
    const at = plots.length;
    let plot = (plots[at] = make());
    new ResizeObserver(() => {
      if (place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: plot.height });
    }).observe(place);
    drawn.push(() => { plot.destroy(); plot = plots[at] = make(); });
  }
  data.charts.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((redraw) => redraw()));
})();
