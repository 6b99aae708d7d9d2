// Shows the rows that have every typed word. Without JavaScript all rows are shown.
"use strict";
(() => {
  const filter = document.getElementById("filter");
  const rows = [...document.querySelectorAll("#runs tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    document.getElementById("count").textContent = String(shown);
  };
  filter.addEventListener("input", apply);
  filter.closest("label").hidden = false;
})();
