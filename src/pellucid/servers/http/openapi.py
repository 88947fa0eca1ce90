"""The OpenAPI document of the HTTP door, made from its own table of endpoints."""

from __future__ import annotations

from typing import Any, Final

from pellucid import __version__
from pellucid.core.tensor import DATATYPES
from pellucid.servers.http.routes import ENDPOINTS, NAME_MAX
from pellucid.serving.limits import ID_MAX, PARAMETERS_MAX, TENSORS_MAX

Schema = dict[str, Any]
_PLAIN: Final = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"  # what needs no second look; other names may be fine, too
_DESCRIPTIONS: Final = {
    "server": "Name, version and extensions of the server",
    "live": "Is the process there",
    "ready": "Is every configured model served",
    "model": "Tensors of a model",
    "model_ready": "Is a model served",
    "config": "Configuration of a model, in Triton's words",
    "stats": "Counters of one model or of all",
    "infer": "Run a model; the call is recorded whatever happens",
    "index": "Which models there are",
    "load": "Admit a model's package again and serve it",
    "unload": "Stop serving a model",
    "trace": "Trace settings",
    "logging": "Log settings",
    "shm_status": "Registered system shared memory",
    "shm_register": "Register system shared memory of this host",
    "shm_unregister": "Forget system shared memory",
    "cuda_status": "Registered CUDA shared memory: none",
    "cuda_register": "Not offered",
    "cuda_unregister": "Forget CUDA shared memory: nothing to do",
    "whoami": "Who this pod is, what it runs, and who allowed it",
    "openapi": "This document",
    "proto": "Messages and service of the gRPC door",
}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _closed(**properties: Schema) -> Schema:
    return _object([], **properties) | {"additionalProperties": False}


def _list(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item} | more


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": ["string", "null"], "pattern": "^[0-9]{1,18}$"}
_SHAPE: Final = _list({"type": "integer", "minimum": -1}, maxItems=32)
_DATATYPE: Final[Schema] = {"type": "string", "enum": list(DATATYPES)}
_DURATION: Final = _object(["count", "ns"], count=_COUNT, ns=_COUNT)
_DESCRIBED: Final = _object(["name", "datatype", "shape"], name=_TEXT, datatype=_DATATYPE, shape=_SHAPE)
_CONFIGURED: Final = _object(
    ["name", "data_type", "dims"],
    name=_TEXT,
    data_type={"type": "string", "pattern": "^TYPE_[A-Z0-9]+$"},
    dims=_SHAPE,
)

