"""The JSON API, described as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from pagefacets import __version__
from pagefacets.serve.limits import Limits

__all__ = ["description"]

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}


def description(limits: Limits) -> dict[str, Any]:
    """The whole document, with the bounds that this server has."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pagefacets",
            "version": __version__,
            "description": "Search an index of page vectors, and see on the page why it was found.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(limits),
        "components": {
            "schemas": _schemas(),
            "responses": {
                "Refused": _json("A request that cannot be answered; the sentence says why.", _ref("Error")),
                "Busy": {
                    **_json("Too many requests wait: ask again after the seconds in Retry-After.", _ref("Error")),
                    "headers": {"Retry-After": {"schema": _COUNT}},
                },
            },
        },
    }


def _paths(limits: Limits) -> Schema:
    q = {**_TEXT, "minLength": 1, "maxLength": limits.query_characters}
    k = {"type": "integer", "minimum": 1, "maximum": limits.hits, "default": 10}
    condition = {**_TEXT, "maxLength": limits.filter_characters}
    rescore = {"type": "integer", "minimum": 1, "maximum": limits.candidates}
    search = [
        _query("q", q, "The question.", required=True),
        _query("k", k, "How many hits."),
        _query("filter", condition, "A condition in SQL over id, source and number."),
        _query("rescore", rescore, "Rank so many candidates again by their full vectors."),
    ]
    body = {
        "type": "object",
        "properties": {"q": q, "k": k, "filter": _or_null(condition), "rescore": _or_null(rescore)},
        "required": ["q"],
        "additionalProperties": False,
    }
    named = {"name": "id", "in": "path", "required": True, "schema": _TEXT, "description": "A page's id; / is %2F."}
    longest = {"type": "integer", "minimum": 1, "maximum": limits.sides[-1], "default": 960}
    image = {
        "200": {
            "description": "The page. Its longer side has one of a few lengths, the least not below `longest`.",
            "content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}},
        },
        "304": {"description": "The picture has not changed."},
    }
    text = {"200": {"description": "Counters and gauges.", "content": {"text/plain": {"schema": _TEXT}}}}
    return {
        "/search": {
            "get": _operation("search", "The best pages for a question.", _ref("Hits"), 400, 503, ask=search),
            "post": {
                **_operation("searchByBody", "The same, asked in JSON.", _ref("Hits"), 400, 408, 413, 415, 503),
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            },
        },
        "/pages/{id}": {"get": _operation("page", "What is known of a page.", _ref("Page"), 404, 503, ask=[named])},
        "/pages/{id}/image": {
            "get": {
                "operationId": "image",
                "summary": "A picture of a page.",
                "parameters": [named, _query("longest", longest, "Pixels of its longer side.")],
                "responses": image | _refusals(400, 404, 503),
            }
        },
        "/evidence": {
            "get": _operation(
                "evidence",
                "Why a page answers a question: the facet of each token, and the places on the page behind it.",
                _ref("Evidence"),
                400,
                404,
                503,
                ask=[_query("page", _TEXT, "A page's id.", required=True), search[0]],
            )
        },
        "/stats": {"get": _operation("stats", "What the index holds and what it saves.", _ref("Stats"), 503)},
        "/health": {"get": _operation("health", "Whether the newest version is served.", _ref("Health"))},
        "/metrics": {"get": {"operationId": "metrics", "summary": "Numbers for Prometheus.", "responses": text}},
    }


def _schemas() -> Schema:
    box = {"type": "array", "prefixItems": [_SHARE, _SHARE, _SHARE, _SHARE, _NUMBER], "minItems": 5, "items": False}
    boxes = {"type": "array", "items": _ref("Box")}
    pair = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
    cells = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
    hit = {"id": _TEXT, "source": _TEXT, "number": _COUNT, "score": _NUMBER}
    full = {"row": _COUNT, "score": _NUMBER, "boxes": boxes}
    token = {
        "text": _or_null(_TEXT),
        "facet": _COUNT,
        "score": _NUMBER,
        "members": _COUNT,
        "boxes": boxes,
        "full": _or_null(_object(full)),
    }
    evidence = {
        "page": _TEXT,
        "source": _TEXT,
        "number": _COUNT,
        "query": _or_null(_TEXT),
        "size": _or_null(pair),
        "score": _NUMBER,
        "full_score": _or_null(_NUMBER),
        "n": _COUNT,
        "k": _COUNT,
        "weights": {"enum": ["assignment", "transport"]},
        "grid": _or_null(cells),
        "image": {"oneOf": [{"const": True}, _TEXT], "description": "true, or why the page has no picture."},
        "tokens": {"type": "array", "items": _object(token)},
        "boxes": boxes,
        "full_boxes": _or_null(boxes),
        "took_ms": _NUMBER,
    }
    worst = {"id": _TEXT, "source": _TEXT, "number": _COUNT, "value": _NUMBER}
    stats = {
        "name": _TEXT,
        "version": _COUNT,
        "pages": _COUNT,
        "documents": _COUNT,
        "encoder": _TEXT,
        "compressor": _TEXT,
        "dtype": _TEXT,
        "full": _FLAG,
        "vectors": {**_COUNT, "description": "Vectors before compression."},
        "facets": {**_COUNT, "description": "Vectors that are kept and searched."},
        "ratio": {**_SHARE, "description": "facets / vectors."},
        "bytes": {**_COUNT, "description": "Bytes of the facets."},
        "full_bytes": {**_COUNT, "description": "Bytes that the vectors would take in float16."},
        "k_mean": {**_NUMBER, "description": "Facets of a page, on average."},
        "k_eff": {**_NUMBER, "description": "Facets of a page in effect: e to the entropy of the demand on them."},
        "worst_by": {
            "enum": ["covering_error", "facet_use"],
            "description": "The mean distance of a page's vectors from their facets, or K_eff / K.",
        },
        "worst": {"type": "array", "items": _object(worst)},
    }
    page = {
        "id": _TEXT,
        "source": _TEXT,
        "number": {**_COUNT, "description": "Counted from 0."},
        "size": _or_null(pair),
        "n": _COUNT,
        "k": _COUNT,
        "k_eff": _NUMBER,
        "grid": _or_null(cells),
        "boxes": {**_FLAG, "description": "Whether the places of its words are known."},
        "full": {**_FLAG, "description": "Whether its full vectors are kept."},
    }
    health = {
        "status": {"enum": ["ok", "stale"], "description": "stale: an older version is served, for the reason in why."},
        "pages": _COUNT,
        "version": _COUNT,
        "why": _or_null(_TEXT),
    }
    return {
        "Box": {**box, "description": "Left, top, right, bottom as shares of the page, and a weight."},
        "Hits": _object({"hits": {"type": "array", "items": _object(hit)}, "took_ms": _NUMBER}),
        "Page": _object(page),
        "Evidence": _object(evidence),
        "Stats": _object(stats),
        "Health": _object(health),
        "Error": _object({"error": {**_TEXT, "description": "One sentence."}}),
    }


def _operation(id: str, summary: str, answer: Schema, *refused: int, ask: list[Schema] | None = None) -> Schema:
    operation: Schema = {
        "operationId": id,
        "summary": summary,
        "responses": {"200": _json("The answer.", answer)} | _refusals(*refused),
    }
    return operation if ask is None else {**operation, "parameters": ask}


def _refusals(*status: int) -> Schema:
    names = {503: "Busy"}
    return {str(one): {"$ref": f"#/components/responses/{names.get(one, 'Refused')}"} for one in status}


def _query(name: str, schema: Schema, text: str, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": text}


def _json(text: str, schema: Schema) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
