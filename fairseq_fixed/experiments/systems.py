"""A system of a recipe: `vanilla`, a head mix, a file of `configs/model`, or a mapping.

A mapping has `heads`, or `lower` and `upper`, the mixes of the lower and the upper half of the
encoder's layers (of an odd number the middle one is lower); `name`, `arch`, and any options of
fairseq-train.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.schema import ModelSettings
from fairseq_fixed.heads import HeadsError, parse_heads

__all__ = ["System", "parse_systems", "render_flags", "slug", "with_files_read"]

VANILLA = "vanilla"
_LONGEST_SLUG = 60  # characters; file systems allow 255 for a name with what we add


@dataclass(frozen=True)
class System:
    """What tells one system's `fairseq-train` from another's.

    Attributes:
        name: as written in the recipe and shown in tables.
        slug: the name as a folder name.
        arch: fairseq's `--arch`.
        heads: `--encoder-heads`, or None for an architecture that has no such option.
        flags: further options, after the recipe's own, which they override.
        without: switches that this system does not get where the recipe gives them to all.
    """

    name: str
    slug: str
    arch: str
    heads: str | None = None
    flags: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of `fairseq-train` that make this system."""
        heads = () if self.heads is None else ("--encoder-heads", self.heads)
        return ("--arch", self.arch, *heads, *self.flags)


def slug(name: str) -> str:
    """Return `name` as a folder name: no `: / @ +`, which fairseq or the system would split."""
    text = name.replace(":-", "-minus")  # the sign of a number, not a joint
    text = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")
    if not text or len(text) > _LONGEST_SLUG:
        return f"{text[: _LONGEST_SLUG - 9]}-{_digest(name)}".lstrip("-")
    return text


def render_flags(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return `{tisa_kernels: 5, fp16: true}` as `--tisa-kernels 5 --fp16`.

    `false` and `null` leave an option out; a list becomes one option with several values.
    """
    words: list[str] = []
    for key, value in flags.items():
        option = _option(key)
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [option, *map(str, value)]
        else:
            words += [option, str(value)]
    return tuple(words)


def _option(key: str) -> str:
    return "--" + str(key).strip("-").replace("_", "-")


def parse_systems(
    entries: Sequence[str | Mapping[str, Any]],
    model: ModelSettings,
    folder: Path,
    errors: list[str],
) -> list[System]:
    """Return the systems of a recipe; what is wrong is appended to `errors`.

    Args:
        entries: the recipe's `systems`.
        model: the size that all share; head mixes are checked against it.
        folder: `configs/model`.
        errors: gets one line an error.
    """
    systems: list[System] = []
    for index, entry in enumerate(entries):
        where = f"systems[{index}]"
        try:
            system = _parse(entry, model, folder)
            _check_heads(system, entry, model)
        except (HeadsError, ValueError, OSError) as error:
            errors.append(f"{where}: {error}")
            continue
        if any(system.name == other.name for other in systems):
            errors.append(
                f"{where}: {system.name!r} is there twice; give one of them another `name`"
            )
            continue
        systems.append(system)
    return _unique_slugs(systems)


def _parse(entry: str | Mapping[str, Any], model: ModelSettings, folder: Path) -> System:
    if isinstance(entry, str):
        if entry == VANILLA:
            return System(VANILLA, VANILLA, "transformer")
        file = _file(entry, folder)
        if file is None:
            return System(entry, slug(entry), "fixed_transformer", entry)
        entry = _read(file)
    return _parse_mapping(entry, model)


def with_files_read(
    entries: Sequence[str | Mapping[str, Any]], folder: Path
) -> list[str | dict[str, Any]]:
    """Return a recipe's systems with the content of files in their names' place.

    A run keeps its settings so, whatever happens to the files. A file that cannot be read stays a
    name, for :func:`parse_systems` to say so.

    Args:
        entries: the recipe's `systems`.
        folder: `configs/model`.
    """
    read: list[str | dict[str, Any]] = []
    for entry in entries:
        file = _file(entry, folder) if isinstance(entry, str) and entry != VANILLA else None
        if file is not None:
            with contextlib.suppress(OSError, ValueError):
                entry = _read(file)
        read.append(entry if isinstance(entry, str) else dict(entry))
    return read


def _file(entry: str, folder: Path) -> Path | None:
    """Return the file that a system's name stands for; None: it is a mix."""
    if entry.endswith((".yaml", ".yml")):
        return Path(entry).expanduser()
    known = folder / f"{entry}.yaml"
    return known if "/" not in entry and known.is_file() else None


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {file}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{file} holds no keys and values")
    return {"name": file.stem, **content}


def _parse_mapping(entry: Mapping[str, Any], model: ModelSettings) -> System:
    options = dict(entry)
    for side in ("encoder", "decoder"):
        for key in (f"{side}_layers", f"{side}_attention_heads"):
            count = options.get(key, 1)
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"{key}: expected a whole number above 0, got {count!r}")
    halves = _halves(options, model)
    # `_name` and `encoder_heads` are what a fairseq-hydra-train model config calls them.
    arch = options.pop("arch", None) or options.pop("_name", None)
    options.pop("_name", None)
    heads = options.pop("heads", None) or options.pop("encoder_heads", None)
    options.pop("encoder_heads", None)
    if halves is not None:
        if heads is not None:
            raise ValueError("a system has either `heads`, or `lower` and `upper`")
        heads = halves
    name = options.pop("name", None)
    if heads is None and options.get("decoder_heads"):
        raise ValueError("decoder_heads without heads: name the encoder's too, such as `heads: 8l`")
    if arch is None:
        arch = "transformer" if heads is None else "fixed_transformer"
    if name is None:
        parts = [str(heads or arch), *(f"{k}={v}" for k, v in options.items())]
        name = " ".join(parts)
    if not str(name).strip():
        raise ValueError("`name` is empty; leave it out, or say what tables are to show")
    return System(
        str(name),
        slug(str(name)),
        str(arch),
        None if heads is None else str(heads),
        render_flags(options),
        # `false` takes back what the recipe gives to all: fairseq's switches have no opposite.
        tuple(_option(key) for key, value in options.items() if value is None or value is False),
    )


