"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("evidence").textContent);
  const pages = document.getElementById("pages");
  const about = document.getElementById("about");
  const chips = [...document.querySelectorAll("[data-token]")];
  const views = [...document.querySelectorAll("[data-view]")];
  const figures = [...document.querySelectorAll("[data-sight]")];
  const rows = [...document.querySelectorAll("[data-row]")];
  const enlarge = document.getElementById("enlarge");
  const stops = data.palette.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  let pinned = -1;
  let passing = null;

  // The second page shows the picture that the first one holds.
  for (const image of document.querySelectorAll("img[data-again]")) {
    image.src = document.querySelector("img:not([data-again])").src;
  }

  // The colour for a share of the largest weight.
  const mixed = (share) => {
    const place = Math.min(share, 1) * (stops.length - 1);
    const from = Math.min(Math.floor(place), stops.length - 2);
    return stops[from].map((low, i) => Math.round(low + (place - from) * (stops[from + 1][i] - low)));
  };

  const placesOf = (token, sight) => {
    if (token < 0) return sight === "full" ? data.full_boxes : data.boxes;
    return sight === "full" ? data.tokens[token].full.boxes : data.tokens[token].boxes;
  };

  // The grid cell that a place is, or -1.
  const cellOf = ([left, top, right, bottom]) => {
    if (!data.grid) return -1;
    const [columns, rows] = data.grid;
    const sides = [left * columns, top * rows, right * columns, bottom * rows];
    const [column, row] = sides.map(Math.round);
    const fits = sides.every((side, i) => Math.abs(side - [column, row, column + 1, row + 1][i]) < 0.01);
    return fits ? row * columns + column : -1;
  };

  // Cells melt into each other: their weights are interpolated, and then coloured.
  const melt = (canvas, cells) => {
    const [columns, rows] = data.grid || [1, 1];
    const fine = Math.max(1, Math.min(12, Math.floor(1200 / Math.max(columns, rows))));
    canvas.width = columns * fine;
    canvas.height = rows * fine;
    if (!cells.size) return;
    const weight = (column, row) => {
      const at = Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column));
      return cells.get(at) || 0;
    };
    const pen = canvas.getContext("2d");
    const picture = pen.createImageData(canvas.width, canvas.height);
    for (let y = 0; y < canvas.height; y += 1) {
      const [down, row] = parted((y + 0.5) / fine - 0.5);
      for (let x = 0; x < canvas.width; x += 1) {
        const [across, column] = parted((x + 0.5) / fine - 0.5);
        const upper = (1 - across) * weight(column, row) + across * weight(column + 1, row);
        const lower = (1 - across) * weight(column, row + 1) + across * weight(column + 1, row + 1);
        const share = (1 - down) * upper + down * lower;
        picture.data.set([...mixed(share), 255 * Math.min(1, share / data.fade)], 4 * (y * canvas.width + x));
      }
    }
    pen.putImageData(picture, 0, 0);
  };
  const parted = (place) => [place - Math.floor(place), Math.floor(place)];

  const paint = (figure, token) => {
    const svg = figure.querySelector("svg");
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const places = placesOf(token, figure.dataset.sight) || [];
    const most = Math.max(0, ...places.map((place) => place[4]));
    const pad = Math.max(width, height) / 600;
    const cells = new Map();
    const boxes = [];
    for (const place of [...places].reverse()) {
      const share = place[4] / most;
      const cell = cellOf(place);
      if (cell >= 0) {
        cells.set(cell, share);
        continue;
      }
      const [left, top, right, bottom] = place;
      const box = document.createElementNS(SVG, "rect");
      box.setAttribute("x", left * width - pad);
      box.setAttribute("y", top * height - pad);
      box.setAttribute("width", (right - left) * width + 2 * pad);
      box.setAttribute("height", (bottom - top) * height + 2 * pad);
      box.setAttribute("rx", 2 * pad);
      box.setAttribute("fill", `rgb(${mixed(share).join(",")})`);
      boxes.push(box);
    }
    melt(figure.querySelector("canvas"), cells);
    svg.replaceChildren(...boxes);
  };

  const told = (token) => {
    if (token < 0) return data.summary;
    const one = data.tokens[token];
    const parts = [`scores ${one.score.toFixed(3)} with facet ${one.facet}`];
    parts.push(`which stands for ${one.members} of ${data.n} vectors`);
    if (one.full) parts.push(`alone among all vectors it scores ${one.full.score.toFixed(3)}`);
    if (!one.boxes.length) parts.push("nothing of this has a known place on the page");
    return `“${one.text ?? `token ${token + 1}`}” ${parts.join("; ")}.`;
  };

  const show = () => {
    const token = passing ?? pinned;
    for (const figure of figures) if (!figure.hidden) paint(figure, token);
    for (const chip of chips) {
      const own = Number(chip.dataset.token);
      chip.classList.toggle("shown", own === token);
      chip.setAttribute("aria-pressed", String(own === pinned));
    }
    for (const row of rows) row.classList.toggle("shown", Number(row.dataset.row) === token);
    about.textContent = told(token);
  };

  const look = (view) => {
    for (const figure of figures) figure.hidden = view !== "both" && figure.dataset.sight !== view;
    for (const one of views) one.setAttribute("aria-pressed", String(one.dataset.view === view));
    show();
  };

  for (const chip of chips) {
    const own = Number(chip.dataset.token);
    chip.addEventListener("pointerenter", (event) => {
      if (event.pointerType !== "mouse") return;
      passing = own;
      show();
    });
    chip.addEventListener("pointerleave", () => { passing = null; show(); });
    chip.addEventListener("focus", () => {
      if (!chip.matches(":focus-visible")) return;
      passing = own;
      show();
    });
    chip.addEventListener("blur", () => { passing = null; show(); });
    chip.addEventListener("click", () => { pinned = pinned === own ? -1 : own; passing = null; show(); });
    chip.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      chips[(chips.indexOf(chip) + step + chips.length) % chips.length].focus();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pinned = -1;
    passing = null;
    show();
  });
  for (const one of views) one.addEventListener("click", () => look(one.dataset.view));
  enlarge.addEventListener("click", () => {
    const large = pages.classList.toggle("large");
    enlarge.setAttribute("aria-pressed", String(large));
  });
  look(data.view);
})();
