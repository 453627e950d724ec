"""The description of the HTTP interface, as an OpenAPI document.

The fields of a request come from `minionerec.recommend.requests.Request`, its limits from the settings, and the
examples from the model in service.
"""

from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from minionerec import __version__
from minionerec.recommend.requests import Recommended
from minionerec.serve.config import Limits
from minionerec.serve.models import Served
from minionerec.serve.reading import limited
from minionerec.serve.writing import answered

Schema = dict[str, Any]

TITLE = "minionerec"
DESCRIPTION = (
    "Recommends items of a catalogue for histories of its items. Errors are returned as "
    '{"error": {"field": ..., "message": ...}}, with a message of one line.'
)

_JSON = "application/json"
_ERRORS = {
    400: "the body is not valid JSON",
    401: "missing or invalid API key",
    404: "reloading is disabled",
    408: "timeout while receiving the body",
    409: "refused; the model in service is unchanged",
    413: "the body is too large",
    415: "Content-Type is not application/json",
    422: "a field is invalid; see the error",
    503: "the queue is full, or the model is not ready; see Retry-After",
    504: "no answer within the time limit",
}
_ASKING = (400, 401, 408, 413, 415, 422, 503, 504)
_WRONG = {
    "error": {"field": "history[1]", "message": "is 7; expected an item id: a text of 1 to 512 characters, in quotes."}
}
_TEXT: Schema = {"type": "string"}
_IDS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 512}}
_NO_MODEL = {"name": "catalogue model", "version": "0123456789ab"}


def _object(properties: Mapping[str, Schema], required: tuple[str, ...] | None = None) -> Schema:
    """An object with exactly these fields, by default all required."""
    names = list(properties if required is None else required)
    schema: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return schema | ({"required": names} if names else {})


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": of, **more}


def schemas(limits: Limits) -> dict[str, Schema]:
    """The schemas that paths refer to.

    Args:
        limits: The limits of one call.
    """
    unknown = {**_list(_TEXT), "description": "unknown ids of the request"}
    context = {"type": "object", "description": "values of request features that the model was given, by name"}
    lists = {"items": _list(_ref("Recommended")), "unknown": unknown, "context": context}
    model = {"model": _ref("Model")}
    hints = get_type_hints(Recommended, include_extras=True)
    recommended = {name: TypeAdapter(hint).json_schema() for name, hint in hints.items()}
    tree = "nodes of the tree of semantic IDs: code, probability, children, ids of the items at a leaf"
    item = _object({"item_id": _TEXT, "title": _TEXT, "columns": {"type": "object"}})
    requests = {"requests": _list(_ref("Request"), minItems=1, maxItems=limits.max_requests)}
    return {
        "Request": TypeAdapter(limited(limits)).json_schema(),
        "Requests": _object(requests),
        "Recommended": _object(recommended),
        "Model": _object({"name": _TEXT, "version": _TEXT}),
        "List": _object(lists),
        "Answer": _object(lists | model),
        "Answers": _object({"results": _list(_ref("List")), **model}),
        "Explanation": _object(
            {
                "tree": {**_list({"type": "object"}), "description": tree},
                "reasons": {"type": "object", "description": "reasons by item id"},
                **model,
            }
        ),
        "Items": _object({"items": _list(item), "unknown": unknown}),
        "Reload": _object({"checkpoint": _TEXT, "corpus": _TEXT, "back": {"type": "boolean"}}, ()),
        "Error": _object({"error": _object({"field": {"type": ["string", "null"]}, "message": _TEXT})}),
    }


def _gives(description: str, schema: Schema | None = None, kind: str = _JSON, **examples: Any) -> Schema:
    """A response or a body, with examples by name."""
    content: Schema = {"schema": schema or {"type": "object"}}
    if examples:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"description": description, "content": {kind: content}}


def _errors(*statuses: int) -> dict[str, Schema]:
    responses = {str(status): _gives(_ERRORS[status], _ref("Error")) for status in statuses}
    return responses | ({"422": _gives(_ERRORS[422], _ref("Error"), wrong=_WRONG)} if 422 in statuses else {})


