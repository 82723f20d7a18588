"""Whole models to compare: ours, fairseq's transformer of the same sizes, and other encoders."""

from __future__ import annotations

import argparse
import copy
import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer.transformer_legacy import TransformerModel
from fairseq.options import get_parser  # noqa: F401  registers fairseq's components

import fairseq_fixed.models  # noqa: F401  registers ours
from fairseq_fixed.bench.check import check_tensors
from fairseq_fixed.bench.counting import Sizes
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.peers.base import PAD
from fairseq_fixed.heads import HeadSpec, parse_heads
from fairseq_fixed.models.options import OPTIONS

__all__ = [
    "ARCHITECTURE",
    "VANILLA",
    "ModelSettings",
    "System",
    "build_all",
    "check_models",
    "make_task",
    "parse_options",
    "parse_systems",
]

ARCHITECTURE = "fixed_transformer_iwslt_de_en"
VANILLA = "fairseq"


@dataclass(frozen=True)
class System:
    """One of ours: a mix, and options of the model beside it.

    Attributes:
        name: in tables: as it was given.
        heads: of the encoder.
        options: by name, as text.
    """

    name: str
    heads: str
    options: dict[str, str]


def parse_systems(text: str) -> tuple[System, ...]:
    """Read systems with commas between them: a mix, then NAME=VALUE behind spaces.

    Raises:
        BenchError: nothing given, or an option without a value.
    """
    systems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        heads, *options = part.split()
        systems.append(System(" ".join([heads, *options]), heads, parse_options(options)))
    if not systems:
        raise BenchError("mixes: nothing given")
    return tuple({system.name: system for system in systems}.values())


