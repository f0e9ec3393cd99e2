// The page: a question, its hits, and the evidence for the one that is chosen.

import * as api from "./api.js";
import { count, fileName, find, lastPart, make, milliseconds, plural } from "./dom.js";
import { boxesOf, extent, overlay, tokensAt } from "./evidence.js";
import { showOverview } from "./overview.js";

const HITS = 20;
const narrow = matchMedia("(max-width: 800px)");
const state = { q: "", hits: [], chosen: -1, token: null, pinned: null, view: "compressed", found: new Map(), abort: null };

// ---- asking

async function ask(q, page = null) {
  state.abort?.abort();
  const abort = new AbortController();
  // What was typed while the page still loaded stays.
  if (q || state.q) find("q").value = q;
  Object.assign(state, { q, hits: [], chosen: -1, token: null, pinned: null, found: new Map(), abort });
  document.body.dataset.view = q ? "results" : "home";
  document.title = q ? `${q} – pagefacets` : "pagefacets";
  openOverview(false);
  leaveStage();
  find("problem").hidden = true;
  find("hits").replaceChildren();
  find("summary").textContent = "";
  find("latency").textContent = "";
  if (!q) {
    find("q").focus();
    await refreshOverview();
    if (state.abort === abort) busy(false);
    return;
  }
  busy(true);
  try {
    const answer = await api.search(q, HITS, abort.signal);
    showHits(answer);
    const at = Math.max(0, answer.hits.findIndex((hit) => hit.id === page));
    if (answer.hits.length && (!narrow.matches || page)) await choose(at, { quiet: true });
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  } finally {
    if (state.abort === abort) busy(false);
  }
}

function showHits(answer) {
  state.hits = answer.hits;
  const most = Math.max(...answer.hits.map((hit) => hit.score), 1e-9);
  find("hits").replaceChildren(...answer.hits.map((hit, i) => card(hit, i, most)));
  find("summary").textContent = answer.hits.length ? `Best ${plural(answer.hits.length, "page")}` : "No page was found.";
  find("latency").textContent = `in ${milliseconds(answer.took_ms)}`;
  say(`${plural(answer.hits.length, "page")} found in ${milliseconds(answer.took_ms)}`);
}

function card(hit, i, most) {
  const frame = make("span", { className: "thumb" }, thumbnail(hit.id));
  const meter = make("span", { className: "meter" }, make("i"));
  meter.firstChild.style.width = `${Math.max(2, (100 * hit.score) / most)}%`;
  const text = make(
    "span",
    { className: "about" },
    make("b", {}, ...fileName(hit.source)),
    make("span", { className: "where", textContent: `page ${count(hit.number + 1)}` }),
    make("span", { className: "score" }, meter, make("small", { textContent: hit.score.toFixed(2) })),
  );
  const button = make("button", { type: "button", title: hit.source }, frame, text);
  button.addEventListener("click", () => choose(i, { open: true }));
  button.addEventListener("focus", () => narrow.matches || choose(i));
  let waiting;
  button.addEventListener("pointerenter", (event) => {
    if (event.pointerType === "mouse") waiting = setTimeout(() => paintThumb(i), 80);
  });
  button.addEventListener("pointerleave", () => {
    clearTimeout(waiting);
    if (i !== state.chosen) frame.querySelector("svg")?.remove();
  });
  return make("li", {}, button);
}

