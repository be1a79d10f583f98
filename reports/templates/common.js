"use strict";
// What the other scripts of a page share: its data, and numbers as people read them.
const batchlab = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
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
    log: (v) => (v == null ? "–" : Math.round(v).toLocaleString("en-US")),
    part: (v) => (v == null ? "–" : (100 * v).toFixed(1) + " %"),
    number: (v) => (v == null ? "–" : digits(v)),
    time: (v) => (v == null ? "–" : digits(v) + " s"),
    nines: (v) => (v == null ? "–" : "P" + percentile(v)),
  };
  return { data, css, digits, trimmed, seconds, FORMS };
})();
