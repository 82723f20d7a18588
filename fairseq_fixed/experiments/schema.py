"""What a recipe may say: every key, its type, meaning and default.

A recipe's YAML file sets what differs from here, `configs/train/*.yaml` the training settings that
recipes share, the command line (`train.max_update=500`) the rest. Types are checked by
:mod:`fairseq_fixed.experiments.validation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "ArchiveData",
    "CustomData",
    "ModelSettings",
    "Recipe",
    "ScoreSettings",
    "SubwordSettings",
    "SwordData",
    "TrainSettings",
    "TranslateSettings",
]


@dataclass(kw_only=True)
class SwordData:
    """Two public-domain Bibles (Debian's SWORD modules), aligned verse by verse."""

    kind: Literal["sword"] = "sword"
    limit: str | None = None  # training verses: 5k, 10k, 20k; null: all
    max_words: int = 30  # longest training verse, in words a side


@dataclass(kw_only=True)
class CustomData:
    """One's own parallel text: two files a split, plain or gzip, one sentence a line."""

    kind: Literal["custom"] = "custom"
    # [source file, target file], or one TSV (source, tab, target). A table of other columns has
    # their names behind its own: all.tsv#key,en,fr,licence
    train: list[str]
    valid: list[str] = field(default_factory=list)  # empty: drawn from train
    test: list[str] = field(default_factory=list)  # empty: drawn from train
    held_out: int = 1000  # sentences drawn for valid, and for test, where they are not given
    max_words: int | None = None  # longest training sentence, in words a side; null: any
    max_ratio: float | None = None  # a training pair's longer side in characters, over the shorter
    limit: str | None = None  # training sentences; null: all


@dataclass(kw_only=True)
class ArchiveData:
    """A published corpus: files or archives to download, or in a folder of one's own.

    In names and addresses `LANG` stands for either language's code, `SIDE` for `src` and `ref`
    beside it, `SOURCE` and `TARGET` for the pair's codes. A name is that of a file, also inside a
    .tar.gz or .zip: NAME, NAME.gz or numbered parts NAME.000, NAME.001, …; `folder/NAME` where the
    name alone is not unique. `NAME#de,en` is a table whose columns are these languages.
    """

    kind: Literal["archive"] = "archive"
    path: str | None = None  # folder with the files, or archives of them; null: download
    urls: list[str] = field(default_factory=list)  # URL, or URL#sha256=HEX; empty: needs `path`
    train: list[str]  # names, such as train.LANG; several are joined, one behind the other
    valid: list[str] = field(default_factory=list)  # empty: drawn from train
    test: list[str] = field(default_factory=list)  # empty: drawn from train
    # IWSLT's train.tags, and .xml and .sgm: take the sentences out; other files are plain
    markup: bool = False
    join: list[str] = field(default_factory=list)  # languages whose words' spaces are taken away
    held_out: int = 1000  # sentences drawn for valid, and for test, where they are not given
    max_words: int | None = None  # longest training sentence, in words a side; null: any
    max_ratio: float | None = None  # a training pair's longer side in characters, over the shorter
    limit: str | None = None  # training sentences; null: all


@dataclass(kw_only=True)
class SubwordSettings:
    """Joint sentencepiece subwords."""

    size: int = 8000  # pieces, both languages together
    type: Literal["bpe", "unigram"] = "bpe"
    character_coverage: float = 1.0  # share of characters with a piece; 0.9995 for ja, zh


@dataclass(kw_only=True)
class ModelSettings:
    """The size, the same for all systems."""

    layers: int = 6  # encoder and decoder
    encoder_layers: int | None = None  # null: `layers`
    decoder_layers: int | None = None  # null: `layers`
    dim: int = 512
    ffn: int = 2048
    heads: int = 8  # encoder
    decoder_heads: int | None = None  # null: `heads`
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    share_all_embeddings: bool = True
    max_positions: int = 1024  # longest sentence, in subwords, both sides
    flags: dict[str, Any] = field(default_factory=dict)  # further model flags of fairseq-train


@dataclass(kw_only=True)
class TrainSettings:
    """The budget and the optimiser, the same for all systems."""

    max_update: int = 20_000  # updates; with `patience` a training may end earlier
    max_hours: float = 0  # stop a training after so many hours; 0: no limit
    patience: int = 0  # stop after so many validations without a better loss; 0: never
    max_tokens: int = 4096  # tokens a batch (and device)
    update_freq: int = 1  # batches an update
    # Tokens an update, on all devices together: update_freq follows from it and from `processes`.
    # null: max_tokens · update_freq on each device.
    batch_tokens: int | None = None
    # Processes of one training, a GPU each; `all`: every GPU there is. Without a GPU so many
    # processes on the CPU (all: one).
    processes: int | Literal["all"] = 1
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    shards: int = 1  # the training set is cut into so many parts, one read an epoch
    optimizer: str = "adam"
    adam_betas: str = "(0.9, 0.98)"
    lr: float = 0.0005
    lr_scheduler: str = "inverse_sqrt"
    warmup_updates: int = 4000
    clip_norm: float = 0.0
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    save_every: int = 1000  # updates between checkpoints; validation then, too
    average: int = 5  # newest checkpoints averaged for translation; only these are kept
    log_every: int = 50  # updates between log lines
    tensorboard: bool = True  # logs in systems/NAME/seedN/tensorboard, where the package is there
    flags: dict[str, Any] = field(default_factory=dict)  # further flags of fairseq-train


@dataclass(kw_only=True)
class TranslateSettings:
    """Beam search."""

    beam: int = 5
    length_penalty: float = 1.0
    max_len_a: float = 1.5  # a translation is at most a·n + b subwords long
    max_len_b: int = 20
    max_tokens: int = 8000  # subwords a batch
    flags: dict[str, Any] = field(default_factory=dict)  # further flags of fairseq-generate


@dataclass(kw_only=True)
class ScoreSettings:
    """sacrebleu on raw references, and the significance of differences."""

    metrics: list[Literal["bleu", "chrf", "chrf++", "ter"]] = field(
        default_factory=lambda: ["bleu", "chrf"]
    )
    tokenize: str | None = None  # BLEU's tokenizer; null: the target language's (13a for most)
    comet: str | None = None  # COMET model: a checkpoint, or a name of the package unbabel-comet
    bootstrap: int = 1000  # resamples of the paired bootstrap
    trials: int = 10_000  # trials of the paired approximate randomisation; 0: leave it out
    alpha: float = 0.05  # differences with p above it are called not significant


@dataclass(kw_only=True)
class Recipe:
    """One experiment: a language pair, settings, the systems to compare and the seeds."""

    description: str = ""  # one line for `fairseq-fixed recipes`
    cost: str = ""  # the same: how long, on what
    pair: str  # source-target, as in es-en
    data: SwordData | CustomData | ArchiveData
    subwords: SubwordSettings = field(default_factory=SubwordSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    translate: TranslateSettings = field(default_factory=TranslateSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    # vanilla, a head mix, a file of configs/model, or {heads: 8l, tisa_kernels: 5}
    systems: list[str | dict[str, Any]] = field(default_factory=lambda: ["vanilla", "7f+1l"])
    baseline: str | None = None  # the system that others are compared with; null: the first
    seeds: list[int] = field(default_factory=lambda: [1])
    samples: int = 5  # sentences shown in the report
    threads: int | None = None  # CPU threads a process; null: the cores shared by the trainings
    jobs: int | None = None  # processes at once; null: cores / threads, or one a GPU
    out: str | None = None  # the run's folder; null: runs/<recipe>
    vars: dict[str, Any] = field(default_factory=dict)  # for ${vars.NAME} elsewhere in the recipe
    multirun: dict[str, Any] | None = None  # key: its values, as behind -m
    results: str | None = None  # folder that gets a copy of every system's result; null: none

    @property
    def source(self) -> str:
        """The source language's code."""
        return self.pair.split("-")[0]

    @property
    def target(self) -> str:
        """The target language's code."""
        return self.pair.split("-")[1]