function thumbnail(id) {
  const image = make("img", { src: api.picture(id, 320), alt: "", loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => image.classList.add("gone"));
  return image;
}

// The evidence for a hit, asked for once.
function evidenceOf(i) {
  const id = state.hits[i].id;
  if (!state.found.has(id)) {
    const asked = api.evidence(id, state.q);
    asked.catch(() => state.found.delete(id));
    state.found.set(id, asked);
  }
  return state.found.get(id);
}

async function paintThumb(i) {
  const { found: asked } = state;
  const seen = await evidenceOf(i).catch(() => null);
  const frame = cards()[i]?.querySelector(".thumb");
  if (!seen || asked !== state.found || !frame) return;
  frame.querySelector("svg")?.remove();
  if (i === state.chosen || frame.matches(":hover, button:hover *")) frame.append(overlay(seen, null, "compressed"));
}

// ---- choosing a page

const cards = () => [...find("hits").querySelectorAll("button")];

async function choose(i, { open = false, quiet = false } = {}) {
  if (i < 0 || i >= state.hits.length) return;
  if (i === state.chosen && !open) return;
  const before = state.chosen;
  const same = i === before;
  Object.assign(state, { chosen: i, token: same ? state.token : null, pinned: same ? state.pinned : null });
  cards().forEach((one, at) => {
    if (at === i) one.setAttribute("aria-current", "true");
    else one.removeAttribute("aria-current");
  });
  if (before >= 0 && !same) cards()[before]?.querySelector("svg")?.remove();
  const hit = state.hits[i];
  remember(hit.id, open && narrow.matches && !document.body.classList.contains("open"));
  if (open && narrow.matches) {
    document.body.classList.add("open");
    find("back").focus();
  }
  find("page").replaceChildren(make("span", { title: hit.source }, ...fileName(hit.source)), " ", make("small", { textContent: `page ${count(hit.number + 1)}` }));
  find("stage").hidden = false;
  if (same && find("sheets").firstChild) return;
  find("stage").classList.add("waiting");
  const { found: asked } = state;
  try {
    const found = await evidenceOf(i);
    if (asked !== state.found || i !== state.chosen) return;
    showStage(found);
    paintThumb(i);
    if (!quiet) say(`Page ${hit.number + 1} of ${lastPart(hit.source)}, score ${hit.score.toFixed(2)}`);
  } catch (error) {
    if (asked === state.found && i === state.chosen) complain(error);
  } finally {
    if (i === state.chosen) find("stage").classList.remove("waiting");
  }
}

function leaveStage() {
  document.body.classList.remove("open");
  find("stage").hidden = true;
  find("sheets").replaceChildren();
  find("tokens").replaceChildren();
}

function showStage(found) {
  state.seen = found;
  const full = found.full_score !== null;
  find("views").hidden = !full;
  if (!full) state.view = "compressed";
  showTokens(found);
  showSheets(found);
  note();
}

function showSheets(found) {
  const views = state.view === "both" ? ["full", "compressed"] : [state.view];
  find("sheets").classList.toggle("two", views.length === 2);
  find("sheets").replaceChildren(...views.map((view) => sheet(found, view, views.length)));
}

function sheet(found, view, shown) {
  const [width, height] = extent(found);
  const paper = make("div", { className: "paper" });
  paper.style.aspectRatio = `${width} / ${height}`;
  if (found.image === true) {
    const longest = Math.min(2000, Math.ceil((shown === 2 ? 900 : 1200) * Math.min(2, devicePixelRatio)));
    const image = make("img", { src: api.picture(found.page, longest), alt: `Page ${found.number + 1} of ${found.source}`, decoding: "async" });
    image.addEventListener("error", () => image.replaceWith(missing("The picture of this page cannot be read.")));
    paper.append(image);
  } else paper.append(missing(found.image));
  paper.append(overlay(found, state.token, view));
  paper.dataset.view = view;
  paper.addEventListener("pointermove", (event) => {
    const box = paper.getBoundingClientRect();
    link(tokensAt(found, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height, view));
  });
  paper.addEventListener("pointerleave", () => link([]));
  const [name, score] = view === "full" ? [`Full, ${plural(found.n, "vector")}`, found.full_score] : [`Compressed, ${plural(found.k, "facet")}`, found.score];
  return make("figure", {}, make("figcaption", {}, make("b", { textContent: name }), make("span", { textContent: `score ${score.toFixed(2)}` })), paper);
}

const missing = (why) => make("p", { className: "missing", textContent: why });

function repaint() {
  for (const paper of find("sheets").querySelectorAll(".paper")) {
    paper.querySelector("svg").replaceWith(overlay(state.seen, state.token, paper.dataset.view));
  }
  chips().forEach((one) => one.setAttribute("aria-pressed", String(one.token === state.token)));
  note();
}

// ---- tokens

const chips = () => [...find("tokens").querySelectorAll("button")];

function showTokens(found) {
  const least = Math.min(...found.tokens.map((one) => one.score));
  const most = Math.max(...found.tokens.map((one) => one.score), least + 1e-9);
  const joined = continued(found.tokens.map((one) => one.text ?? ""), found.query ?? "");
  const all = chip("All", null, null);
  const each = found.tokens.map((one, i) => chip(said(one, i), i, (one.score - least) / (most - least), joined[i]));
  find("tokens").replaceChildren(all, ...each);
  chips().forEach((one, i) => (one.tabIndex = i === 0 ? 0 : -1));
}

// Which pieces go on where the one before ends, in the middle of a word of the question.
function continued(pieces, question) {
  let end = 0;
  return pieces.map((piece) => {
    const at = piece ? question.indexOf(piece, end) : -1;
    if (at < 0) return false;
    const inside = at === end && at > 0 && /[\p{L}\p{N}]{2}/u.test(question.slice(at - 1, at + 1));
    end = at + piece.length;
    return inside;
  });
}

function chip(text, token, share, joined = false) {
  const button = make("button", { type: "button", className: joined ? "chip joined" : "chip", textContent: text, "aria-pressed": String(token === state.token) });
  button.token = token;
  if (share !== null) button.style.setProperty("--share", share.toFixed(3));
  button.addEventListener("click", () => pin(state.pinned === token ? null : token));
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && look(token));
  button.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && look(state.pinned));
  button.addEventListener("focus", () => {
    chips().forEach((one) => (one.tabIndex = one === button ? 0 : -1));
    if (button.matches(":focus-visible")) look(token);
  });
  button.addEventListener("blur", () => look(state.pinned));
  return button;
}

const said = (one, i) => one.text?.trim() || `token ${i + 1}`;

function look(token) {
  if (token === state.token || !state.seen) return;
  state.token = token;
  repaint();
}