def _halves(options: dict[str, Any], model: ModelSettings) -> str | None:
    """Take `lower` and `upper` out of a system's options, and return them as one mix."""
    lower, upper = options.pop("lower", None), options.pop("upper", None)
    if lower is None and upper is None:
        return None
    layers = options.get("encoder_layers", model.encoder_layers or model.layers)
    if lower is None or upper is None or layers < 2:
        raise ValueError("`lower` and `upper` go together, and need two encoder layers or more")
    half = (layers + 1) // 2
    return f"0-{half - 1}@{lower}/{half}-{layers - 1}@{upper}"


def _check_heads(system: System, entry: Any, model: ModelSettings) -> None:
    if system.heads is None:
        return
    own = entry if isinstance(entry, Mapping) else {}
    try:
        parse_heads(
            system.heads,
            layers=own.get("encoder_layers", model.encoder_layers or model.layers),
            heads=own.get("encoder_attention_heads", model.heads),
        )
        flags = dict(zip(system.flags, system.flags[1:], strict=False))
        if "--decoder-heads" in flags:
            parse_heads(
                flags["--decoder-heads"],
                layers=own.get("decoder_layers", model.decoder_layers or model.layers),
                heads=own.get("decoder_attention_heads", model.decoder_heads or model.heads),
                side="decoder",
            )
    except HeadsError as error:
        if isinstance(entry, str):
            raise HeadsError(
                f"{entry!r} is neither 'vanilla', nor a file of configs/model, nor a mix that "
                f"fits: {error}"
            ) from None
        raise


def _unique_slugs(systems: list[System]) -> list[System]:
    taken: set[str] = set()
    unique = []
    for system in systems:
        folder = system.slug
        if folder in taken:  # `7f+1l` and `7f-1l`
            folder = f"{folder}-{_digest(system.name)}"
        taken.add(folder)
        unique.append(replace(system, slug=folder))
    return unique


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]
