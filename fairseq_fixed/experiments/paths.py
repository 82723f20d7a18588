"""The names in a run's folder, all relative to it."""

from __future__ import annotations

__all__ = [
    "AVERAGED",
    "BINARY",
    "COMMANDS",
    "DICTIONARY",
    "DOWNLOAD",
    "GENERATED",
    "HYPOTHESES",
    "HYPOTHESES_INFO",
    "LENGTHS",
    "OPTIONS",
    "RAW",
    "RECIPE",
    "REPORT",
    "RESULT",
    "SCORE",
    "SHARDS",
    "SIGNIFICANCE",
    "SPLITS",
    "STATISTICS",
    "SUBWORDS",
    "TEXT",
    "binary",
    "checkpoints",
    "seed_folder",
    "stage_name",
]

RECIPE = "recipe.yaml"
OPTIONS = "options.json"
COMMANDS = "commands.sh"
DOWNLOAD = "data/download"  # files as their publisher has them
TEXT = "data/text"  # their sentences, two files a split
RAW = "data/raw"  # checked, cleaned, filtered
SUBWORDS = "data/subwords"
SHARDS = "data/shards"  # the training text in parts, for corpora that have them
DICTIONARY = "data/dict"  # the same: one dictionary for all parts
BINARY = "data/bin"
REPORT = "report"
SIGNIFICANCE = "report/significance.json"
SPLITS = ("train", "valid", "test")

# In a system's and seed's folder:
AVERAGED = "averaged.pt"
GENERATED = "generate-test.txt"  # fairseq's own name for it
HYPOTHESES = "hypotheses.txt"
HYPOTHESES_INFO = "hypotheses.json"
SCORE = "score.json"
STATISTICS = "statistics.json"  # what the scores are made of, a sentence
LENGTHS = "lengths.json"  # the scores by length
RESULT = "result.json"


def binary(shard: int) -> str:
    """Return the folder of a part of the binary data; the first has valid and test, too."""
    return BINARY if shard == 1 else f"{BINARY}{shard}"


def seed_folder(slug: str, seed: int) -> str:
    """Return the folder of one trained model."""
    return f"systems/{slug}/seed{seed}"


def checkpoints(slug: str, seed: int) -> str:
    """Return the folder of one training's checkpoints."""
    return f"{seed_folder(slug, seed)}/checkpoints"


def stage_name(kind: str, slug: str, seed: int) -> str:
    """Return the name of a stage of one system and seed: `train.7f-1l.seed1`."""
    return f"{kind}.{slug}.seed{seed}"
