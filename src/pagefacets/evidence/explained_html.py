"""An explanation as one page for a browser: the document's page with its evidence, the query's tokens to choose from.

Texts of queries and documents are hostile: everything is escaped, and the page's own policy lets nothing run or load
but the style and the script that stand in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image

from pagefacets.evidence.heatmap import FADE, PALETTE

if TYPE_CHECKING:
    from pagefacets.evidence.explain import Explanation, TokenEvidence, View

__all__ = ["html_page"]

# How well the picture is kept: text stays sharp, and a page takes about 150 kB.
QUALITY = 80


def html_page(found: Explanation, view: View) -> str:
    """The page, opened in `view`."""
    style, script = _part("explained.css"), _part("explained.js")
    image = found.sheet.image
    heat, shape = ",".join(PALETTE), image.width / image.height
    style = f":root {{ --heat: linear-gradient(90deg, {heat}); --shape: {shape:.5f}; }}\n{style}"
    title = " · ".join([found.query or "Evidence", *found.place])
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        f"base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(_visible(title))}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"{_side(found)}{_section(found, view, image)}</main>\n"
        f'<script type="application/json" id="evidence">{_data(found, view)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>"
    )


def _side(found: Explanation) -> str:
    scores = [("score", f"{found.score:.3f}")]
    if found.full_score is not None:
        scores.append(("with all vectors", f"{found.full_score:.3f}"))
    scores.append(("vectors kept", f"{found.k:,} of {found.n:,}"))
    listed = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in scores)
    chips = '<button type="button" data-token="-1" aria-pressed="true">all tokens</button>' + "".join(
        f'<button type="button" data-token="{i}" aria-pressed="false">{_named(one, i)}</button>'
        for i, one in enumerate(found.tokens)
    )
    missing = found.sheet.missing
    note = "" if missing is None else f'<p class="note">{_text(missing)}</p>\n'
    heading = "Query" if found.query is None else _text(found.query)
    return (
        f'<div class="side">\n<header>\n<h1>{heading}</h1>\n<p class="where">{_text(", ".join(found.place))}</p>\n'
        f"</header>\n"
        f'<dl class="scores">{listed}</dl>\n{note}'
        f'<div class="chips" role="group" aria-label="Query tokens">{chips}</div>\n'
        f'<p class="about" id="about" role="status">{escape(_summary(found))}</p>\n'
        f'<p class="legend">little <span></span> much evidence</p>\n{_table(found)}</div>\n'
    )


def _section(found: Explanation, view: View, image: Image.Image) -> str:
    kept = found.full_score is not None
    sights = [("full", "Full vectors: the pick of each token")] if kept else []
    sights.append(("compressed", "Facets: what is behind each pick"))
    size = f'width="{image.width}" height="{image.height}"'
    buttons = '<button type="button" id="enlarge" aria-pressed="false">Enlarge</button>'
    if kept:
        choices = [("full", "Full vectors"), ("compressed", "Facets"), ("both", "Side by side")]
        buttons = (
            "".join(
                f'<button type="button" data-view="{name}" aria-pressed="{"true" if name == view else "false"}">'
                f"{label}</button>"
                for name, label in choices
            )
            + buttons
        )
    alt = escape(_visible(", ".join(found.place)) or "The page")
    figures = "".join(
        f'<figure data-sight="{name}"{"" if view in ("both", name) else " hidden"}>\n<figcaption>{label}</figcaption>\n'
        f'<div class="sheet"><img {"data-again" if i else _source(image)} alt="{alt}" {size}>'
        f'<canvas width="1" height="1" aria-hidden="true"></canvas>'
        f'<svg viewBox="0 0 {image.width} {image.height}" preserveAspectRatio="none" aria-hidden="true"></svg></div>\n'
        f"</figure>\n"
        for i, (name, label) in enumerate(sights)
    )
    return (
        f'<section aria-label="The page and its evidence">\n<div class="bar" role="group" aria-label="View">{buttons}'
        f'</div>\n<div class="pages" id="pages">\n{figures}</div>\n</section>\n'
    )


def _table(found: Explanation) -> str:
    kept = found.full_score is not None
    head = "".join(f'<th scope="col">{name}</th>' for name in ("token", "facet", "stands for", "score"))
    rows = "".join(
        f'<tr data-row="{i}"><td>{_named(one, i)}</td><td>{one.facet}</td><td>{one.members}</td>'
        f"<td>{one.score:.3f}</td>{'' if one.full is None else f'<td>{one.full.score:.3f}</td>'}</tr>"
        for i, one in enumerate(found.tokens)
    )
    full = '<th scope="col">full</th>' if kept else ""
    return (
        f'<details open><summary>Every token</summary>\n<div class="table"><table><thead><tr>{head}{full}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>\n"
    )


def _data(found: Explanation, view: View) -> str:
    shown: dict[str, Any] = {
        **found.to_json(),
        "view": view,
        "palette": PALETTE,
        "fade": FADE,
        "summary": _summary(found),
    }
    text = json.dumps(shown, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _summary(found: Explanation) -> str:
    if not found.boxes():
        return "It is not known where the vectors of this page lie on it; the table has each token's score."
    return "Where the evidence of all tokens lies. Choose one to see its own; arrow keys move on, Escape shows all."


def _named(one: TokenEvidence, index: int) -> str:
    return f"token {index + 1}" if one.text is None else _text(one.text)


def _text(text: str) -> str:
    """Text that can neither become markup nor turn the direction of what follows."""
    return f"<bdi>{escape(_visible(text))}</bdi>"


def _visible(text: str) -> str:
    """Text on one line, without controls and halves of surrogate pairs."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def _source(image: Image.Image) -> str:
    stream = BytesIO()
    image.save(stream, format="WEBP", quality=QUALITY)
    return f'src="data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode("ascii")}"'


@cache
def _part(name: str) -> str:
    return resources.files("pagefacets.evidence").joinpath("explained", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
