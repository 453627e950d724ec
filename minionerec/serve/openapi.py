"""The description of the HTTP interface: paths, fields, limits, and examples taken from the model in service."""

from collections.abc import Mapping
from typing import Any

from minionerec.data.moments import MOMENTS
from minionerec.serve.config import Limits
from minionerec.serve.models import Served
from minionerec.serve.writing import answered

Schema = dict[str, Any]

_JSON = "application/json"
_ERRORS = {
    400: "the body is no JSON",
    401: "no key, or not the right one",
    404: "models are not exchanged here",
    408: "the body took too long to come",
    409: "refused; the model in service stays",
    413: "the body is too large",
    415: "the body is not announced as JSON",
    422: "a field is wrong; the error names it",
    503: "too many requests wait, or the model is not ready; Retry-After says when to come again",
    504: "no answer within the time limit",
}
_ASKING = (400, 401, 408, 413, 415, 422, 503, 504)
_WRONG = {"error": {"field": "history[1]", "message": "is 7; expected an item id: a text of 1 to 512 characters."}}
_TEXT: Schema = {"type": "string"}
_IDS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 512}}
_NO_MODEL = {"name": "catalogue model", "version": "0123456789ab"}


def _object(properties: Mapping[str, Schema], required: tuple[str, ...] | None = None) -> Schema:
    """An object with these fields and no others, all of them required unless told."""
    names = list(properties if required is None else required)
    found: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return found | ({"required": names} if names else {})


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": of, **more}


def request_schema(limits: Limits) -> Schema:
    """The schema of one request."""
    scalar = {"type": ["string", "number", "boolean"]}
    bounds = _object({"at_least": {"type": "number"}, "at_most": {"type": "number"}}, ()) | {"minProperties": 1}
    condition = {"anyOf": [scalar, _list(scalar, minItems=1), bounds]}
    fields: dict[str, Schema] = {
        "history": {**_IDS, "maxItems": limits.max_history, "default": []},
        "k": {"type": "integer", "minimum": 1, "maximum": limits.max_k, "default": limits.usual_k},
        "exclude_seen": {"type": "boolean", "default": False},
        "only": {**_IDS, "type": ["array", "null"], "maxItems": limits.max_list},
        "without": {**_IDS, "maxItems": limits.max_list, "default": []},
        "where": {"type": ["object", "null"], "additionalProperties": condition, "maxProperties": 32},
        "unknown": {"enum": ["skip", "refuse"], "default": "skip"},
        "moment": {"enum": list(MOMENTS), "default": "unknown"},
    }
    said = {
        "history": "item ids, oldest first",
        "k": "items wanted",
        "exclude_seen": "leave the history's items out",
        "only": "items that may be listed; all if null",
        "without": "items that may not",
        "where": "conditions on columns, all of which must hold: a value, a list of which one must hold, or bounds; "
        "GET /v1/model names the columns",
        "unknown": "whether ids that are of no item are left out and named, or refused",
        "moment": "when the next item is wanted: same, while the newest one's visit goes on; later, when somebody "
        "comes back; a model that was not told it in training takes unknown alone, see moments of GET /v1/model",
    }
    return _object({name: {**field, "description": said[name]} for name, field in fields.items()}, ())


def schemas(limits: Limits) -> dict[str, Schema]:
    """The schemas that paths refer to.

    Args:
        limits: What one call may ask for.
    """
    unknown = {**_list(_TEXT), "description": "ids asked with that are of no item"}
    lists = {"items": _list(_ref("Recommended")), "unknown": unknown}
    model = {"model": _ref("Model")}
    recommended: dict[str, Schema] = {
        "item_id": _TEXT,
        "title": _TEXT,
        "sid": {"type": ["string", "null"], "description": "semantic ID, of models that speak them"},
        "score": {"type": ["number", "null"], "description": "what it was ranked by, higher is better"},
        "probability": {"type": ["number", "null"], "description": "of the semantic ID, of models that know it"},
    }
    tree = "nodes of the tree of semantic IDs: code, probability, children, ids of the items at a leaf"
    found = _object({"item_id": _TEXT, "title": _TEXT, "columns": {"type": "object"}})
    asked = {"requests": _list(_ref("Request"), minItems=1, maxItems=limits.max_requests)}
    return {
        "Request": request_schema(limits),
        "Requests": _object(asked),
        "Recommended": _object(recommended),
        "Model": _object({"name": _TEXT, "version": _TEXT}),
        "List": _object(lists),
        "Answer": _object(lists | model),
        "Answers": _object({"results": _list(_ref("List")), **model}),
        "Explanation": _object(
            {
                "tree": {**_list({"type": "object"}), "description": tree},
                "reasons": {"type": "object", "description": "item id to what spoke for it"},
                **model,
            }
        ),
        "Items": _object({"items": _list(found), "unknown": unknown}),
        "Reload": _object({"checkpoint": _TEXT, "items": _TEXT, "back": {"type": "boolean"}}, ()),
        "Error": _object({"error": _object({"field": {"type": ["string", "null"]}, "message": _TEXT})}),
    }


