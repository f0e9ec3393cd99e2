// The evidence as an overlay over the picture of a page: boxes of words, or cells of a patch grid.

import { drawn } from "./dom.js";

// From little to much evidence, as in the pictures that `pagefacets explain` writes.
const PALETTE = ["#faf7c0", "#fce398", "#ffcc7e", "#ffb56d", "#fe9c62", "#fe805d", "#fe5d60", "#f23f73", "#d93087"];
const LONGEST = 1000;

// Width and height of a page in the overlay's own units.
export function extent(found) {
  const [width, height] = found.size ?? found.grid ?? [210, 297];
  const scale = LONGEST / Math.max(width, height);
  return [width * scale, height * scale];
}

// The boxes of one token, or of all, seen through the facets or through the full vectors.
export function boxesOf(found, token, view) {
  if (token === null) return (view === "full" ? found.full_boxes : found.boxes) ?? [];
  const chosen = found.tokens[token];
  return (view === "full" ? chosen.full?.boxes : chosen.boxes) ?? [];
}

export function overlay(found, token, view) {
  const [width, height] = extent(found);
  const layer = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "evidence", "aria-hidden": "true" });
  const boxes = boxesOf(found, token, view);
  const most = Math.max(...boxes.map((box) => box[4]), 0);
  const pad = found.grid ? 0 : 3;
  for (const [left, top, right, bottom, weight] of [...boxes].reverse()) {
    const share = most > 0 ? weight / most : 0;
    layer.append(
      drawn("rect", {
        x: left * width - pad,
        y: top * height - pad,
        width: (right - left) * width + 2 * pad,
        height: (bottom - top) * height + 2 * pad,
        rx: found.grid ? 0 : 4,
        fill: colour(share),
        "fill-opacity": 0.35 + 0.37 * Math.sqrt(share),
      }),
    );
  }
  return layer;
}

// The tokens whose evidence lies under a point of the page.
export function tokensAt(found, x, y, view) {
  const inside = ([left, top, right, bottom]) => left <= x && x <= right && top <= y && y <= bottom;
  return found.tokens.map((_, i) => i).filter((i) => boxesOf(found, i, view).some(inside));
}

function colour(share) {
  return PALETTE[Math.round(Math.min(1, Math.max(0, share)) * (PALETTE.length - 1))];
}
