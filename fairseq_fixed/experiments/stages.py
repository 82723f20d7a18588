"""A checked recipe becomes a plan: corpus → subwords → preprocess → train … → report."""

from __future__ import annotations

from fairseq_fixed.experiments import archives, paths
from fairseq_fixed.experiments.fairseq_options import (
    READING,
    common,
    number,
    positions,
)
from fairseq_fixed.experiments.parallel_text import split_columns
from fairseq_fixed.experiments.plan import Plan, Stage
from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.schema import ArchiveData, CustomData
from fairseq_fixed.experiments.systems import System, render_flags

__all__ = ["VERB", "compile_plan"]

VERB = ("python", "-m", "fairseq_fixed.cli")
_OURS = "fairseq-fixed-attention"
_TRAINING_TOOLS = ("torch", "fairseq", _OURS)


def compile_plan(experiment: Experiment) -> Plan:
    """Return the stages of an experiment, in an order in which they could run one by one."""
    runs = [(system, seed) for seed in experiment.recipe.seeds for system in experiment.systems]
    stages = [_options(), *_archive(experiment), _corpus(experiment)]
    stages += [_subwords(experiment), *_preprocess(experiment)]
    # One model after the other, so that the first result is there before the last training starts.
    each = (_train, _average, _translate, _hypotheses, _score, _result)
    stages += [make(experiment, *run) for run in runs for make in each]
    if experiment.others:
        stages.append(_compare(experiment))
    stages.append(_report(experiment))
    return Plan(stages)


def _raw(experiment: Experiment, split: str, language: str) -> str:
    return f"{paths.RAW}/{split}.{language}"


def _languages(experiment: Experiment) -> tuple[str, str]:
    return experiment.recipe.source, experiment.recipe.target


def _options() -> Stage:
    return Stage(
        name="options",
        argv=(*VERB, "check-options", "--recipe", paths.RECIPE, "--out", paths.OPTIONS),
        inputs=(paths.RECIPE,),
        outputs=(paths.OPTIONS,),
        tools=("fairseq", _OURS),
    )


def _archive(experiment: Experiment) -> list[Stage]:
    """Return the stages that turn a published corpus into two files a split."""
    recipe, data = experiment.recipe, experiment.recipe.data
    if not isinstance(data, ArchiveData):
        return []
    languages = _languages(experiment)
    stages = []
    folder = paths.DOWNLOAD
    inputs: tuple[str, ...] = (f"{paths.DOWNLOAD}/",)
    if data.path is None:
        urls = archives.expand(data.urls, languages)
        stages = [
            Stage(
                name="download",
                argv=("python", "{data}/download.py", *urls, "--out", paths.DOWNLOAD),
                outputs=(f"{paths.DOWNLOAD}/",),
                tools=(_OURS,),
            )
        ]
    else:
        folder, names = data.path, [*data.train, *data.valid, *data.test]
        inputs = archives.sources_in(folder, archives.files_named(names, languages))
    options: tuple[str, ...] = ("--out", paths.TEXT, "--pair", recipe.pair)
    for split in paths.SPLITS:
        for name in getattr(data, split):
            options += (f"--{split}", name)
    if data.markup:
        options += ("--markup",)
    for language in data.join:
        options += ("--join", language)
    stages.append(
        Stage(
            name="unpack",
            argv=(*VERB, "unpack", folder, *options),
            inputs=inputs,
            outputs=(f"{paths.TEXT}/",),
            tools=(_OURS,),
        )
    )
    return stages


def _text_files(experiment: Experiment) -> dict[str, list[str]]:
    """Return the files of parallel text that a corpus is prepared from, by split."""
    data = experiment.recipe.data
    if isinstance(data, ArchiveData):
        return {
            split: [f"{paths.TEXT}/{split}.{language}" for language in _languages(experiment)]
            for split in paths.SPLITS
            if getattr(data, split)
        }
    return {split: getattr(data, split) for split in paths.SPLITS}


def _corpus(experiment: Experiment) -> Stage:
    recipe, data = experiment.recipe, experiment.recipe.data
    options: tuple[str, ...] = ("--out", paths.RAW, "--pair", recipe.pair)
    if data.limit is not None:
        options += ("--limit", data.limit)
    if data.max_words is not None:
        options += ("--max-words", str(data.max_words))
    if not isinstance(data, CustomData | ArchiveData):
        return Stage(
            name="corpus",
            argv=("python", "{data}/sword.py", *options),
            outputs=(f"{paths.RAW}/",),
            tools=(_OURS,),
        )
    if data.max_ratio is not None:
        options += ("--max-ratio", number(data.max_ratio))
    files = _text_files(experiment)
    for split, names in files.items():
        for name in names:
            options += (f"--{split}", name)
    return Stage(
        name="corpus",
        argv=(*VERB, "prepare", *options, "--held-out", str(data.held_out)),
        inputs=tuple(split_columns(name)[0] for names in files.values() for name in names),
        outputs=(f"{paths.RAW}/",),
        tools=(_OURS,),
    )


