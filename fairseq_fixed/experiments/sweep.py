"""Multirun: overrides with several values become points, each of them a run of its own.

Parsing and expanding is Hydra's: choices (`a,b,c`), `range(1,4)`, `glob(*)` over a group of files,
`sort`, `shuffle`. A recipe may bring its own sweep, as those of `configs/sweep` do; the command
line's values for a key take the place of the recipe's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import resources
from fairseq_fixed.experiments.errors import ExperimentError, RecipeError
from fairseq_fixed.experiments.recipe import (
    Experiment,
    compose,
    load,
    name_of,
    reading,
    require_hydra,
)
from fairseq_fixed.experiments.systems import slug

__all__ = [
    "NO_SWEEP",
    "Point",
    "Space",
    "Sweep",
    "brings_sweep",
    "plan_search",
    "plan_sweep",
    "short_keys",
]


# of a recipe's keys, none of a training's outcome
_DECIDES_NOTHING = ("out", "results", "jobs", "threads", "description", "cost", "samples", "score")
NO_SWEEP = "multirun=null"  # the override that makes a sweep's recipe an ordinary one


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        name: its folder in the sweep's.
        values: by swept key, the value as Hydra writes it.
        overrides: all overrides of the run, those that are the same at all points, too.
        experiment: the recipe with these overrides.
    """

    name: str
    values: Mapping[str, str]
    overrides: tuple[str, ...]
    experiment: Experiment


@dataclass(frozen=True)
class Sweep:
    """All points of a multirun.

    Attributes:
        name: what its folder and its pages are called.
        recipe: as the user named it.
        command: the words behind `fairseq-fixed` that make it.
        keys: the swept keys, in the order in which their values change, the last fastest.
        points: its runs.
        folder: where the points' folders are.
        base: the recipe's own run folder: what it holds is not made again.
    """

    name: str
    recipe: str
    command: tuple[str, ...]
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    folder: Path
    base: Path


@dataclass(frozen=True)
class Space:
    """What a search chooses from.

    Attributes:
        name: what its folder is called.
        recipe: as the user named it.
        keys: the keys with several values.
        overrides: Hydra's parsed overrides of these keys.
        fixed: the other overrides, as texts.
        folder: where the trials' folders are.
        base: the recipe's own run folder.
        experiment: the recipe without the searched values.
    """

    name: str
    recipe: str
    keys: tuple[str, ...]
    overrides: tuple[Any, ...]
    fixed: tuple[str, ...]
    folder: Path
    base: Path
    experiment: Experiment


def plan_search(recipe: str, overrides: Sequence[str] = ()) -> Space:
    """Return what a search chooses from.

    Args:
        recipe: as for :func:`recipe.compose`.
        overrides: Hydra's, some with several values.

    Raises:
        ExperimentError: nothing is searched, or Hydra refuses an override.
        RecipeError: what is wrong with the recipe.
    """
    given = _parse(overrides)
    parsed = _with_own(given, _own_sweep(recipe, given))
    swept = [o for o in parsed if o.is_sweep_override()]
    keys = _keys(swept)
    fixed = tuple(o.input_line for o in parsed if not o.is_sweep_override())
    experiment = load(recipe, [*fixed, NO_SWEEP])
    base = Path(f"runs/{experiment.name}").absolute()
    # Trials of other settings, or of other values to choose from, are another search.
    settings = dataclasses.asdict(experiment.recipe)
    content = [{k: v for k, v in settings.items() if k not in _DECIDES_NOTHING}]
    content += [override.input_line for override in swept]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    name = f"search.{'.'.join(short_keys(keys).values())}.{digest}"
    place = Path(experiment.recipe.out).expanduser().absolute() if experiment.recipe.out else base
    folder = place / name
    return Space(
        slug(f"{experiment.name}.{name}"), recipe, keys, tuple(swept), fixed, folder, base,
        experiment,
    )  # fmt: skip


def brings_sweep(recipe: str, overrides: Sequence[str] = ()) -> bool:
    """Return whether a recipe, with its overrides, brings a sweep of its own.

    Raises:
        ExperimentError: there is no such recipe, or it cannot be composed.
    """
    return bool(_own_sweep(recipe, _parse(overrides)))


