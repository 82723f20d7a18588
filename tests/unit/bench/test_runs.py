"""Every benchmark, small, from settings to result."""

import argparse

import pytest
import torch
from bench_common import Silent, make_case
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from test_models import SMALL

from fairseq_fixed.bench import attention, generate, step
from fairseq_fixed.bench.attention import PEERS, AttentionSettings, run_attention
from fairseq_fixed.bench.contest import TimingOptions
from fairseq_fixed.bench.encoder import EncoderSettings, run_encoder
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.generate import (
    CheckpointSettings,
    GenerateSettings,
    run_checkpoints,
    run_generate,
)
from fairseq_fixed.bench.grid import Grid
from fairseq_fixed.bench.length_mix import LengthMix
from fairseq_fixed.bench.models import VANILLA, ModelSettings, build_all, parse_systems
from fairseq_fixed.bench.settings import Place
from fairseq_fixed.bench.step import ATTENTION, StepSettings, add_savings, make_sample, run_step

OPTIONS = TimingOptions(rounds=2, least=0.0)
MIX = LengthMix.count([(3, 4), (5, 2), (8, 8), (8, 6), (2, 2)] * 4, "a test")


def models(systems: str) -> ModelSettings:
    return ModelSettings(parse_systems(systems), "fixed_transformer_tiny", SMALL, 60)


def names(case) -> list[str]:
    return [row["contender"] for row in case["rows"]]


def test_attention():
    settings = AttentionSettings(
        mixes="7f+1l,8xband:2,4xrare:2:3+4xalibi",
        grid=Grid(lengths=(1, 12), mix=MIX, batches=2, tokens=(30,), paddings=(0.0,)),
        width=16,
        layers=2,
    )
    cases = list(run_attention(settings, Place(side="right"), OPTIONS, Silent()))
    assert len(cases) == settings.cases == 3 * 2 * 2
    for case in cases:
        found = [*names(case), *case["left_out"]]
        assert {"7f+1l", "fairseq", "sdpa", "torch", "lightconv", "dense 7f+1l"} <= set(found)
        assert "no dense" in case["left_out"]["dense 4xrare:2:3+4xalibi"]
        assert all(row["peak_extra_bytes"] > 0 for row in case["rows"])
    seen = {(c["length"], c["pass"], c["attention_dropout"]) for c in cases}
    assert len(seen) == len(cases)
    assert cases[-1]["rows"][0]["counted_limit"] > 1


def test_attention_runs_layers_that_share_one_preparation(monkeypatch):
    prepared = []
    original = attention.Mixed.prepare
    monkeypatch.setattr(
        attention.Mixed,
        "prepare",
        lambda self, tokens: prepared.append(1) or original(self, tokens),
    )
    settings = AttentionSettings(
        mixes="8f",
        grid=Grid(lengths=(6,), tokens=(30,)),
        width=16,
        layers=3,
        dropouts=(0.0,),
        peers=(),
        memory=False,
        passes=("forward",),
    )
    forwards = []
    monkeypatch.setattr(
        attention.Mixed,
        "forward",
        lambda self, x, layout: forwards.append(layout) or self.attention(x, layout),
    )
    case = next(run_attention(settings, Place(), OPTIONS, Silent()))
    # 1 to try, 2 to warm up, 1 a round; and nothing else: with no peer there is no check
    assert len(prepared) == 1 + 2 + case["rounds"]
    assert len(forwards) == 3 * len(prepared)
    assert len({id(layout) for layout in forwards[-3:]}) == 1


def test_attention_that_has_no_room_for_matrices_leaves_them_out():
    settings = AttentionSettings(
        mixes="8f,8l",
        grid=Grid(lengths=(50,), tokens=(50,)),
        width=16,
        layers=1,
        dropouts=(0.0, 0.1),
        passes=("forward+backward",),
        limit=100_000,
        memory=False,
    )
    without, with_dropout = run_attention(settings, Place(), OPTIONS, Silent())
    assert set(without["left_out"]) == {"torch", "lightconv", "dense 8f"}
    # with dropout torch's attention makes matrices, whoever calls it
    assert set(with_dropout["left_out"]) >= {"8l", "fairseq", "sdpa"}
    assert names(with_dropout) == ["8f"]
    assert "97.7 KiB may be used" in with_dropout["left_out"]["fairseq"]


def test_attention_that_differs_from_its_definition_is_not_timed(monkeypatch):
    original = attention.Mixed.forward
    monkeypatch.setattr(
        attention.Mixed, "forward", lambda self, x, layout: 1.01 * original(self, x, layout)
    )
    settings = AttentionSettings(
        mixes="7f+1l", grid=Grid(lengths=(9,), tokens=(30,)), width=16, layers=1
    )
    with pytest.raises(BenchError, match="its speed would mean nothing"):
        next(run_attention(settings, Place(), OPTIONS, Silent()))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_in_half_precision(dtype):
    settings = AttentionSettings(
        mixes="7f+1l,8xband:2",
        grid=Grid(lengths=(20,), tokens=(60,)),
        width=32,
        layers=1,
        passes=("forward+backward",),
    )
    for case in run_attention(settings, Place(dtype=dtype), OPTIONS, Silent()):
        assert "fairseq" in names(case)
        assert case["dtype"] == dtype


