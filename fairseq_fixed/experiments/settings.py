"""The settings that decide a system's scores: as a hash, as plain values, as a command's words."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.fairseq_options import taken_back
from fairseq_fixed.experiments.recipe import Experiment, quoted
from fairseq_fixed.experiments.schema import Recipe
from fairseq_fixed.experiments.systems import System

__all__ = ["as_overrides", "flat_settings", "flatten", "settings_hash"]

_SETTINGS = ("pair", "data", "subwords", "model", "train", "translate", "score")

# The settings of the first results. One that came later counts only where it is not at its default,
# so that results from before and after it belong together.
_FIRST = {
    "data": {
        "kind", "limit", "max_words", "train", "valid", "test", "held_out", "path", "urls",
        "markup", "join",
    },
    "subwords": {"size", "type", "character_coverage"},
    "model": {
        "layers", "encoder_layers", "decoder_layers", "dim", "ffn", "heads", "decoder_heads",
        "dropout", "attention_dropout", "activation_dropout", "share_all_embeddings",
        "max_positions", "flags",
    },
    "train": {
        "max_update", "max_hours", "patience", "max_tokens", "update_freq", "optimizer",
        "adam_betas", "lr", "lr_scheduler", "warmup_updates", "clip_norm", "weight_decay",
        "label_smoothing", "save_every", "average", "log_every", "tensorboard", "flags",
    },
    "translate": {"beam", "length_penalty", "max_len_a", "max_len_b", "max_tokens", "flags"},
    "score": {"metrics", "tokenize", "bootstrap", "trials", "alpha"},
}  # fmt: skip


def settings_hash(experiment: Experiment, system: System) -> str:
    """Return a short hash of all settings that decide a system's scores, the seed left out."""
    recipe = experiment.recipe
    content = _without_places({key: _hashed(getattr(recipe, key), key) for key in _SETTINGS})
    content["train"]["tensorboard"] = False  # whether there are logs decides nothing
    content["system"] = list(system.arguments)
    if without := taken_back(experiment, system):
        content["without"] = without
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def flat_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that all systems of a recipe share, by their keys (`train.lr`).

    Without the places of files, which say nothing on another machine.
    """
    content = dataclasses.asdict(recipe)
    return flatten(_without_places({key: content[key] for key in _SETTINGS}))


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, `{"train": {"lr": 1}}` as `{"train.lr": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def as_overrides(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """Return Hydra's overrides that make settings of the usual ones.

    Args:
        settings: of :func:`flat_settings`.
        usual: the same of a recipe as it comes. What it does not know came later and is left out,
            unless it is an option of fairseq's (`train.flags.…`).
    """
    changed = [
        f"{key}={_in_hydra(value)}"
        for key, value in settings.items()
        if (key in usual or ".flags." in key) and usual.get(key) != value
    ]
    gone = [f"~{key}" for key in usual if ".flags." in key and key not in settings]
    return changed + gone


def _in_hydra(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_in_hydra, value))}]"
    if isinstance(value, str):
        return quoted(value)
    return json.dumps(value)


def _without_places(content: dict[str, Any]) -> dict[str, Any]:
    """Return settings without where files lie and where they come from, which decides nothing."""
    data, score = dict(content["data"]), dict(content["score"])
    for key in ("train", "valid", "test"):
        if key in data:
            data[key] = [Path(name).name for name in data[key]]
    for key in ("path", "urls"):
        data.pop(key, None)
    if Path(score.get("comet") or "").is_absolute():
        score["comet"] = Path(score["comet"]).name
    return {**content, "data": data, "score": score}


def _hashed(section: Any, name: str) -> Any:
    """Return a part of a recipe as plain data, without later settings that are at their default."""
    if not dataclasses.is_dataclass(section) or isinstance(section, type):
        return section
    content = dataclasses.asdict(section)
    for field in dataclasses.fields(section):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if field.name not in _FIRST[name] and content[field.name] == default:
            del content[field.name]
        elif field.type == "float":  # a default of 0, read again from a file, is 0.0
            content[field.name] = float(content[field.name])
    return content
