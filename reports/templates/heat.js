"use strict";
// Draws the heat maps of a sweep: one table a metric, over any two of its axes.
(() => {
  const { axes, metrics, cells } = batchlab.data.sweep;
  const { FORMS } = batchlab;
  const picks = document.getElementById("picks"), maps = document.getElementById("heat-maps");
  // Which axis is across and which is down (-1: there is only one), and the others' values.
  const at = { x: 0, y: axes.length > 1 ? 1 : -1, fixed: axes.map(() => 0) };

  function make(name, attributes = {}, text) {
    const made = document.createElement(name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text != null) made.textContent = text;
    return made;
  }

  function select(label, options, chosen, change) {
    const box = make("label", {}, label + " ");
    const list = make("select");
    options.forEach(([value, text]) => {
      const option = make("option", { value }, text);
      option.selected = value === chosen;
      list.append(option);
    });
    list.addEventListener("change", () => { change(Number(list.value)); draw(); });
    box.append(list);
    picks.append(box);
  }

  function choose() {
    picks.replaceChildren();
    if (axes.length < 2) return;
    const names = axes.map((axis, i) => [i, axis.label]);
    // Choosing the other's axis swaps the two.
    select("across", names, at.x, (i) => { if (i === at.y) at.y = at.x; at.x = i; });
    select("down", names, at.y, (i) => { if (i === at.x) at.x = at.y; at.y = i; });
    axes.forEach((axis, i) => {
      if (i === at.x || i === at.y) return;
      select(axis.label, axis.values.map((value, v) => [v, value]), at.fixed[i], (v) => { at.fixed[i] = v; });
    });
  }

  // Where a value stands between the least and the most: by ratio where they lie far apart.
  function level(value, low, high) {
    if (value == null || low === high) return 0;
    if (low > 0 && high / low > 10) return Math.log(value / low) / Math.log(high / low);
    return (value - low) / (high - low);
  }

  function map(metric, m) {
    const across = axes[at.x], down = at.y < 0 ? { label: "", values: [""] } : axes[at.y];
    const plane = new Map();
    for (const cell of cells) {
      const here = axes.every((_, i) => i === at.x || i === at.y || cell.at[i] === at.fixed[i]);
      if (here) plane.set(cell.at[at.x] + "," + (at.y < 0 ? 0 : cell.at[at.y]), cell);
    }
    const known = [...plane.values()].map((cell) => cell.values[m]).filter((v) => v != null);
    const low = Math.min(...known), high = Math.max(...known);
    const form = FORMS[metric.form], lower = metric.better === "min";
    const best = low < high ? form(lower ? low : high) : null;
    const kept = (x, y) => plane.get(x + "," + y)?.kept;
    const table = make("table", { class: "heat" });
    table.append(make("caption", {}, metric.label));
    const head = make("tr"), top = make("thead"), body = make("tbody");
    const corner = make("td", { class: "corner" });
    const short = (label) => label.split(" (")[0];
    if (down.label) corner.append(`${short(down.label)} ↓`, make("br"));
    corner.append(`${short(across.label)} →`);
    head.append(corner);
    across.values.forEach((value) => head.append(make("th", { scope: "col" }, value)));
    top.append(head);
    down.values.forEach((value, y) => {
      const row = make("tr");
      row.append(make("th", { scope: "row" }, value));
      across.values.forEach((_, x) => {
        const cell = plane.get(x + "," + y);
        const place = make("td");
        if (!cell || cell.error) {
          place.className = "invalid";
          place.textContent = cell ? "invalid" : "not run";
          if (cell) place.title = cell.error;
        } else {
          const v = cell.values[m], said = form(v);
          place.textContent = (said === best ? "★ " : "") + said;
          if (said === best) place.classList.add("top");
          if (said !== best && low < high) place.style.setProperty("--level", lower ? level(v, low, high) : 1 - level(v, low, high));
          place.title = `${across.label}: ${across.values[x]}${down.label ? `, ${down.label}: ${value}` : ""}: ${said}${cell.kept ? ", keeps the service level" : ""}`;
        }
        if (cell?.kept) {
          const sides = { top: kept(x, y - 1), bottom: kept(x, y + 1), left: kept(x - 1, y), right: kept(x + 1, y) };
          for (const side in sides) if (!sides[side]) place.classList.add("edge-" + side);
        }
        row.append(place);
      });
      body.append(row);
    });
    table.append(top, body);
    const box = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": metric.label });
    box.append(table);
    return box;
  }

  function draw() {
    choose();
    maps.replaceChildren(...metrics.map(map));
  }
  draw();
})();