SCHEMAS: Final[dict[str, Schema]] = {
    "error": _object(["error"], error=_TEXT, hint=_TEXT),
    "live": _object(["live"], live=_FLAG),
    "ready": _object(["ready"], ready=_FLAG),
    "server": _object(["name", "version", "extensions"], name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
    "model": _object(
        ["name", "versions", "platform", "inputs", "outputs"],
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_DESCRIBED),
        outputs=_list(_DESCRIBED),
        properties={"type": "object", "additionalProperties": _TEXT},
    ),
    "model_ready": _object(["name", "ready"], name=_TEXT, ready=_FLAG),
    "config": _object(
        ["name", "platform", "backend", "max_batch_size", "input", "output"],
        name=_TEXT,
        platform=_TEXT,
        backend=_TEXT,
        max_batch_size=_COUNT,
        input=_list(_CONFIGURED),
        output=_list(_CONFIGURED),
    ),
    "stats": _object(
        ["model_stats"],
        model_stats=_list(
            _object(
                ["name", "version", "inference_count", "execution_count", "inference_stats", "batch_stats"],
                name=_TEXT,
                version=_TEXT,
                last_inference=_COUNT,
                inference_count=_COUNT,
                execution_count=_COUNT,
                inference_stats={"type": "object", "additionalProperties": _DURATION},
                batch_stats=_list({"type": "object"}),
            )
        ),
    ),
    "index": _list(
        _object(
            ["name", "state", "reason"],
            name=_TEXT,
            version=_TEXT,
            state={"type": "string", "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]},
            reason=_TEXT,
        )
    ),
    "shm_status": _list(
        _object(
            ["name", "key", "offset", "byte_size"], name=_TEXT, key=_TEXT, offset=_COUNT, byte_size=_COUNT
        )
    ),
    "cuda_status": _list({"type": "object"}, maxItems=0),
    "whoami": _object(
        ["who", "what", "allowed", "caller"],
        who={"type": "object"},
        what={"type": "object"},
        allowed={"type": "object"},
        caller={"type": ["object", "null"]},
    ),
    "settings": {"type": "object"},
    "parameters": {
        "type": "object",
        "maxProperties": PARAMETERS_MAX,
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "data": _list({"type": ["number", "string", "boolean", "array"]}),
    "infer": _object(
        ["inputs"],
        id={"type": "string", "maxLength": ID_MAX},
        parameters=_ref("parameters"),
        inputs=_list(
            _object(
                ["name", "shape", "datatype"],
                name=_TEXT,
                shape=_list({"type": "integer", "minimum": 1}, minItems=1, maxItems=32),
                datatype=_DATATYPE,
                parameters=_ref("parameters"),
                data=_ref("data"),
            ),
            minItems=1,
            maxItems=TENSORS_MAX,
        ),
        outputs=_list(_object(["name"], name=_TEXT, parameters=_ref("parameters")), maxItems=TENSORS_MAX),
    ),
    "inferred": _object(
        ["model_name", "outputs"],
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_ref("parameters"),
        outputs=_list(
            _object(
                ["name", "shape", "datatype"],
                name=_TEXT,
                shape=_SHAPE,
                datatype=_DATATYPE,
                parameters=_ref("parameters"),
                data=_ref("data"),
            )
        ),
    ),
    "asked_index": _object([], ready=_FLAG),
    "asked_load": _object([], parameters={"type": "object", "maxProperties": 0}),
    "asked_unload": _object([], parameters=_closed(unload_dependents=_FLAG)),
    "asked_trace": _closed(
        trace_file={"type": ["string", "null"]},
        trace_level={
            "type": ["array", "null"],
            "items": {"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]},
            "minItems": 1,
        },
        trace_rate=_NUMBER,
        trace_count=_NUMBER,
        log_frequency=_NUMBER,
        trace_mode={"type": ["string", "null"]},
    ),
    "asked_logging": _closed(
        log_file=_TEXT,
        log_info=_FLAG,
        log_warning=_FLAG,
        log_error=_FLAG,
        log_verbose_level=_COUNT,
        log_format={"type": "string", "enum": ["default", "ISO8601"]},
    ),
    "asked_region": _object(
        ["key", "offset", "byte_size"],
        key={"type": "string", "pattern": "^/?[A-Za-z0-9_-]{1,200}$"},
        offset=_COUNT,
        byte_size={"type": "integer", "minimum": 1},
    ),
}
_ANSWERS: Final = {
    "infer": "inferred", "load": "nothing", "unload": "nothing", "shm_register": "nothing",
    "shm_unregister": "nothing", "cuda_register": "nothing", "cuda_unregister": "nothing",
    "trace": "settings", "logging": "settings", "openapi": "settings",
}  # fmt: skip
_BODIES: Final = {
    "infer": "infer", "index": "asked_index", "load": "asked_load", "unload": "asked_unload",
    "trace": "asked_trace", "logging": "asked_logging", "shm_register": "asked_region",
}  # fmt: skip
_ERRORS: Final = (
    "400",
    "401",
    "403",
    "404",
    "405",
    "413",
    "414",
    "415",
    "422",
    "429",
    "431",
    "500",
    "503",
    "504",
)


def document() -> Schema:
    """The whole document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pellucid: Open Inference Protocol v2",
            "version": __version__,
            "description": "Tensors may travel as bytes behind the JSON: docs/reference/http.md.",
        },
        "paths": {path: _path(path, *row) for path, row in ENDPOINTS.items()},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "mtls": {"type": "mutualTLS"},
            },
        },
        "security": [{}, {"bearer": []}, {"mtls": []}],  # which of them, the site says
    }


def _path(path: str, kind: str, methods: tuple[str, ...]) -> Schema:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    item: Schema = {method.lower(): _operation(kind, method) for method in methods}
    if names:
        item["parameters"] = [_parameter(name) for name in names]
    return item


def _parameter(name: str) -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": NAME_MAX, "pattern": _PLAIN}
    return {"name": name, "in": "path", "required": True, "schema": text}


def _operation(kind: str, method: str) -> Schema:
    operation: Schema = {
        "summary": _DESCRIPTIONS[kind],
        "responses": {"200": _answer(kind, method)} | {status: _error(method) for status in _ERRORS},
    }
    if method == "POST" and kind in _BODIES:
        schema = _ref(_BODIES[kind])
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": kind in ("infer", "shm_register"), "content": content}
    return operation


def _answer(kind: str, method: str) -> Schema:
    if method == "HEAD":
        return {"description": "As GET, without the body"}
    if kind == "proto":
        return {"description": "Protocol buffers, version 3", "content": {"text/plain": {"schema": _TEXT}}}
    name = _ANSWERS.get(kind, kind)
    if name == "nothing":
        return {"description": "Done"}
    content = {"application/json": {"schema": _ref(name)}}
    if kind == "infer":
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {"description": _DESCRIPTIONS[kind], "content": content}


def _error(method: str) -> Schema:
    if method == "HEAD":
        return {"description": "As GET, without the body"}
    return {"description": "Refused", "content": {"application/json": {"schema": _ref("error")}}}
