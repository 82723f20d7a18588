"""What is wrong with a recipe beyond unknown keys and types: a line an error, all at once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from fairseq_fixed.experiments.archives import Shelf, files_named
from fairseq_fixed.experiments.comet_metric import why_unavailable
from fairseq_fixed.experiments.corpus import TextError, parse_limit
from fairseq_fixed.experiments.parallel_text import split_columns
from fairseq_fixed.experiments.schema import (
    ArchiveData,
    CustomData,
    Recipe,
    SwordData,
    TrainSettings,
)
from fairseq_fixed.experiments.systems import System
from fairseq_fixed.experiments.tokenizers import usual_tokenizer, why_unusable
from fairseq_fixed.experiments.validation import nearest

__all__ = ["check_comparison", "check_settings"]


def check_settings(
    recipe: Recipe, errors: list[str], *, files: bool = True, tools: bool = True
) -> None:
    """Append to `errors` what is wrong with numbers, the pair and the data.

    Args:
        recipe: whose `data` files, for one's own text, are made absolute.
        errors: gets one line an error.
        files: whether the data files must be there.
        tools: whether what scoring needs must be installed.
    """
    _check_numbers(recipe, errors)
    if files:  # a finished run is read whatever is asked of new ones
        _check_schedule(recipe.train, errors)
        _check_bounds(recipe, errors)
    _check_batch(recipe.train, errors)
    _check_pair(recipe, errors)
    _check_tokenizer(recipe, errors, tools)
    if recipe.score.comet is not None:
        if Path(recipe.score.comet).is_file():
            recipe.score.comet = str(Path(recipe.score.comet).absolute())
        if tools and (reason := why_unavailable()):
            errors.append(f"score.comet: {reason}")
    _check_data(recipe, errors, files)


def _check_numbers(recipe: Recipe, errors: list[str]) -> None:
    model, train, translate = recipe.model, recipe.train, recipe.translate
    positive = {
        "subwords.size": recipe.subwords.size,
        "model.layers": model.layers,
        "model.encoder_layers": model.encoder_layers,
        "model.decoder_layers": model.decoder_layers,
        "model.dim": model.dim,
        "model.ffn": model.ffn,
        "model.heads": model.heads,
        "model.decoder_heads": model.decoder_heads,
        "model.max_positions": model.max_positions,
        "train.max_update": train.max_update,
        "train.max_tokens": train.max_tokens,
        "train.update_freq": train.update_freq,
        "train.batch_tokens": train.batch_tokens,
        "train.processes": 1 if train.processes == "all" else train.processes,
        "train.shards": train.shards,
        "train.lr": train.lr,
        "train.save_every": train.save_every,
        "train.average": train.average,
        "train.log_every": train.log_every,
        "translate.beam": translate.beam,
        "translate.max_tokens": translate.max_tokens,
        "score.bootstrap": recipe.score.bootstrap,
        "threads": recipe.threads,
        "jobs": recipe.jobs,
    }
    errors += [
        f"{key}: must be above 0, is {value}"
        for key, value in positive.items()
        if value is not None and value <= 0
    ]
    for key, value in (
        ("model.dropout", model.dropout),
        ("model.attention_dropout", model.attention_dropout),
        ("model.activation_dropout", model.activation_dropout),
        ("train.label_smoothing", train.label_smoothing),
    ):
        if not 0 <= value < 1:
            errors.append(f"{key}: must be at least 0 and below 1, is {value}")
    for key, heads in (("heads", model.heads), ("decoder_heads", model.decoder_heads)):
        if heads and heads > 0 and model.dim % heads:
            errors.append(f"model.dim: {model.dim} is not divisible by model.{key} = {heads}")
    for section, tokens in (("train", train.max_tokens), ("translate", translate.max_tokens)):
        if 0 < tokens < model.max_positions:
            errors.append(
                f"{section}.max_tokens: {tokens} is below model.max_positions = "
                f"{model.max_positions}, so that a long sentence fits in no batch"
            )


def _check_schedule(train: TrainSettings, errors: list[str]) -> None:
    # fairseq's inverse_sqrt divides by it, and takes 4,000 where the option is left out.
    least = 1 if train.lr_scheduler == "inverse_sqrt" else 0
    if train.warmup_updates < least:
        errors.append(
            f"train.warmup_updates: must be at least {least} with train.lr_scheduler="
            f"{train.lr_scheduler}, is {train.warmup_updates}"
        )
    for key, number in (("train.lr", train.lr), ("train.clip_norm", train.clip_norm)):
        if not math.isfinite(number):
            errors.append(f"{key}: must be a finite number, is {number}")


def _check_bounds(recipe: Recipe, errors: list[str]) -> None:
    """Append what lies outside its bounds; what is not a number lies outside, too."""
    data, train, translate, score = recipe.data, recipe.train, recipe.translate, recipe.score
    least = {
        "train.patience": train.patience,
        "train.max_hours": train.max_hours,
        "train.clip_norm": train.clip_norm,
        "train.weight_decay": train.weight_decay,
        "translate.max_len_a": translate.max_len_a,
        "translate.max_len_b": translate.max_len_b,
        "score.trials": score.trials,
        "samples": recipe.samples,
    }
    errors += [
        f"{key}: must be at least 0, is {value}" for key, value in least.items() if not value >= 0
    ]
    if translate.max_len_a == translate.max_len_b == 0:
        errors.append("translate.max_len_a and max_len_b: both 0 leave no room for a translation")
    if not math.isfinite(translate.length_penalty):
        errors.append(f"translate.length_penalty: must be finite, is {translate.length_penalty}")
    if not 0 < score.alpha < 1:
        errors.append(f"score.alpha: must be above 0 and below 1, is {score.alpha}")
    coverage = recipe.subwords.character_coverage
    if not 0 < coverage <= 1:
        errors.append(f"subwords.character_coverage: must be above 0, at most 1, is {coverage}")
    if data.max_words is not None and data.max_words < 1:
        errors.append(f"data.max_words: must be at least 1, or null, is {data.max_words}")
    if not isinstance(data, SwordData) and not (data.valid and data.test) and data.held_out < 1:
        errors.append(
            "data.held_out: must be at least 1 where no valid or no test set is given, is "
            f"{data.held_out}"
        )


def _check_batch(train: TrainSettings, errors: list[str]) -> None:
    """Append what is wrong with how an update's batches are shared out."""
    if train.batch_tokens is None:
        if train.processes == "all":
            errors.append(
                "train.batch_tokens: must be given with train.processes = all, or the batch would "
                "depend on the machine"
            )
        return
    if train.update_freq != 1:
        errors.append(
            "train.update_freq: follows from train.batch_tokens and train.processes; leave it out"
        )
    count = 1 if train.processes == "all" else train.processes
    if min(train.max_tokens, train.batch_tokens, count) < 1:
        return
    if train.batch_tokens % (train.max_tokens * count):
        times = f" times train.processes = {count}" if count > 1 else ""
        errors.append(
            f"train.batch_tokens: {train.batch_tokens} is no multiple of train.max_tokens = "
            f"{train.max_tokens}{times}"
        )