def plan_sweep(recipe: str, overrides: Sequence[str] = (), *, tools: bool = True) -> Sweep:
    """Return the points of a multirun, every one of them checked.

    Args:
        recipe: as for :func:`recipe.compose`.
        overrides: Hydra's, some with several values.
        tools: as for :func:`recipe.check`.

    Raises:
        ExperimentError: nothing is swept, or Hydra refuses an override.
        RecipeError: what is wrong with the points, all at once.
    """
    given = _parse(overrides)
    own = _own_sweep(recipe, given)
    parsed = _with_own(given, own)
    # a key of the recipe's own sweep that is given one value is part of the points' names all the
    # same: so one point, or some, are those of the whole sweep
    keys = _keys([o for o in parsed if o.is_sweep_override() or _key(o) in own])
    points = _points(recipe, keys, _expand(parsed), tools)
    if not points:
        raise ExperimentError(f"{', '.join(keys)}: no value to run; a range may be empty")
    experiment = points[0].experiment
    base = Path(f"runs/{experiment.name}").absolute()
    names = short_keys(keys).values()
    name = experiment.name if own else f"{experiment.name}-by-{'-'.join(names)}"
    folder = base if own else base / f"by.{'.'.join(names)}"
    if out := next((p.experiment.recipe.out for p in points if p.experiment.recipe.out), None):
        folder = Path(out).expanduser().absolute()
    command = ("run", recipe, *([] if own else ["-m"]), *overrides)
    return Sweep(slug(name), recipe, command, keys, tuple(points), folder, base)


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return by key its last part, or all of it where another key ends so, too."""
    keys = list(keys)
    lasts = [key.rpartition(".")[2] for key in keys]
    return {
        key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)
    }


def _with_own(given: Sequence[Any], own: Mapping[str, Any]) -> list[Any]:
    """Return parsed overrides behind those of the recipe's own sweep.

    A key of that sweep given anew stays at its place, and with it the names of the points' folders.
    """
    places = {key: place for place, key in enumerate(own)}
    taken = {_key(o) for o in given}
    words = [f"{key}={_values(value)}" for key, value in own.items() if key not in taken]
    return sorted([*_parse(words), *given], key=lambda o: places.get(_key(o), len(places)))


def _own_sweep(recipe: str, given: Sequence[Any]) -> Mapping[str, Any]:
    """Return the keys and values that a recipe sweeps by itself, beside parsed overrides."""
    fixed = [o.input_line for o in given if not o.is_sweep_override()]
    own = compose(recipe, fixed, resolve=False).get("multirun") or {}
    if not isinstance(own, Mapping):
        raise ExperimentError(
            "multirun: expected keys and their values, as in {train.lr: '0.001,0.002'}, got "
            f"{own!r}"
        )
    return own


def _keys(swept: Sequence[Any]) -> tuple[str, ...]:
    keys = tuple(_key(override) for override in swept)
    if not keys:
        raise ExperimentError(
            "nothing is swept: give a key several values, as in data.limit=5k,10k,20k"
        )
    if len(set(keys)) < len(keys):
        raise ExperimentError(f"a key is swept twice: {', '.join(keys)}")
    return keys


def _parse(overrides: Iterable[str]) -> list[Any]:
    require_hydra()
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(resources.configs_folder()), version_base="1.1"):
        # `glob` asks the loader for a group's files
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parse = parser.parse_overrides
        return [reading(text, lambda text: parse([text])[0]) for text in overrides]


def _expand(parsed: Sequence[Any]) -> list[list[str]]:
    """Return the overrides of every point, by Hydra's own sweeper."""
    from hydra import initialize_config_dir
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    try:
        with initialize_config_dir(config_dir=str(resources.configs_folder()), version_base="1.1"):
            (points,) = BasicSweeper.split_arguments(list(parsed), None)
    except HydraException as error:
        raise ExperimentError(
            f"{error}. An interval is for --search, which tries values from it"
        ) from error
    return points


def _points(
    recipe: str, keys: Sequence[str], expanded: Sequence[Sequence[str]], tools: bool
) -> list[Point]:
    points: list[Point] = []
    errors: dict[str, list[str]] = {}
    names: set[str] = set()
    short = short_keys(keys)
    for overrides in expanded:
        split = (word.partition("=") for word in overrides)
        found = {_plain(key): value for key, _, value in split}
        values = {key: found[key] for key in keys}
        if any(values == point.values for point in points):  # lr=0.1,0.1
            continue
        text = ".".join(f"{short[key]}-{value}" for key, value in values.items())
        name = slug(text)
        if name in names:  # 7f+1l and 7f-1l
            name = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        names.add(name)
        try:
            # the sweep itself is no setting of a point
            experiment = load(recipe, [*overrides, NO_SWEEP], tools=tools)
        except RecipeError as error:
            for line in error.errors:
                errors.setdefault(line, []).append(text)
            continue
        points.append(Point(name, values, tuple(overrides), experiment))
    if errors:
        raise RecipeError(
            name_of(recipe),
            [
                line if len(where) == len(expanded) else f"{line} (at {', '.join(where)})"
                for line, where in errors.items()
            ],
        )
    return points


def _key(override: Any) -> str:
    return _plain(override.get_key_element())


def _plain(key: str) -> str:
    return key.lstrip("+~")


def _values(value: Any) -> str:
    """Return a sweep's values as Hydra's command line has them."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
