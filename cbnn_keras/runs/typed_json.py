"""Values of JSON as what the fields of dataclasses say that they are."""

import dataclasses
import types
import typing
from typing import Any


def typed(kind: Any, value: Any, where: str, wrong: list[str]) -> Any:
    """A value of JSON as one of this kind.

    Args:
        kind: A type as in the fields of dataclasses; one that has a
            `from_json` is asked itself.
        value: What JSON gave, or None where it has nothing.
        where: The name of the value.
        wrong: Gets the names of what does not fit.
    """
    if isinstance(kind, types.UnionType):
        if value is None and type(None) in typing.get_args(kind):
            return None
        others = [k for k in typing.get_args(kind) if k is not type(None)]
        kind = others[0] if len(others) == 1 else kind
    container = typing.get_origin(kind)
    if container in (list, dict) and not isinstance(value, container):
        wrong.append(where)
    elif container is list:
        [inner] = typing.get_args(kind)
        return [
            typed(inner, item, f"{where}[{i}]", wrong)
            for i, item in enumerate(value)
        ]
    elif container is dict:
        _, inner = typing.get_args(kind)
        return {
            name: typed(inner, item, f"{where}[{name}]", wrong)
            for name, item in value.items()
        }
    elif hasattr(kind, "from_json"):
        return kind.from_json(value, wrong)
    elif dataclasses.is_dataclass(kind):
        defaults = {
            field.name: field.default
            for field in dataclasses.fields(kind)
            if field.default is not dataclasses.MISSING
        }
        found = {**defaults, **(value if isinstance(value, dict) else {})}
        hints, make = typing.get_type_hints(kind), typing.cast(Any, kind)
        return make(
            **{
                field.name: typed(
                    hints[field.name],
                    found.get(field.name),
                    f"{where}.{field.name}",
                    wrong,
                )
                for field in dataclasses.fields(kind)
            }
        )
    elif not fits(value, kind):
        wrong.append(where)
    elif kind is float:
        return float(value)
    return value


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a kind; True is no number, 1 is a float."""
    if isinstance(kind, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(kind))
    if kind is float:
        kind = (int, float)
    is_bool = isinstance(value, bool)
    return is_bool if kind is bool else isinstance(value, kind) and not is_bool


def is_nested(value: Any, depth: int = 0) -> bool:
    """Whether a value has more levels than any setting, to be safe to print."""
    if not isinstance(value, (list, dict)):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return depth > 5 or any(is_nested(part, depth + 1) for part in parts)
