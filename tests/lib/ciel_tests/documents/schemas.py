"""The JSON Schemas of docs/schemas, made strict for tests: a field that no schema names is an
error. Users must expect further fields.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).parents[4] / "docs/schemas"


def strict(schema: Any) -> Any:
    """Return a schema that allows only the fields that it names."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        found["additionalProperties"] = False
    return found


class Schemas:
    """All schemas, by file name."""

    def __init__(self) -> None:
        self.all = {
            path.stem: strict(json.loads(path.read_text())) for path in FOLDER.glob("*.json")
        }
        self._registry: Registry[Any] = Registry().with_resources(
            (schema["$id"], Resource.from_contents(schema)) for schema in self.all.values()
        )

    def check(self, name: str, value: Any) -> None:
        """Raise ValidationError unless a value matches a schema."""
        Draft202012Validator(self.all[name], registry=self._registry).validate(value)