function pin(token) {
  state.pinned = token;
  look(token);
}

function link(tokens) {
  for (const one of chips()) one.classList.toggle("linked", one.token !== null && tokens.includes(one.token));
}

function note() {
  const found = state.seen;
  const text = find("note");
  if (state.token === null) {
    const placed = boxesOf(found, null, "compressed").length;
    text.textContent = placed
      ? `Each of ${plural(found.tokens.length, "token")} chose one of ${plural(found.k, "facet")}; marked is what lies behind them.`
      : "Where the vectors of this page lie on it is not known.";
    return;
  }
  const one = found.tokens[state.token];
  const full = one.full ? ` (full ${one.full.score.toFixed(2)})` : "";
  text.textContent = `“${said(one, state.token)}” chose facet ${one.facet}, which stands for ${count(one.members)} of ${plural(found.n, "vector")}: score ${one.score.toFixed(2)}${full}`;
}

// ---- the rest of the page

function complain(error) {
  const problem = find("problem");
  problem.textContent = error.message;
  problem.hidden = false;
}

function busy(on) {
  document.body.classList.toggle("busy", on);
  find("all").setAttribute("aria-busy", String(on));
}

function say(text) {
  find("live").textContent = text;
}

function remember(page, push) {
  const url = new URL(location.href);
  url.search = new URLSearchParams(page ? { q: state.q, page } : { q: state.q }).toString();
  history[push ? "pushState" : "replaceState"]({}, "", url);
}

function openOverview(open) {
  document.body.classList.toggle("overviewed", open);
  find("about").setAttribute("aria-expanded", String(open));
  if (open) {
    find("close").focus();
    refreshOverview();
  }
}

async function refreshOverview() {
  try {
    await showOverview();
  } catch (error) {
    complain(error);
  }
}

function submit(q) {
  const url = new URL(location.href);
  url.search = q ? new URLSearchParams({ q }).toString() : "";
  history.pushState({}, "", url);
  return ask(q);
}

function fromAddress() {
  const given = new URLSearchParams(location.search);
  const [q, page] = [(given.get("q") ?? "").trim(), given.get("page")];
  if (q && q === state.q && state.hits.length) {
    const at = state.hits.findIndex((hit) => hit.id === page);
    if (at >= 0 && !narrow.matches) return choose(at);
    document.body.classList.remove("open");
    cards()[state.chosen]?.focus({ preventScroll: true });
    return undefined;
  }
  return ask(q, page);
}

function closeStage() {
  if (!document.body.classList.contains("open")) return false;
  document.body.classList.remove("open");
  remember(null, false);
  cards()[state.chosen]?.focus();
  return true;
}

find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = find("q").value.trim();
  if (!q) return;
  if (narrow.matches) find("q").blur();
  submit(q);
});
find("home").addEventListener("click", (event) => {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  submit("");
});
find("about").addEventListener("click", () => openOverview(!document.body.classList.contains("overviewed")));
find("close").addEventListener("click", () => {
  openOverview(false);
  find("about").focus();
});
find("back").addEventListener("click", closeStage);
find("views").addEventListener("change", (event) => {
  state.view = event.target.value;
  showSheets(state.seen);
});
addEventListener("popstate", fromAddress);

// ---- keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = document.activeElement;
  const typing = at === find("q");
  const among = cards().indexOf(at);
  const token = chips().indexOf(at);
  const move = (to) => {
    to?.focus();
    event.preventDefault();
  };
  if (event.key === "/" && !typing) {
    closeStage();
    find("q").select();
    move(find("q"));
  } else if (event.key === "Escape") {
    if (document.body.classList.contains("overviewed")) {
      openOverview(false);
      move(find("about"));
    } else if (token >= 0) {
      pin(null);
      if (!narrow.matches) move(cards()[state.chosen]);
      else closeStage();
    } else if (closeStage()) event.preventDefault();
    else if (among >= 0) move(find("q"));
  } else if (event.key === "ArrowDown" && (typing || at === document.body)) move(cards()[Math.max(0, state.chosen)]);
  else if (among >= 0 && event.key === "ArrowDown") move(cards()[among + 1]);
  else if (among >= 0 && event.key === "ArrowUp") move(among ? cards()[among - 1] : find("q"));
  else if (among >= 0 && event.key === "Home") move(cards()[0]);
  else if (among >= 0 && event.key === "End") move(cards().at(-1));
  else if (among >= 0 && (event.key === "Enter" || event.key === "ArrowRight") && !narrow.matches) move(chips()[0]);
  else if (token >= 0 && event.key === "ArrowRight") move(chips()[token + 1]);
  else if (token >= 0 && event.key === "ArrowLeft") move(token ? chips()[token - 1] : cards()[state.chosen]);
  else if (token >= 0 && (event.key === "ArrowDown" || event.key === "ArrowUp") && !narrow.matches) move(cards()[state.chosen + (event.key === "ArrowDown" ? 1 : -1)]);
});

if (new URLSearchParams(location.search).get("q")) refreshOverview();
fromAddress();