def _gives(description: str, schema: Schema | None = None, kind: str = _JSON, **examples: Any) -> Schema:
    """An answer, or a body, with examples by name."""
    content: Schema = {"schema": schema or {"type": "object"}}
    if examples:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"description": description, "content": {kind: content}}


def _errors(*statuses: int) -> dict[str, Schema]:
    found = {str(status): _gives(_ERRORS[status], _ref("Error")) for status in statuses}
    return found | ({"422": _gives(_ERRORS[422], _ref("Error"), wrong=_WRONG)} if 422 in statuses else {})


def operations(served: Served | None) -> dict[tuple[str, str], Schema]:
    """(method, path) to its description as OpenAPI has it.

    Args:
        served: The model that examples are taken from; they are empty where there is none.
    """
    request: Schema = {"history": [], "k": 3}
    one: Schema = {"items": [], "unknown": []}
    model = _NO_MODEL
    if served is not None:
        asked, answer = served.example
        request = {"history": list(asked.history), "k": asked.k, "exclude_seen": asked.exclude_seen}
        one, model = answered(answer), served.model
    return {
        ("post", "/v1/recommend"): {
            "summary": "The best items after a history, or after each of several.",
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
            "summary": "Where a list stands in the tree of semantic IDs, and what spoke for its items.",
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
        ("query", {**_TEXT, "maxLength": 200}, "beginnings of words of the title, or an id"),
        ("ids", {**_IDS, "maxItems": 100}, "instead of a query; given once for each id"),
        ("limit", number, "most items found by a query"),
    ]
    return {
        ("get", "/v1/items"): {
            "summary": "Items by words of their titles, or by their ids.",
            "parameters": [
                {"name": name, "in": "query", "schema": schema, "description": said}
                for name, schema, said in parameters
            ],
            "responses": {
                "200": _gives("the items found", _ref("Items"), found={"items": items[:1], "unknown": []}),
                **_errors(401, 422, 503),
            },
        },
        ("get", "/v1/model"): {
            "summary": "The model in service, what its items can be filtered by, which moments it knows, and the "
            "limits of a call.",
            "responses": {
                "200": _gives("name, version, items, filters, moments, limits", model={**model, "items": len(items)}),
                **_errors(401, 503),
            },
        },
    }


def _operating(model: Schema) -> dict[tuple[str, str], Schema]:
    """The paths for whoever runs the server."""
    reloaded = {"model": model, "before": model, "seconds": 0.8}
    return {
        ("post", "/v1/reload"): {
            "summary": "Bring another model into service, or the one before; where the server allows it.",
            "requestBody": _gives("what to load", _ref("Reload"), again={}, back={"back": True}),
            "responses": {
                "200": _gives("the model in service, and the one before", now=reloaded),
                **_errors(400, 401, 404, 408, 409, 413, 415, 422),
            },
        },
        ("get", "/healthz"): {
            "summary": "Whether the process lives.",
            "responses": {"200": _gives("it does", alive={"status": "ok"})},
        },
        ("get", "/readyz"): {
            "summary": "Whether a model is there and was tried.",
            "responses": {"200": _gives("it is", ready={"status": "ready", "model": model}), **_errors(503)},
        },
        ("get", "/metrics"): {
            "summary": "Numbers for Prometheus.",
            "responses": {"200": _gives("text", _TEXT, "text/plain"), **_errors(401)},
        },
    }
