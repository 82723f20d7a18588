"""A mapping becomes a dataclass; every unknown key and wrong type is noted, none stops the rest."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

__all__ = ["build", "known_keys", "nearest"]

_MISSING = object()


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """Return a hint naming the known name nearest to `name`, or all of them if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none is known"


def known_keys(cls: type) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [f.name for f in dataclasses.fields(cls)]


def build(cls: type, mapping: Any, path: str, errors: list[str]) -> Any:
    """Build `cls` from `mapping`, appending to `errors`; what is wrong keeps its default.

    Args:
        cls: a dataclass; its annotations may be int, float, bool, str, Any, Literal, list, dict,
            other dataclasses, and unions of these with None. A union of dataclasses is chosen
            by the literal `kind` of each.
        mapping: plain data, as YAML gives it.
        path: where `mapping` stands in the recipe, for the messages (empty at the top).
        errors: gets one line an error.

    Returns:
        An instance of `cls`, or None where a required key is missing or wrong.
    """
    if not isinstance(mapping, Mapping):
        errors.append(f"{path or 'recipe'}: expected keys and values, got {mapping!r}")
        return None
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key in mapping:
        if key not in hints:
            errors.append(f"{_join(path, key)}: unknown key; {nearest(str(key), hints)}")
    usable = True
    for field in dataclasses.fields(cls):
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if field.name not in mapping:
            if required:
                errors.append(f"{_join(path, field.name)}: missing, and it has no default")
                usable = False
            continue
        value = _convert(hints[field.name], mapping[field.name], _join(path, field.name), errors)
        if value is not _MISSING:
            values[field.name] = value
        elif required:
            usable = False
    return cls(**values) if usable else None


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _convert(hint: Any, value: Any, path: str, errors: list[str]) -> Any:
    """Return `value` as `hint`, or _MISSING with a line in `errors`."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, path, errors)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        hint_text = nearest(str(value), [str(c) for c in choices])
        errors.append(f"{path}: {value!r} is none of the choices; {hint_text}")
        return _MISSING
    if origin is list:
        return _convert_list(typing.get_args(hint)[0], value, path, errors)
    if origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
        errors.append(f"{path}: expected keys and values, got {value!r}")
        return _MISSING
    if dataclasses.is_dataclass(hint):
        built = build(typing.cast(type, hint), value, path, errors)
        return _MISSING if built is None else built
    return _convert_plain(hint, value, path, errors)


def _convert_union(options: tuple[Any, ...], value: Any, path: str, errors: list[str]) -> Any:
    if value is None and type(None) in options:
        return None
    others = [o for o in options if o is not type(None)]
    if len(others) == 1:
        return _convert(others[0], value, path, errors)
    if all(dataclasses.is_dataclass(o) for o in others):
        return _convert_by_kind(others, value, path, errors)
    for option in others:
        attempt: list[str] = []
        converted = _convert(option, value, path, attempt)
        if converted is not _MISSING and not attempt:
            return converted
    names = " or ".join(_name(o) for o in others)
    errors.append(f"{path}: expected {names}, got {value!r}")
    return _MISSING


def _convert_by_kind(options: list[Any], value: Any, path: str, errors: list[str]) -> Any:
    kinds = {typing.get_args(typing.get_type_hints(o)["kind"])[0]: o for o in options}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind not in kinds:
        stated = "missing" if kind is None else f"{kind!r} is unknown"
        errors.append(f"{_join(path, 'kind')}: {stated}; {nearest(str(kind), kinds)}")
        return _MISSING
    return _convert(kinds[kind], value, path, errors)


def _convert_list(item: Any, value: Any, path: str, errors: list[str]) -> Any:
    if not isinstance(value, list | tuple):
        errors.append(f"{path}: expected a list, got {value!r}")
        return _MISSING
    converted = [_convert(item, v, f"{path}[{i}]", errors) for i, v in enumerate(value)]
    return _MISSING if any(v is _MISSING for v in converted) else converted


def _convert_plain(hint: Any, value: Any, path: str, errors: list[str]) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a text
        try:
            return float(value)
        except ValueError:
            pass
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # limit: 5000 beside limit: 5k
    if isinstance(value, hint) and not (hint is not bool and isinstance(value, bool)):
        return value
    errors.append(f"{path}: expected {_name(hint)}, got {value!r}")
    return _MISSING


def _name(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
    }
    if typing.get_origin(hint) is dict:
        return "keys and values"
    return names.get(hint, str(hint))