def _subwords(experiment: Experiment) -> Stage:
    settings = experiment.recipe.subwords
    return Stage(
        name="subwords",
        argv=(
            *VERB, "subwords", paths.RAW, "--pair", experiment.recipe.pair,
            "--size", str(settings.size), "--type", settings.type,
            "--character-coverage", number(settings.character_coverage), "--out", paths.SUBWORDS,
        ),
        inputs=tuple(
            _raw(experiment, split, language)
            for split in paths.SPLITS
            for language in _languages(experiment)
        ),
        outputs=(f"{paths.SUBWORDS}/",),
        tools=("sentencepiece", _OURS),
    )  # fmt: skip


def _encoded(experiment: Experiment, *splits: str) -> tuple[str, ...]:
    languages = _languages(experiment)
    return tuple(
        f"{paths.SUBWORDS}/{split}.{language}" for split in splits for language in languages
    )


def _fairseq_preprocess(experiment: Experiment) -> tuple[str, ...]:
    source, target = _languages(experiment)
    return (
        "fairseq-preprocess", "--source-lang", source, "--target-lang", target,
        "--joined-dictionary",
    )  # fmt: skip


_HELD_OUT = (
    "--validpref", f"{paths.SUBWORDS}/valid", "--testpref", f"{paths.SUBWORDS}/test",
)  # fmt: skip


def _preprocess(experiment: Experiment) -> list[Stage]:
    """Return the stages that make fairseq's binary data: one, or one a shard."""
    command = _fairseq_preprocess(experiment)
    if experiment.recipe.train.shards > 1:
        return _preprocess_shards(experiment)
    return [
        Stage(
            name="preprocess",
            argv=(
                *command, "--trainpref", f"{paths.SUBWORDS}/train", *_HELD_OUT,
                "--destdir", paths.BINARY, "--workers", "1",
            ),
            inputs=_encoded(experiment, *paths.SPLITS),
            outputs=(f"{paths.BINARY}/",),
            tools=("fairseq",),
        )
    ]  # fmt: skip


def _preprocess_shards(experiment: Experiment) -> list[Stage]:
    """Return one dictionary for all of train, train in parts, and a folder of data for each."""
    command = _fairseq_preprocess(experiment)
    languages = _languages(experiment)
    count = experiment.recipe.train.shards
    train = _encoded(experiment, "train")
    stages = [
        Stage(
            name="dictionary",
            argv=(
                *command, "--trainpref", f"{paths.SUBWORDS}/train", "--dict-only",
                "--destdir", paths.DICTIONARY, "--workers", "1",
            ),
            inputs=train,
            outputs=(f"{paths.DICTIONARY}/",),
            tools=("fairseq",),
        ),
        Stage(
            name="shards",
            argv=(
                *VERB, "shards", paths.SUBWORDS, "--pair", experiment.recipe.pair,
                "--parts", str(count), "--out", paths.SHARDS,
            ),
            inputs=train,
            outputs=(f"{paths.SHARDS}/",),
            tools=(_OURS,),
        ),
    ]  # fmt: skip
    dictionary = f"{paths.DICTIONARY}/dict.{languages[0]}.txt"
    for shard in range(1, count + 1):
        first = shard == 1
        stages.append(
            Stage(
                name="preprocess" if first else f"preprocess.{shard}",
                argv=(
                    *command, "--srcdict", dictionary,
                    "--trainpref", f"{paths.SHARDS}/train{shard}", *(_HELD_OUT if first else ()),
                    "--destdir", paths.binary(shard), "--workers", "1",
                ),
                inputs=(
                    dictionary,
                    *(f"{paths.SHARDS}/train{shard}.{language}" for language in languages),
                    *(_encoded(experiment, "valid", "test") if first else ()),
                ),
                outputs=(f"{paths.binary(shard)}/",),
                tools=("fairseq",),
            )
        )  # fmt: skip
    return stages


def _binary(experiment: Experiment, *splits: str, shard: int = 1) -> tuple[str, ...]:
    pair = experiment.recipe.pair
    languages = _languages(experiment)
    folder = paths.binary(shard)
    dictionaries = tuple(f"{folder}/dict.{language}.txt" for language in languages)
    return dictionaries + tuple(
        f"{folder}/{split}.{pair}.{language}.{kind}"
        for split in splits
        for language in languages
        for kind in ("bin", "idx")
    )


