"""The verbs that stages run: one thin function each, for `fairseq-fixed VERB` and `commands.sh`.

They log and write files; they print nothing. Heavy modules are imported inside.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = ["VERBS"]

logger = logging.getLogger(__name__)

_Out = Annotated[Path, typer.Option(help="File to write.")]
_Metrics = Annotated[str, typer.Option(help="bleu, chrf, chrf++, ter; commas between them.")]
_Tokenize = Annotated[str, typer.Option(help="BLEU's tokenizer, as sacrebleu names it.")]


def _two_languages(pair: str) -> str:
    codes = pair.split("-")
    if len(codes) != 2 or not all(codes):
        raise typer.BadParameter(f"{pair} is not two language codes, as in es-en")
    return pair


_Pair = Annotated[
    str, typer.Option(help="Source and target language, as in es-en.", callback=_two_languages)
]


def unpack(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpus's files or archives.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    pair: _Pair,
    train: Annotated[list[str], typer.Option(help="File, with LANG for the language.")],
    valid: Annotated[list[str] | None, typer.Option(help="The same.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="The same.")] = None,
    markup: Annotated[bool, typer.Option("--markup", help="IWSLT's train.tags and .xml.")] = False,
    join: Annotated[
        list[str] | None, typer.Option(help="Language whose words' spaces are taken away.")
    ] = None,
) -> None:
    """Take a published corpus's sentences out of its files and archives."""
    from fairseq_fixed.experiments.archives import unpack as unpack_corpus

    unpack_corpus(
        folder,
        out,
        languages=pair.split("-"),
        splits={"train": train, "valid": valid or (), "test": test or ()},
        markup=markup,
        join=join or (),
    )


