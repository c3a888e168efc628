// Filter of the page of keys: show the rows that contain all words, and the sections that have such rows.
"use strict";

const filter = document.getElementById("keys-filter");

function show(words) {
  document.querySelectorAll(".md-content table").forEach((table) => {
    const rows = [...table.querySelectorAll("tbody tr")];
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    const block = table.closest(".md-typeset__scrollwrap") || table;
    const empty = rows.every((row) => row.hidden);
    block.hidden = empty;
    for (let node = block.previousElementSibling; node && node !== filter; node = node.previousElementSibling) {
      if (/^H[1-6]$/.test(node.tagName)) {
        node.hidden = empty;
        break;
      }
    }
  });
}

filter.addEventListener("input", () => show(filter.value.toLowerCase().split(/\s+/)));