# `--update-epoch-batch-itr`: fairseq 0.12.3 seeds the batches by the epoch in which a training
# starts or resumes, and keeps them. Made anew in each epoch, they are the same after a resume.
def _train(experiment: Experiment, system: System, seed: int) -> Stage:
    train = experiment.recipe.train
    source, target = _languages(experiment)
    folder = paths.checkpoints(system.slug, seed)
    shards = range(1, train.shards + 1)
    board = f"{paths.seed_folder(system.slug, seed)}/tensorboard"
    return Stage(
        name=paths.stage_name("train", system.slug, seed),
        argv=(
            *_launcher(experiment),
            "fairseq-train", ":".join(map(paths.binary, shards)), "--user-dir", "{plugin}",
            "--task", "translation", "--source-lang", source, "--target-lang", target,
            "--save-dir", folder, "--seed", str(seed),
            *common(experiment, system),
            # last, so that a system's own options win
            *system.arguments,
        ),
        inputs=(
            *_binary(experiment, "train", "valid"),
            *(f for shard in shards[1:] for f in _binary(experiment, "train", shard=shard)),
        ),
        outputs=(f"{folder}/",),
        tools=_TRAINING_TOOLS,
        resumable=True,
        before_resume=_mend(experiment, system, seed),
        # Other schedules lead to their end: a longer training is another one from the start.
        grows="--max-update" if train.lr_scheduler in ("inverse_sqrt", "fixed") else None,
        device=True,
        processes=train.processes,
        steps=train.max_update,
        logging=("--tensorboard-logdir", board) if train.tensorboard else (),
        traces=(f"{board}/",),
    )  # fmt: skip


def _launcher(experiment: Experiment) -> tuple[str, ...]:
    """Return what comes before a fairseq-train that cannot start by itself."""
    train = experiment.recipe.train
    bf16 = ("--bf16",) if train.precision == "bf16" else ()
    if not bf16 and train.processes in (1, "all"):
        return ()
    count = "{devices}" if train.processes == "all" else str(train.processes)
    return (*VERB, "launch", "--processes", count, *bf16, "--")


def _mend(experiment: Experiment, system: System, seed: int) -> tuple[str, ...]:
    """Return the command that makes a killed training fit to go on."""
    train = experiment.recipe.train
    command: tuple[str, ...] = (*VERB, "mend", paths.checkpoints(system.slug, seed))
    command += ("--max-update", str(train.max_update))
    own = (*render_flags(train.flags), *system.flags)
    if train.patience and "--best-checkpoint-metric" not in own:  # then it is not of the loss
        command += ("--patience", str(train.patience))
    if train.patience or train.max_hours:
        command += ("--log", f"logs/{paths.stage_name('train', system.slug, seed)}.log")
    return command


def _average(experiment: Experiment, system: System, seed: int) -> Stage:
    source = paths.checkpoints(system.slug, seed)
    output = f"{paths.seed_folder(system.slug, seed)}/{paths.AVERAGED}"
    return Stage(
        name=paths.stage_name("average", system.slug, seed),
        argv=(
            *VERB, "average", source, "--last", str(experiment.recipe.train.average),
            "--out", output,
        ),
        inputs=(f"{source}/",),
        outputs=(output,),
        tools=("torch", _OURS),
    )  # fmt: skip


def _translate(experiment: Experiment, system: System, seed: int) -> Stage:
    settings = experiment.recipe.translate
    source, target = _languages(experiment)
    folder = paths.seed_folder(system.slug, seed)
    return Stage(
        name=paths.stage_name("translate", system.slug, seed),
        argv=(
            "fairseq-generate", paths.BINARY, "--user-dir", "{plugin}",
            "--task", "translation", "--source-lang", source, "--target-lang", target,
            "--path", f"{folder}/{paths.AVERAGED}", "--gen-subset", "test",
            "--results-path", folder,
            "--beam", str(settings.beam), "--lenpen", number(settings.length_penalty),
            "--max-len-a", number(settings.max_len_a), "--max-len-b", str(settings.max_len_b),
            "--max-tokens", str(settings.max_tokens),
            *positions(experiment),
            *READING,
            *render_flags(settings.flags),
        ),
        inputs=(*_binary(experiment, "test"), f"{folder}/{paths.AVERAGED}"),
        outputs=(f"{folder}/{paths.GENERATED}",),
        tools=_TRAINING_TOOLS,
        device=True,
        watch=f"{folder}/{paths.GENERATED}",
    )  # fmt: skip