def prepare(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    pair: _Pair,
    train: Annotated[list[str], typer.Option(help="Source file, target file; or one TSV.")],
    valid: Annotated[list[str] | None, typer.Option(help="The same; none: from train.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="The same; none: from train.")] = None,
    held_out: Annotated[int, typer.Option(help="Sentences drawn from train for each.")] = 1000,
    max_words: Annotated[int | None, typer.Option(help="Longest training sentence.")] = None,
    max_ratio: Annotated[
        float | None, typer.Option(help="Longer side of a training pair over the shorter.")
    ] = None,
    limit: Annotated[str | None, typer.Option(help="Training sentences: 5000, 5k.")] = None,
) -> None:
    """Check one's own parallel text and split it into train, valid and test."""
    from fairseq_fixed.experiments.parallel_text import prepare_custom

    source, target = pair.split("-")
    prepare_custom(
        out,
        source=source,
        target=target,
        train=train,
        valid=valid or (),
        test=test or (),
        held_out=held_out,
        max_words=max_words,
        max_ratio=max_ratio,
        limit=limit,
    )


def subwords(
    corpus: Annotated[Path, typer.Argument(help="Folder with train.XX, valid.XX, test.XX.")],
    pair: _Pair,
    size: Annotated[int, typer.Option(help="Subwords, both languages together.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    type: Annotated[Literal["bpe", "unigram"], typer.Option(help="Kind of model.")] = "bpe",
    character_coverage: Annotated[
        float, typer.Option(help="Share of the characters that get a subword.")
    ] = 1.0,
) -> None:
    """Train joint subwords on the training text and encode all splits."""
    from fairseq_fixed.experiments import paths
    from fairseq_fixed.experiments.subwords import encode_file, train_subwords

    languages = pair.split("-")
    out.mkdir(parents=True, exist_ok=True)
    train_subwords(
        [corpus / f"train.{language}" for language in languages],
        out / "model",
        size,
        type=type,
        character_coverage=character_coverage,
    )
    for split in paths.SPLITS:
        for language in languages:
            encode_file(
                out / "model.model", corpus / f"{split}.{language}", out / f"{split}.{language}"
            )


def shards(
    folder: Annotated[Path, typer.Argument(help="Folder with train.XX.")],
    pair: _Pair,
    parts: Annotated[int, typer.Option(help="How many.")],
    out: Annotated[Path, typer.Option(help="Folder for trainN.XX, N from 1.")],
) -> None:
    """Deal the training sentences out to several files, line by line."""
    from fairseq_fixed.experiments.parallel_text import deal

    for language in pair.split("-"):
        deal(
            folder / f"train.{language}",
            [out / f"train{part}.{language}" for part in range(1, parts + 1)],
        )


def launch(
    command: Annotated[list[str], typer.Argument(help="fairseq-train and its options.")],
    processes: Annotated[
        int, typer.Option(help="A GPU each; without GPUs, so many on the CPU.")
    ] = 1,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="bfloat16; fairseq-train's own is for TPUs alone.")
    ] = False,
) -> None:
    """Start fairseq-train where its own command cannot: CPU processes, bf16."""
    from fairseq_fixed.experiments.launch import launch as launch_training

    status = launch_training(command, processes=processes, bf16=bf16)
    if status:
        raise typer.Exit(status)


def mend(
    folder: Annotated[Path, typer.Argument(help="A training's --save-dir.")],
    max_update: Annotated[int, typer.Option(help="Updates after which it ends.")],
    patience: Annotated[int, typer.Option(help="Its --patience; 0: none.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Its log, if it may end earlier.")] = None,
) -> None:
    """Make the checkpoints of a killed training fit to resume from.

    Exit status 3: the training has had all its updates, or has ended before.
    """
    from fairseq_fixed.experiments.mend import has_ended
    from fairseq_fixed.experiments.mend import mend as mend_folder
    from fairseq_fixed.experiments.plan import NOTHING_LEFT

    updates = mend_folder(folder)
    if updates >= max_update:
        logger.info("it has had all its %d updates", max_update)
        raise typer.Exit(NOTHING_LEFT)
    if log is not None and has_ended(log, updates, patience):
        logger.info("it ended after %d updates, by its time or its patience", updates)
        raise typer.Exit(NOTHING_LEFT)


def average(
    folder: Annotated[Path, typer.Argument(help="A training's --save-dir.")],
    last: Annotated[int, typer.Option(help="How many of the newest checkpoints.")],
    out: _Out,
) -> None:
    """Average the newest checkpoints of a training."""
    from fairseq_fixed.checkpoints import average_checkpoints
    from fairseq_fixed.experiments.mend import checkpoints_to_average

    chosen = checkpoints_to_average(folder, last)
    logger.info("averaging %s", ", ".join(path.name for path in chosen))
    average_checkpoints(chosen[::-1], out)


def hypotheses(
    generated: Annotated[Path, typer.Argument(help="fairseq-generate's output.")],
    subwords: Annotated[Path, typer.Option(help="The sentencepiece model.")],
    source: Annotated[Path, typer.Option(help="Test source as subwords.")],
    target: Annotated[Path, typer.Option(help="Test reference as subwords.")],
    max_positions: Annotated[int, typer.Option(help="Longest sentence, in subwords.")],
    out: _Out,
    info: Annotated[Path, typer.Option(help="JSON to write: what is missing.")],
) -> None:
    """Turn fairseq-generate's output into text, a line a sentence, in the corpus's order."""
    from fairseq_fixed.experiments.hypotheses import collect
    from fairseq_fixed.experiments.scoring import read_lines
    from fairseq_fixed.experiments.stamps import write_json, write_text
    from fairseq_fixed.experiments.subwords import decode_lines

    lines, account = collect(
        generated,
        source=read_lines(source),
        target=read_lines(target),
        max_positions=max_positions,
        decode=lambda pieces: list(decode_lines(subwords, pieces)),
    )
    write_text(out, "".join(f"{line}\n" for line in lines))
    write_json(info, account)


def score(
    hypotheses: Annotated[Path, typer.Argument(help="Translations, a line a sentence.")],
    reference: Annotated[Path, typer.Option(help="The raw reference.")],
    out: _Out,
    metrics: _Metrics = "bleu,chrf",
    tokenize: _Tokenize = "13a",
    source: Annotated[Path | None, typer.Option(help="Test source as subwords.")] = None,
    train: Annotated[Path | None, typer.Option(help="Training source as subwords.")] = None,
    statistics: Annotated[
        Path | None, typer.Option(help="JSON to write: counts a sentence, for tests over seeds.")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="JSON to write: scores by length; needs all of these.")
    ] = None,
    comet: Annotated[
        str | None, typer.Option(help="COMET model: a checkpoint, or a name of the package.")
    ] = None,
    raw_source: Annotated[Path | None, typer.Option(help="For COMET: the raw source.")] = None,
) -> None:
    """Score translations with sacrebleu."""
    from fairseq_fixed.experiments import scoring
    from fairseq_fixed.experiments.comet_metric import Comet
    from fairseq_fixed.experiments.errors import ExperimentError
    from fairseq_fixed.experiments.lengths import account, file_lengths
    from fairseq_fixed.experiments.stamps import write_json

    chosen = scoring.make_metrics(metrics.split(","), tokenize)
    lines, answers = scoring.read_lines(hypotheses), scoring.read_lines(reference)
    if comet is not None:
        if raw_source is None:
            raise ExperimentError("--comet needs --raw-source: COMET reads the source, too")
        chosen["comet"] = Comet(comet, scoring.read_lines(raw_source))
    scores = scoring.score(lines, answers, chosen)
    if any((source, train, statistics, lengths)):
        if source is None or train is None or statistics is None or lengths is None:
            raise ExperimentError("--source, --train, --statistics and --lengths go together")
        kept, by_length = account(
            lines,
            answers,
            chosen,
            source=scoring.read_lines(source),
            train=file_lengths(train),
        )
        write_json(statistics, kept)
        write_json(lengths, by_length)
    for name, result in scores.items():
        logger.info("%s: %s", name, result["detail"])
    write_json(out, scores)


def result(
    recipe: Annotated[Path, typer.Option(help="The run's recipe.yaml.")],
    system: Annotated[str, typer.Option(help="The system's folder name.")],
    seed: Annotated[int, typer.Option(help="The seed.")],
) -> None:
    """Write one model's result.json: scores, settings, curve, machine, versions."""
    from fairseq_fixed.experiments import paths
    from fairseq_fixed.experiments.recipe import read
    from fairseq_fixed.experiments.results import make_result
    from fairseq_fixed.experiments.stamps import write_json

    folder = recipe.absolute().parent
    content = make_result(read(recipe), system, seed, folder)
    write_json(folder / paths.seed_folder(system, seed) / paths.RESULT, content)


def compare(
    reference: Annotated[Path, typer.Option(help="The raw reference.")],
    baseline: Annotated[Path, typer.Option(help="The baseline's folder, with seedN/ inside.")],
    system: Annotated[list[Path], typer.Option(help="Another system's folder; repeatable.")],
    seeds: Annotated[str, typer.Option(help="Seeds; commas between them.")],
    out: _Out,
    metrics: _Metrics = "bleu,chrf",
    tokenize: _Tokenize = "13a",
    bootstrap: Annotated[int, typer.Option(help="Resamples of the paired bootstrap.")] = 1000,
    trials: Annotated[int, typer.Option(help="Trials of the paired randomisation.")] = 10_000,
) -> None:
    """Test whether systems differ from the baseline by more than chance, seed by seed."""
    from fairseq_fixed.experiments import paths, scoring
    from fairseq_fixed.experiments.errors import ExperimentError
    from fairseq_fixed.experiments.stamps import write_json

    folders = {path.name: path for path in (baseline, *system)}
    if len(folders) <= len(system):
        raise ExperimentError(
            "systems are told apart by the names of their folders, and two of "
            f"{', '.join(str(path) for path in (baseline, *system))} have one name"
        )
    chosen = scoring.make_metrics(metrics.split(","), tokenize)
    by_seed = scoring.compare_seeds(
        folders, baseline.name, [int(s) for s in seeds.split(",")], paths.HYPOTHESES
    )
    lines = scoring.read_lines(reference)
    tests = {
        str(seed): scoring.compare(base, others, lines, chosen, bootstrap=bootstrap, trials=trials)
        for seed, base, others in by_seed
    }
    write_json(out, {"baseline": baseline.name, "seeds": tests})


def check_options(
    recipe: Annotated[Path, typer.Option(help="The run's recipe.yaml.")],
    out: _Out,
) -> None:
    """Check that fairseq knows every option of all commands; write what it makes of them."""
    from fairseq_fixed.experiments.options_check import parse_options
    from fairseq_fixed.experiments.recipe import read
    from fairseq_fixed.experiments.stages import compile_plan
    from fairseq_fixed.experiments.stamps import write_json

    write_json(out, parse_options(compile_plan(read(recipe))))


def write_report(
    recipe: Annotated[Path, typer.Option(help="The run's recipe.yaml.")],
) -> None:
    """Write the report of a finished run: Markdown, JSON, PNG."""
    from fairseq_fixed.experiments import report
    from fairseq_fixed.experiments.recipe import read

    path = report.write_report(read(recipe), recipe.absolute().parent)
    logger.info("wrote %s", path)


VERBS: dict[str, Any] = {
    "check-options": check_options,
    "unpack": unpack,
    "prepare": prepare,
    "subwords": subwords,
    "shards": shards,
    "launch": launch,
    "mend": mend,
    "average": average,
    "hypotheses": hypotheses,
    "score": score,
    "result": result,
    "compare": compare,
    "write-report": write_report,
}