def test_settings_of_attention_are_checked():
    for arguments, message in (
        ({"peers": ("someone",)}, "peer 'someone'"),
        ({"passes": ("backward",)}, "pass 'backward'"),
        ({"dropouts": (1.0,)}, "attention dropout 1"),
        ({"layers": 0}, "0 layers"),
        ({"mixes": "7f"}, "7 heads, but the layer has 8; give --heads 7"),
        ({"mixes": ""}, "nothing given"),
        ({"width": 20}, "width 20"),
    ):
        with pytest.raises(BenchError, match=message):
            AttentionSettings(**arguments)
    with pytest.raises(BenchError, match="sees no CUDA device"):
        Place(device="cuda") if not torch.cuda.is_available() else pytest.skip("there is one")


def test_encoder():
    settings = EncoderSettings(
        models("7f+1l,8l"),
        Grid(lengths=(6,), mix=MIX, batches=2, tokens=(30,), paddings=(0.2,)),
    )
    cases = list(run_encoder(settings, Place(), OPTIONS, Silent()))
    # evaluation knows no dropout: it is measured once
    assert len(cases) == settings.cases == 2 * 3
    for case in cases:
        assert names(case) == ["7f+1l", "8l", "torch", "fairseq", "lightconv"]
        assert case["left_out"] == {}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("option", [{}, {"encoder_normalize_before": "true"}])
def test_torchs_encoder_equals_fairseqs(side, option):
    settings = EncoderSettings(
        ModelSettings(parse_systems("8l"), "fixed_transformer_tiny", {**SMALL, **option}, 60),
        Grid(lengths=(9,), tokens=(30,), paddings=(0.3,)),
        dropouts=(0.0,),
        memory=False,
        peers=("fairseq", "torch"),
    )
    # equality is checked before timing
    assert list(run_encoder(settings, Place(side=side), OPTIONS, Silent()))


def test_step():
    settings = StepSettings(MIX, models("8f,8l"), tokens=(20,), batches=2)
    first, second = run_step(settings, Place(), OPTIONS, Silent())
    assert names(first) == [VANILLA, "8f", "8l", ATTENTION]
    assert ATTENTION not in {ratio["peer"] for ratio in first["ratios"]}
    assert (first["attention_dropout"], second["attention_dropout"]) == (0.0, 0.1)
    saving = first["savings"]
    assert 0 < saving["8f"]["counted"] < saving["8f"]["counted_share"] < 1
    assert saving["8l"]["counted"] == 0
    assert "reached" not in saving["8l"]
    parameters = {row["contender"]: row.get("parameters") for row in first["rows"]}
    # queries and keys of two layers
    assert parameters[VANILLA] - parameters["8f"] == 2 * 2 * (32 * 32 + 32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_trains_as_fairseq_does(dtype):
    built = build_all(models("8f"), 1)["8f"]
    work = step._Step(built.train(), step.make_task(60), Place(dtype=dtype))
    work.optimizer.set_lr(0.003)
    run = work.on(make_sample([(5, 6), (3, 4)], Place(), 60, 1))
    torch.manual_seed(0)
    losses = [float(run()) for _ in range(40)]
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.grad is None for p in built.parameters())  # nothing is added up between steps


def test_a_sample_is_as_fairseqs_collater_makes_it():
    sample = make_sample([(5, 3), (2, 4)], Place(), 60, 1)
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    previous = sample["net_input"]["prev_output_tokens"]
    assert source[1, :3].eq(1).all()  # sources padded on the left
    assert target[0].tolist()[2:] == [2, 1]  # targets on the right
    assert previous[:, 0].eq(2).all()
    assert torch.equal(previous[0, 1:3], target[0, :2])
    assert previous[0, 3] == 1
    assert torch.equal(previous[1, 1:], target[1, :3])
    assert sample["ntokens"] == 7


def test_savings_are_of_time_and_of_multiply_adds():
    case = make_case(
        "real",
        {VANILLA: [100.0, 200.0], "8f": [90.0, 180.0], ATTENTION: [20.0, 40.0]},
        {"8f"},
    )
    add_savings(case, models("8f"), [(2, 8, 8)])
    saving = case["savings"]["8f"]
    # per token 12 d² + 7 n d against 6 d², d = 32, n = 8
    spared = 1 - 6 * 32 / (12 * 32 + 7 * 8)
    assert saving["measured_share"]["median"] == pytest.approx(0.2)
    assert saving["countable"]["median"] == pytest.approx(0.2 * spared, rel=1e-3)
    assert saving["measured"]["median"] == pytest.approx(0.1)
    assert saving["reached"]["median"] == pytest.approx(0.1 / (0.2 * spared), rel=1e-3)
    assert saving["counted"] == pytest.approx(saving["counted_share"] * spared, abs=2e-4)