def _hypotheses(experiment: Experiment, system: System, seed: int) -> Stage:
    folder = paths.seed_folder(system.slug, seed)
    source, target = _encoded(experiment, "test")
    model = f"{paths.SUBWORDS}/model.model"
    outputs = (f"{folder}/{paths.HYPOTHESES}", f"{folder}/{paths.HYPOTHESES_INFO}")
    return Stage(
        name=paths.stage_name("hypotheses", system.slug, seed),
        argv=(
            *VERB, "hypotheses", f"{folder}/{paths.GENERATED}", "--subwords", model,
            "--source", source, "--target", target,
            "--max-positions", str(experiment.recipe.model.max_positions),
            "--out", outputs[0], "--info", outputs[1],
        ),
        inputs=(f"{folder}/{paths.GENERATED}", model, source, target),
        outputs=outputs,
        tools=("sentencepiece", _OURS),
    )  # fmt: skip


def _scoring(experiment: Experiment) -> tuple[str, ...]:
    return (
        "--metrics", ",".join(experiment.recipe.score.metrics),
        "--tokenize", experiment.tokenizer,
    )  # fmt: skip


def _score(experiment: Experiment, system: System, seed: int) -> Stage:
    folder = paths.seed_folder(system.slug, seed)
    reference = _raw(experiment, "test", experiment.recipe.target)
    hypotheses = f"{folder}/{paths.HYPOTHESES}"
    (source, _), (train, _) = _encoded(experiment, "test"), _encoded(experiment, "train")
    outputs = tuple(f"{folder}/{n}" for n in (paths.SCORE, paths.STATISTICS, paths.LENGTHS))
    comet = experiment.recipe.score.comet
    raw = _raw(experiment, "test", experiment.recipe.source)
    extra = ("--comet", comet, "--raw-source", raw) if comet else ()
    return Stage(
        name=paths.stage_name("score", system.slug, seed),
        argv=(
            *VERB, "score", hypotheses, "--reference", reference, *_scoring(experiment),
            "--source", source, "--train", train,
            "--out", outputs[0], "--statistics", outputs[1], "--lengths", outputs[2], *extra,
        ),
        inputs=(hypotheses, reference, source, train, *extra[3:]),
        outputs=outputs,
        tools=("sacrebleu", "unbabel-comet") if comet else ("sacrebleu",),
        device=comet is not None,
    )  # fmt: skip


def _result(experiment: Experiment, system: System, seed: int) -> Stage:
    folder = paths.seed_folder(system.slug, seed)
    return Stage(
        name=paths.stage_name("result", system.slug, seed),
        argv=(*VERB, "result", "--recipe", paths.RECIPE, "--system", system.slug,
              "--seed", str(seed)),
        # The log is not an input: a killed and resumed training may end with the same model and
        # another log. The checkpoints, which come with it, stand for both.
        inputs=(
            paths.RECIPE,
            f"{paths.checkpoints(system.slug, seed)}/",
            f"{folder}/{paths.SCORE}",
            f"{folder}/{paths.STATISTICS}",
            f"{folder}/{paths.LENGTHS}",
            f"{folder}/{paths.HYPOTHESES_INFO}",
        ),
        outputs=(f"{folder}/{paths.RESULT}",),
        tools=(_OURS,),
    )  # fmt: skip


def _all_of(experiment: Experiment, name: str) -> tuple[str, ...]:
    return tuple(
        f"{paths.seed_folder(system.slug, seed)}/{name}"
        for system in experiment.systems
        for seed in experiment.recipe.seeds
    )


def _compare(experiment: Experiment) -> Stage:
    score = experiment.recipe.score
    reference = _raw(experiment, "test", experiment.recipe.target)
    others: tuple[str, ...] = ()
    for system in experiment.others:
        others += ("--system", f"systems/{system.slug}")
    return Stage(
        name="compare",
        argv=(
            *VERB, "compare", "--reference", reference, *_scoring(experiment),
            "--bootstrap", str(score.bootstrap), "--trials", str(score.trials),
            "--seeds", ",".join(map(str, experiment.recipe.seeds)),
            "--baseline", f"systems/{experiment.baseline.slug}", *others,
            "--out", paths.SIGNIFICANCE,
        ),
        inputs=(reference, *_all_of(experiment, paths.HYPOTHESES)),
        outputs=(paths.SIGNIFICANCE,),
        tools=("sacrebleu", _OURS),
    )  # fmt: skip


def _report(experiment: Experiment) -> Stage:
    inputs = [
        paths.RECIPE,
        *_all_of(experiment, paths.RESULT),
        *_all_of(experiment, paths.HYPOTHESES),
        *(_raw(experiment, "test", language) for language in _languages(experiment)),
    ]
    if experiment.others:
        inputs.append(paths.SIGNIFICANCE)
    return Stage(
        name="report",
        argv=(*VERB, "write-report", "--recipe", paths.RECIPE),
        inputs=tuple(inputs),
        outputs=tuple(
            f"{paths.REPORT}/{n}" for n in ("report.md", "report.json", "curves.png", "lengths.png")
        ),
        tools=(_OURS,),
    )