def parse_options(options: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE, dashes or underscores in the name.

    Raises:
        BenchError: one without a value.
    """
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise BenchError(f"option {option!r}: give NAME=VALUE, as in dropout=0.3")
        found[name.lstrip("-").replace("-", "_")] = value
    return found


@functools.lru_cache(maxsize=2)
def make_task(vocabulary: int) -> SimpleNamespace:
    """Return what models are built for: one dictionary for both sides.

    Raises:
        BenchError: a vocabulary that is too small for special symbols.
    """
    dictionary = Dictionary()
    if vocabulary <= len(dictionary):
        raise BenchError(f"vocabulary {vocabulary}: at least {len(dictionary) + 1} symbols")
    for index in range(len(dictionary), vocabulary):
        # sentencepiece's mark: heads over words need it
        dictionary.add_symbol(("▁" if index % 2 else "") + f"t{index}", n=vocabulary - index)
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"option: {message}")


@dataclass(frozen=True)
class ModelSettings:
    """Which models to build.

    Attributes:
        systems: ours.
        architecture: of ours; its sizes are all models'. fairseq's transformer has as many heads,
            which in fairseq's architecture of the same name may be fewer.
        options: of all models, by name, as text.
        vocabulary: symbols of both languages.

    Raises:
        BenchError: an unknown architecture or option.
        HeadsError: heads that do not fit.
    """

    systems: tuple[System, ...]
    architecture: str = ARCHITECTURE
    options: Mapping[str, str] = field(default_factory=dict)
    vocabulary: int = 10_000

    def __post_init__(self) -> None:
        """Check."""
        ours = [name for name in ARCH_MODEL_REGISTRY if name.startswith("fixed_transformer")]
        if self.architecture not in ours:
            close = difflib.get_close_matches(self.architecture, ours, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise BenchError(
                f"architecture {self.architecture!r}: none of {', '.join(sorted(ours))}.{hint}"
            )
        make_task(self.vocabulary)
        for system in self.systems:
            self.specs(system)

    def arguments(self, system: System | None = None, **values: Any) -> argparse.Namespace:
        """Return the options of a model of ours, as fairseq's parser makes them.

        Args:
            system: which; None: the sizes alone.
            **values: set whatever the options say.
        """
        options = {"share_all_embeddings": "true", **self.options}
        if system is not None:
            options |= {**system.options, "encoder_heads": system.heads}
        parser = _Parser(argument_default=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
        ARCH_MODEL_REGISTRY[self.architecture].add_args(parser)
        args = parser.parse_args(_flags(parser, options))
        for name, value in values.items():
            setattr(args, name, value)
        args.arch = self.architecture
        ARCH_CONFIG_REGISTRY[self.architecture](args)
        return args

    def specs(self, system: System) -> tuple[tuple[HeadSpec, ...], ...]:
        """Return the heads of each encoder layer."""
        args = self.arguments(system)
        return parse_heads(
            system.heads,
            layers=args.encoder_layers,
            heads=args.encoder_attention_heads,
            embed_dim=args.encoder_embed_dim,
        )

    def is_vanilla(self, system: System) -> bool:
        """Return whether a system computes what fairseq's transformer does: all heads learned."""
        own = {option.name for option in OPTIONS} & {*system.options, *self.options}
        learned = all(spec.kind == "learned" for specs in self.specs(system) for spec in specs)
        return learned and not own

    def sizes(self) -> Sizes:
        """Return the sizes of all models."""
        args = self.arguments()
        return Sizes(
            d=args.encoder_embed_dim,
            encoder_layers=args.encoder_layers,
            encoder_ffn=args.encoder_ffn_embed_dim,
            decoder_layers=args.decoder_layers,
            decoder_ffn=args.decoder_ffn_embed_dim,
            vocabulary=self.vocabulary,
        )

    def build(self, system: System, **values: Any) -> Any:
        """Build a model of ours."""
        args = self.arguments(system, **values)
        return ARCH_MODEL_REGISTRY[self.architecture].build_model(args, make_task(self.vocabulary))

    def build_vanilla(self, **values: Any) -> Any:
        """Build fairseq's transformer of the same sizes."""
        args = copy.deepcopy(self.arguments(**values))
        return TransformerModel.build_model(args, make_task(self.vocabulary))


def build_all(models: ModelSettings, seed: int, **values: Any) -> dict[str, Any]:
    """Build fairseq's transformer and every system; those that equal it get its weights."""
    torch.manual_seed(seed)
    vanilla = models.build_vanilla(**values)
    built = {VANILLA: vanilla}
    for system in models.systems:
        torch.manual_seed(seed)
        built[system.name] = models.build(system, **values)
        if models.is_vanilla(system):
            built[system.name].load_state_dict(vanilla.state_dict())
    return built


def check_models(
    models: ModelSettings, built: Mapping[str, Any], net_input: Mapping[str, Any]
) -> None:
    """Hold the systems that equal fairseq's transformer to its output, without dropout.

    Raises:
        BenchError: one that differs.
    """
    same = [system.name for system in models.systems if models.is_vanilla(system)]
    if not same:
        return
    real = net_input["prev_output_tokens"].ne(PAD)
    outputs = {}
    for name in (VANILLA, *same):
        built[name].eval()
        with torch.no_grad():
            outputs[name] = built[name](**net_input)[0][real]
    for name in same:
        check_tensors(
            (name, outputs[name]),
            (VANILLA, outputs[VANILLA]),
            function="a transformer with all heads learned",
            what="output",
            dtype=outputs[name].dtype,
            shape=tuple(real.shape),
        )


def _flags(parser: argparse.ArgumentParser, options: Mapping[str, str]) -> list[str]:
    """Return options as a command line: `--name=value`, and the name alone for true switches.

    Raises:
        BenchError: an option that the model does not have, or a switch neither true nor false.
    """
    actions = {action.dest: action for action in parser._actions}
    flags = []
    for name, value in options.items():
        if name not in actions:
            close = difflib.get_close_matches(name, actions, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise BenchError(f"option {name}: the model has none of that name.{hint}")
        flag = actions[name].option_strings[0]
        if actions[name].nargs != 0:
            flags.append(f"{flag}={value}")
        elif value.lower() in ("true", "1", "yes"):
            flags.append(flag)
        elif value.lower() not in ("false", "0", "no"):
            raise BenchError(f"option {name}={value}: it is a switch: true or false")
    return flags
