import shlex
import subprocess

import pytest

from fairseq_fixed.experiments import commands, recipe, stages
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.plan import Plan, Stage


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
        train={"flags": {"fp16": True}, "patience": 3, "max_hours": 0.5, "tensorboard": True},
        translate={"flags": {"sampling": True}},
        model={"flags": {"encoder_normalize_before": True}},
    )
    train = plan["train.7f-1l.seed1"]
    assert {"--fp16", "--encoder-normalize-before"} <= set(train.argv)
    assert option(train, "--patience") == "3"
    assert option(train, "--stop-time-hours") == "0.5"
    assert option(train, "--tensorboard-logdir") == "systems/7f-1l/seed1/tensorboard"
    assert "--sampling" in plan["translate.7f-1l.seed1"].argv


def test_no_argument_depends_on_where_the_run_lies():
    _, plan = compiled()
    assert not [word for stage in plan for word in stage.argv if word.startswith("/")]


def test_script_is_bash_and_holds_every_command():
    experiment, plan = compiled(systems=["vanilla", {"heads": "8l", "name": "it's"}])
    text = commands.render_script(
        plan, title="t", threads=3, files={"recipe.yaml": recipe.dump(experiment)}
    )
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "export OMP_NUM_THREADS=3" in text
    joined = text.replace("\\\n", " ")
    for stage in plan:
        line = next(x for x in joined.splitlines() if f"tee {stage.log}" in x)
        words = shlex.split(line.replace('"$PLUGIN"', "{plugin}").replace("$DATA", "{data}"))
        assert tuple(words[: words.index("2>&1")]) == stage.argv


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
