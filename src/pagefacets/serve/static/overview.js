// What the index holds and what it saves.

import { picture, stats } from "./api.js";
import { bytes, count, fileName, find, make, plural } from "./dom.js";

export async function showOverview() {
  const found = await stats();
  find("name").textContent = found.name;
  find("title").textContent = `Search ${plural(found.pages, "page")} of ${plural(found.documents, "document")}`;
  const times = found.bytes ? found.full_bytes / found.bytes : 0;
  find("tiles").replaceChildren(
    ...tile("Stored", bytes(found.bytes), `instead of ${bytes(found.full_bytes)}`),
    ...tile("Smaller", times ? `${times < 10 ? times.toFixed(1) : Math.round(times)}×` : "–", `${count(found.facets)} of ${count(found.vectors)} vectors, ratio ${found.ratio.toFixed(3)}`),
    ...tile("Facets a page", found.k_mean.toFixed(1), "on average"),
    ...tile(make("span", {}, "In effect, K", make("sub", { textContent: "eff" })), found.k_eff.toFixed(1), "evenly used ones"),
  );
  find("made").textContent = `${found.compressor}, stored as ${found.dtype}${found.full ? ", full vectors kept beside" : ""} · ${found.encoder}`;
  const covering = found.worst_by === "covering_error";
  const title = find("worsttitle");
  title.hidden = found.worst.length === 0;
  title.textContent = covering ? "Pages that lost most" : "Pages that use their facets least";
  find("worst").replaceChildren(
    ...found.worst.map((page) => {
      const said = covering ? `covering error ${page.value.toFixed(3)}` : `${Math.round(100 * page.value)} % of its facets in effect`;
      return make(
        "li",
        { title: page.source },
        make("img", { src: picture(page.id, 160), alt: "", loading: "lazy", className: "tiny" }),
        make("span", {}, make("b", {}, ...fileName(page.source)), make("small", { textContent: `page ${count(page.number + 1)} · ${said}` })),
      );
    }),
  );
}

function tile(label, value, more) {
  return [make("div", {}, make("dt", {}, label), make("dd", {}, make("strong", { textContent: value }), make("small", { textContent: more })))];
}