def _check_pair(recipe: Recipe, errors: list[str]) -> None:
    codes = recipe.pair.split("-")
    if len(codes) != 2 or not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", code) for code in codes):
        errors.append(f"pair: expected two language codes, as in es-en, got {recipe.pair!r}")
    elif codes[0] == codes[1]:
        errors.append(f"pair: {recipe.pair!r} names the same language twice")


def _check_tokenizer(recipe: Recipe, errors: list[str], tools: bool) -> None:
    """Append what is wrong with BLEU's tokenizer: better now than after hours of training."""
    wanted = recipe.score.tokenize or usual_tokenizer(recipe.pair.split("-")[-1])
    if "bleu" not in recipe.score.metrics:
        return
    if reason := why_unusable(wanted, tools=tools):
        errors.append(f"score.tokenize: {reason}")


def _check_data(recipe: Recipe, errors: list[str], files: bool) -> None:
    data = recipe.data
    try:
        parse_limit(data.limit)
    except TextError as error:
        errors.append(f"data.limit: {error}")
    if not isinstance(data, SwordData) and data.max_ratio is not None and data.max_ratio < 1:
        errors.append(f"data.max_ratio: must be at least 1, is {data.max_ratio}")
    if isinstance(data, SwordData):
        if sorted(recipe.pair.split("-")) != ["en", "es"]:
            errors.append(f"pair: the embedded Bibles are es-en and en-es, not {recipe.pair!r}")
        return
    languages = recipe.pair.split("-")
    if isinstance(data, ArchiveData):
        _check_archive(languages, data, errors, files)
        return
    _absolute(data)
    for split in ("train", "valid", "test"):
        names = getattr(data, split)
        if len(names) > 2 or (files and split == "train" and not names):
            errors.append(f"data.{split}: expected one or two files, got {len(names)}")
        columns = {name: split_columns(name)[1] for name in names}
        errors += [
            f"data.{split}: {name} has no column for each of {' and '.join(languages)}"
            for name in names
            if columns[name] and not set(languages) <= set(columns[name])
        ]
        if len(names) > 1 and any(columns.values()):
            errors.append(f"data.{split}: a table is given alone, not beside another file")
        endings = [Path(name.removesuffix(".gz")).suffix.lstrip(".") for name in names]
        if len(names) > 1 and endings == languages[::-1]:
            errors.append(
                f"data.{split}: {names[0]} is the source of {recipe.pair} and ends in "
                f".{endings[0]}; its {languages[0]} file comes first"
            )
        elif len(names) > 1 and names[0] == names[1]:
            errors.append(f"data.{split}: {names[0]} is given for both languages")
        if files:
            errors += [
                f"data.{split}: there is no file {file}"
                for file, _ in map(split_columns, names)
                if not Path(file).is_file()
            ]