def test_generate_writes_as_much_with_every_model():
    settings = GenerateSettings(
        MIX, models("7f+1l"), tokens=(20,), batches=2, target_lengths=(0, 3), beam=2
    )
    mean, three = run_generate(settings, Place(), OPTIONS, Silent())
    assert names(three) == [VANILLA, "7f+1l"]
    assert three["written"] == 3 * three["sentences"]
    assert mean["target_length"] == "mean"
    for row in three["rows"]:
        seconds = row["ms"]["median"] / 1000
        assert row["sentences_per_second"] == pytest.approx(three["sentences"] / seconds, rel=1e-3)


def test_a_model_that_writes_less_is_found():
    work = lambda: [[{"tokens": torch.tensor([5, 2])}]]  # noqa: E731
    generate._check_lengths("mine", [work], [1])
    with pytest.raises(BenchError, match=r"mine: asked for translations of 4 tokens, it wrote \[1"):
        generate._check_lengths("mine", [work], [4])


@pytest.fixture
def trained(tmp_path):
    """Two checkpoints as fairseq-train writes them, and the binarised data they belong to."""
    dictionary = Dictionary()
    for index in range(20):
        dictionary.add_symbol(f"w{index}")
    dictionary.finalize(padding_factor=1)
    data = tmp_path / "bin"
    data.mkdir()
    for language in ("de", "en"):
        dictionary.save(str(data / f"dict.{language}.txt"))
        text = tmp_path / language
        text.write_text("".join(f"w{i} w{i + 1} w{i + 2}\n" for i in range(15)))
        FileBinarizer.multiprocess_dataset(
            str(text),
            "mmap",
            VocabularyDatasetBinarizer(dictionary, append_eos=True),
            str(data / f"test.de-en.{language}"),
            vocab_size=len(dictionary),
            num_workers=1,
        )
    found = {}
    settings = ModelSettings(parse_systems("8f"), "fixed_transformer_tiny", SMALL, len(dictionary))
    for name, model in build_all(settings, 1).items():
        args = settings.arguments(settings.systems[0] if name != VANILLA else None)
        if name == VANILLA:
            args.arch = "transformer"
        options = {
            **vars(args),
            "task": "translation",
            "data": str(data),
            "source_lang": "de",
            "target_lang": "en",
            "left_pad_source": True,
            "left_pad_target": False,
            "criterion": "cross_entropy",
            "optimizer": "adam",
            "lr_scheduler": "fixed",
        }
        path = tmp_path / f"{name}.pt"
        state = {"args": argparse.Namespace(**options), "model": model.state_dict()}
        history = {
            "criterion_name": "CrossEntropyCriterion",
            "optimizer_name": "FairseqAdam",
            "lr_scheduler_state": {},
            "num_updates": 1,
        }
        state |= {"optimizer_history": [history], "extra_state": {"epoch": 1}}
        torch.save({**state, "last_optimizer_state": None}, path)
        found[name] = path
    return found, data


def test_checkpoints_translate_real_sentences(trained):
    paths, data = trained
    settings = CheckpointSettings(
        list(paths.values()), data=data, tokens=(12,), batches=2, beam=2, memory=False
    )
    (case,) = run_checkpoints(settings, Place(), OPTIONS, Silent())
    assert names(case) == ["A: fairseq", "B: 8f"]
    assert [row["ours"] for row in case["rows"]] == [False, True]
    assert case["sentences"] == 6  # two batches of three sentences of four tokens
    assert all(row["written"] > 0 for row in case["rows"])
    assert [(r["peer"], r["ours"]) for r in case["ratios"]] == [("A: fairseq", "B: 8f")]


def test_checkpoints_without_their_data_say_what_to_do(trained, tmp_path):
    paths, data = trained
    missing = CheckpointSettings([paths["8f"]], data=tmp_path / "nowhere")
    with pytest.raises(BenchError, match="say with --data"):
        next(run_checkpoints(missing, Place(), OPTIONS, Silent()))
    no_split = CheckpointSettings([paths["8f"]], data=data, split="valid")
    with pytest.raises(BenchError, match="no split 'valid'"):
        next(run_checkpoints(no_split, Place(), OPTIONS, Silent()))


def test_every_peer_is_known_by_its_name():
    settings = AttentionSettings(
        mixes="8xband:2", grid=Grid(lengths=(6,), tokens=(12,)), width=16, layers=1
    )
    case = next(run_attention(settings, Place(), OPTIONS, Silent()))
    found = {name.partition(" ")[0] for name in (*names(case), *case["left_out"])}
    assert found == {"8xband:2", *PEERS}
