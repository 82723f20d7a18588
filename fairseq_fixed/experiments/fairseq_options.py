"""A recipe's settings as options of fairseq-train and fairseq-generate."""

from __future__ import annotations

import itertools

from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.systems import System, render_flags

__all__ = ["READING", "common", "number", "positions", "processes", "taken_back"]

# fairseq drops the last batch of a data set, the longest sentences, if its size is no multiple of 8
# (0.12.3 and main do): without this option up to 7 test sentences get no translation.
READING = (
    "--required-batch-size-multiple", "1",
    "--num-workers", "0", "--skip-invalid-size-inputs-valid-test",
)  # fmt: skip


def common(experiment: Experiment, system: System) -> tuple[str, ...]:
    """Return the options that a recipe gives to all systems, without what this one takes back."""
    own = _flags(experiment)
    words = (*_settings(experiment), *READING, "--update-epoch-batch-itr", "True", *own)
    gone = taken_back(experiment, system)
    return tuple(word for word in words if word not in gone)


def taken_back(experiment: Experiment, system: System) -> list[str]:
    """Return the switches that the recipe gives to all systems, but not to this one."""
    words = [*_settings(experiment), "--", *_flags(experiment), "--"]
    pairs = itertools.pairwise(words)
    found = {word for word, behind in pairs if word.startswith("--") and behind.startswith("--")}
    return sorted(found.intersection(system.without))


def _settings(experiment: Experiment) -> tuple[str, ...]:
    return (
        *size(experiment), *optimiser(experiment), *processes(experiment), *budget(experiment),
    )  # fmt: skip


def _flags(experiment: Experiment) -> tuple[str, ...]:
    return render_flags(experiment.recipe.train.flags)


def size(experiment: Experiment) -> tuple[str, ...]:
    """Return the options that make the model's size, the same for all systems."""
    model = experiment.recipe.model
    shared = ("--share-all-embeddings",) if model.share_all_embeddings else ()
    return (
        "--encoder-layers", str(model.encoder_layers or model.layers),
        "--decoder-layers", str(model.decoder_layers or model.layers),
        "--encoder-embed-dim", str(model.dim), "--decoder-embed-dim", str(model.dim),
        "--encoder-ffn-embed-dim", str(model.ffn), "--decoder-ffn-embed-dim", str(model.ffn),
        "--encoder-attention-heads", str(model.heads),
        "--decoder-attention-heads", str(model.decoder_heads or model.heads),
        *shared,
        "--dropout", number(model.dropout),
        "--attention-dropout", number(model.attention_dropout),
        "--activation-dropout", number(model.activation_dropout),
        *positions(experiment),
        *render_flags(model.flags),
    )  # fmt: skip


def positions(experiment: Experiment) -> tuple[str, ...]:
    """Return the options for the longest sentence, for training and translation."""
    longest = str(experiment.recipe.model.max_positions)
    return ("--max-source-positions", longest, "--max-target-positions", longest)


def budget(experiment: Experiment) -> tuple[str, ...]:
    """Return the options that say how long a training lasts and what it keeps."""
    train = experiment.recipe.train
    every = str(train.save_every)
    # Epochs neither validate nor save: all systems are looked at after the same updates.
    never = "1000000"
    options: tuple[str, ...] = (
        "--max-update", str(train.max_update),
        "--validate-interval-updates", every, "--save-interval-updates", every,
        "--keep-interval-updates", str(train.average), "--no-epoch-checkpoints",
        "--validate-interval", never, "--save-interval", never,
        "--log-format", "json", "--log-interval", str(train.log_every),
    )  # fmt: skip
    if train.max_hours:
        options += ("--stop-time-hours", number(train.max_hours))
    if train.patience:
        options += ("--patience", str(train.patience))
    return options


def optimiser(experiment: Experiment) -> tuple[str, ...]:
    """Return the options of the optimiser, its schedule, the batches and the loss."""
    train = experiment.recipe.train
    options: tuple[str, ...] = (
        "--max-tokens", str(train.max_tokens), "--update-freq", _update_freq(experiment),
        "--optimizer", train.optimizer,
        "--lr", number(train.lr), "--lr-scheduler", train.lr_scheduler,
        "--clip-norm", number(train.clip_norm), "--weight-decay", number(train.weight_decay),
        "--criterion", "label_smoothed_cross_entropy",
        "--label-smoothing", number(train.label_smoothing),
    )  # fmt: skip
    if train.optimizer == "adam":
        options += ("--adam-betas", train.adam_betas)
    if train.warmup_updates:
        options += ("--warmup-updates", str(train.warmup_updates))
    return options


def _update_freq(experiment: Experiment) -> str:
    """Return how many batches an update has on each device."""
    train = experiment.recipe.train
    if train.batch_tokens is None:
        return str(train.update_freq)
    batches = train.batch_tokens // train.max_tokens
    if train.processes == "all":
        return f"{{update_freq:{batches}}}"
    return str(batches // train.processes)


def processes(experiment: Experiment) -> tuple[str, ...]:
    """Return the options of a training on several devices, and those of its precision."""
    train = experiment.recipe.train
    options: tuple[str, ...] = ()
    if train.processes == "all":
        options += ("--distributed-world-size", "{devices}")
    if train.processes != 1:
        # the one that is the same on GPUs and CPUs, and that minds no unused parameters
        options += ("--ddp-backend", "legacy_ddp")
    if train.precision == "fp16":
        options += ("--fp16",)
    return options


def number(value: float) -> str:
    """Return a number as a command line shows it."""
    return f"{value:g}" if abs(value) >= 1e-4 or value == 0 else repr(value)
