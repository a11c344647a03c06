"""The JSON Schemas of docs/schemas, as tests use them: made strict, so that a field which no schema
names is an error, though whoever reads our JSON is to expect more of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).parents[4] / "docs/schemas"


def strict(schema: Any) -> Any:
    """Return a schema that allows no more fields than it names."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        found["additionalProperties"] = False
    return found


class Schemas:
    """All of them, by the names of their files."""

    def __init__(self) -> None:
        self.all = {
            path.stem: strict(json.loads(path.read_text())) for path in FOLDER.glob("*.json")
        }
        self._registry: Registry[Any] = Registry().with_resources(
            (schema["$id"], Resource.from_contents(schema)) for schema in self.all.values()
        )

    def check(self, name: str, value: Any) -> None:
        """Raise jsonschema's ValidationError unless a value is what a schema says."""
        Draft202012Validator(self.all[name], registry=self._registry).validate(value)