def _check_archive(
    languages: Sequence[str], data: ArchiveData, errors: list[str], files: bool
) -> None:
    if not data.train:
        errors.append("data.train: no file is named; train.LANG would be one a language")
    names = {split: getattr(data, split) for split in ("train", "valid", "test")}
    for split, templates in names.items():
        for name in templates:
            columns = split_columns(name)[1]
            if not columns and "LANG" not in name:
                errors.append(
                    f"data.{split}: {name!r} has no LANG in it, so that both languages would be "
                    "one file; a table's columns stand behind its name, as in NAME#de,en"
                )
            elif columns and not set(languages) <= set(columns):
                errors.append(
                    f"data.{split}: {name!r} has no column for each of {' and '.join(languages)}"
                )
    errors += [
        f"data.urls: {url!r} is not an address such as https://…/file.tgz, or one with "
        "#sha256= and 64 hexadecimal digits behind it, or #md5= and 32"
        for url in data.urls
        if not re.fullmatch(
            r"https?://[^/\s#]+/[^\s#]+(#sha256=[0-9a-fA-F]{64}|#md5=[0-9a-fA-F]{32})?", url
        )
    ]
    errors += [
        f"data.join: {language!r} is neither of {' and '.join(languages)}"
        for language in data.join
        if language not in languages
    ]
    wanted = files_named([name for templates in names.values() for name in templates], languages)
    if data.path is None:
        if not data.urls:
            errors.append(
                f"data.path: no address is known for this corpus. Name the folder that holds "
                f"{', '.join(wanted)}: data.path=DIR"
            )
        return
    data.path = str(Path(data.path).expanduser().absolute())
    if not files:
        return
    try:
        shelf = Shelf(Path(data.path))
    except TextError as error:
        errors.append(f"data.path: {error}")
        return
    for name in wanted:
        try:
            shelf.find(name)
        except TextError as error:
            errors.append(f"data.path: {error}")


def _absolute(data: CustomData) -> None:
    """Stages run in the run's folder: paths relative to where the user is are made absolute."""
    for split in ("train", "valid", "test"):
        names = [str(Path(n).expanduser().absolute()) for n in getattr(data, split)]
        setattr(data, split, names)


def check_comparison(recipe: Recipe, systems: Sequence[System], errors: list[str]) -> None:
    """Append to `errors` what is wrong with systems, baseline, seeds and metrics."""
    if not recipe.systems:
        errors.append("systems: none is given; vanilla,7f+1l would be two")
    if recipe.baseline is not None and recipe.baseline not in [s.name for s in systems]:
        names = [s.name for s in systems]
        errors.append(
            f"baseline: {recipe.baseline!r} is not one of the systems; "
            f"{nearest(recipe.baseline, names)}"
        )
    if not recipe.seeds:
        errors.append("seeds: none is given")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        errors.append(f"seeds: one is there twice: {recipe.seeds}")
    if any(seed < 0 for seed in recipe.seeds):
        errors.append("seeds: must be 0 or above")
    if not recipe.score.metrics:
        errors.append("score.metrics: none is given")