def operations(served: Served | None) -> dict[tuple[str, str], Schema]:
    """(method, path) to its OpenAPI operation.

    Args:
        served: The model for examples; these are empty without one.
    """
    request: Schema = {"history": [], "k": 3}
    one: Schema = {"items": [], "unknown": [], "context": {}}
    model = _NO_MODEL
    if served is not None:
        query, answer = served.example
        request = {"history": list(query.history), "k": query.k, "exclude_seen": query.exclude_seen}
        one, model = answered(answer), served.model
    return {
        ("post", "/v1/recommend"): {
            "summary": "Recommend items for one history or several.",
            "requestBody": _gives(
                "one request, or several",
                {"oneOf": [_ref("Request"), _ref("Requests")]},
                one=request,
                several={"requests": [request, {"history": []}]},
            ),
            "responses": {
                "200": _gives(
                    "one list, or one for each request",
                    {"oneOf": [_ref("Answer"), _ref("Answers")]},
                    one={**one, "model": model},
                    several={"results": [one], "model": model},
                ),
                **_errors(*_ASKING),
            },
        },
        ("post", "/v1/explain"): {
            "summary": "Explain a list: the tree of semantic IDs, and reasons by item.",
            "requestBody": _gives("one request", _ref("Request"), one=request),
            "responses": {"200": _gives("tree and reasons", _ref("Explanation")), **_errors(*_ASKING)},
        },
        **_reading(one, model),
        **_operating(model),
    }


def _reading(one: Schema, model: Schema) -> dict[tuple[str, str], Schema]:
    """The paths that read the catalogue."""
    items = [{"item_id": item["item_id"], "title": item["title"], "columns": {}} for item in one["items"]]
    number = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    parameters = [
        ("query", {**_TEXT, "maxLength": 200}, "prefixes of words of the title, or an id"),
        ("ids", {**_IDS, "maxItems": 100}, "instead of a query; repeated for each id"),
        ("limit", number, "maximum number of items found"),
    ]
    return {
        ("get", "/v1/items"): {
            "summary": "Search items by words of their titles, or get them by id.",
            "parameters": [
                {"name": name, "in": "query", "schema": schema, "description": text}
                for name, schema, text in parameters
            ],
            "responses": {
                "200": _gives("the items found", _ref("Items"), found={"items": items[:1], "unknown": []}),
                **_errors(401, 422, 503),
            },
        },
        ("get", "/v1/model"): {
            "summary": "The model in service, what its items can be filtered by, which events and request features it "
            "reads, and the limits of a call.",
            "responses": {
                "200": _gives(
                    "name, version, items, filters, events, context, limits",
                    model={**model, "items": len(items)},
                ),
                **_errors(401, 503),
            },
        },
    }


def _operating(model: Schema) -> dict[tuple[str, str], Schema]:
    """The paths for operators."""
    reloaded = {"model": model, "before": model, "seconds": 0.8}
    return {
        ("post", "/v1/reload"): {
            "summary": "Load another model, or return to the previous one; if enabled.",
            "requestBody": _gives("what to load", _ref("Reload"), again={}, back={"back": True}),
            "responses": {
                "200": _gives("the model in service, and the previous one", now=reloaded),
                **_errors(400, 401, 404, 408, 409, 413, 415, 422),
            },
        },
        ("get", "/healthz"): {
            "summary": "Liveness check.",
            "responses": {"200": _gives("alive", alive={"status": "ok"})},
        },
        ("get", "/readyz"): {
            "summary": "Readiness check: a model is loaded and tested.",
            "responses": {"200": _gives("ready", ready={"status": "ready", "model": model}), **_errors(503)},
        },
        ("get", "/metrics"): {
            "summary": "Prometheus metrics.",
            "responses": {"200": _gives("text", _TEXT, "text/plain"), **_errors(401)},
        },
    }


def document(served: Served | None, limits: Limits) -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__, "description": DESCRIPTION},
        "paths": {path: {method: operation} for (method, path), operation in operations(served).items()},
        "components": {
            "schemas": schemas(limits),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
