"""Generates ``docs/status.schema.json``, the JSON Schema of asrpt-status --json.

Run ``python -m slurm_asrpt.status.schema``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from slurm_asrpt.status.document import SCHEMA, JobStatus, NodeStatus, Status

KINDS = (Status, JobStatus, NodeStatus)
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The JSON Schema, with the fields' descriptions."""
    made: dict[str, Any] = TypeAdapter(Status).json_schema()
    for kind in KINDS:
        part = made if kind is Status else made["$defs"][kind.__name__]
        texts = get_type_hints(kind, include_extras=True)
        part["description"] = kind.__doc__
        part["required"] = list(texts)  # --json prints all fields
        for name, field in part["properties"].items():
            field.pop("default", None)
            field.pop("title", None)
            field["description"] = texts[name].__metadata__[0]
    made["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": DIALECT, **made, "title": "asrpt-status --json"}


def render() -> str:
    return json.dumps(schema(), indent=1) + "\n"


def main() -> None:
    (Path(__file__).parents[2] / "docs" / "status.schema.json").write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
