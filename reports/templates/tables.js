"use strict";
// Makes tables sortable.
(() => {
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
