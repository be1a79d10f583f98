"use strict";
// Draws the slot timeline (SVG) and plays it.
(() => {
  const { data, digits, trimmed, seconds } = batchlab;
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
    // What happens at the playhead, in words.
    const says = bands.map(() => document.createElement("li"));
    document.getElementById("slots-now").replaceChildren(...says);
    function moment(band) {
      const t = Math.max(now - end / 1e6, 0);
      const counts = { prefill: 0, decode: 0, recompute: 0, held: 0 };
      for (const [, kind, from, to] of band.bars) if (from <= t && t < to) counts[kind] += 1;
      const empty = band.rows - counts.prefill - counts.decode - counts.recompute - counts.held;
      const parts = [`${counts.decode} decode`, `${counts.prefill} prefill`];
      if (counts.recompute) parts.push(`${counts.recompute} recompute`);
      if (counts.held) parts.push(`${counts.held} held idle until their batch is done`);
      return `at ${seconds(now)}, of ${band.rows} slots ${parts.join(", ")}, ${empty} empty`;
    }
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
        const share = now ? `${((100 * busy) / (band.rows * now)).toFixed(1)} % of slot time works` : "";
        const of = band.slots > band.rows ? (width < 560 ? "" : ` (first ${band.rows} of ${band.slots} slots)`) : "";
        counts[i].textContent = share && share + of;
        says[i].textContent = `${band.name ? band.name + ": " : ""}${moment(band)}`;
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
})();
