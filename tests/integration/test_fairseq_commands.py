"""The ordinary fairseq commands, from a clone, with `--user-dir fairseq_fixed` alone."""

from __future__ import annotations

import json
import os
import re

import pytest
import torch

from fairseq_fixed.checkpoints import load_checkpoint
from tests.integration.conftest import (
    ALL_SENTENCES,
    ROOT,
    assert_same_hypotheses,
    generate,
    run_command,
    train,
)

pytestmark = pytest.mark.slow


class RunsACommand:
    def __reduce__(self):
        return os.system, ('touch "$FAIRSEQ_FIXED_TEST_MARK"',)


def losses(out: str) -> list[float]:
    return [
        float(json.loads(line[line.index("{") :])["loss"])
        for line in out.splitlines()
        if "train_inner" in line and "{" in line
    ]


def test_generate_gives_the_same_at_every_batch_size(data_bin, fixed):
    checkpoint = fixed / "checkpoint_last.pt"
    one, eight, many = (generate(data_bin, checkpoint, "--batch-size", b) for b in (1, 8, 64))
    assert len(one) == 80
    assert any(text for _, text in one.values())
    for other in (eight, many):
        assert_same_hypotheses(one, other)


def test_generate_gives_the_same_for_right_padded_sources(data_bin, fixed):
    left, right = (
        # fairseq's flag of a true default: naming it turns left padding off
        generate(data_bin, fixed / "checkpoint_last.pt", "--batch-size", 40, *flags)
        for flags in ([], ["--left-pad-source"])
    )
    assert len(left) == 80
    assert_same_hypotheses(left, right)


def test_a_vanilla_checkpoint_generates(data_bin, vanilla):
    assert len(generate(data_bin, vanilla / "checkpoint_last.pt", "--batch-size", 40)) == 80


def test_a_vanilla_model_with_other_heads_translates_and_trains_on(data_bin, vanilla, tmp_path):
    trained = vanilla / "checkpoint_last.pt"
    for name, heads in (("same", "8l"), ("start", "7f+1l")):
        run_command(
            *("fairseq-fixed", "convert", trained, "--out", tmp_path / f"{name}.pt"),
            *("--encoder-heads", heads),
        )
    found = generate(data_bin, tmp_path / "same.pt", "--batch-size", 40)
    assert len(found) == 80
    assert_same_hypotheses(found, generate(data_bin, trained, "--batch-size", 40))

    still = ("--lr", "1e-12", "--max-update", "1", "--encoder-heads", "7f+1l")
    start = ("--finetune-from-model", tmp_path / "start.pt", *still)
    train(data_bin, tmp_path / "on", "fixed_transformer", *start)
    old, new = (
        load_checkpoint(path)["model"] for path in (trained, tmp_path / "on/checkpoint_last.pt")
    )
    prefix = "encoder.layers.0.self_attn"
    torch.testing.assert_close(new[f"{prefix}.v_proj.weight"], old[f"{prefix}.v_proj.weight"])
    assert torch.equal(new[f"{prefix}.q_proj.weight"], old[f"{prefix}.q_proj.weight"][-8:])


def test_interactive(fixed, data_bin):
    out = run_command(
        "fairseq-interactive",
        *(data_bin, "--path", fixed / "checkpoint_last.pt", "--user-dir", "fairseq_fixed"),
        *("-s", "xx", "-t", "yy", "--cpu", "--beam", "2"),
        stdin="a b c\nd\n",
    ).out
    assert len(re.findall(r"^H-\d+\t", out, re.MULTILINE)) == 2


def test_interactive_with_a_sentence_longer_than_the_model(fixed, data_bin):
    out = run_command(
        "fairseq-interactive",
        *(data_bin, "--path", fixed / "checkpoint_last.pt", "--user-dir", "fairseq_fixed"),
        *("-s", "xx", "-t", "yy", "--cpu", "--beam", "1"),
        stdin="a " * 300 + "\n",
        fails=True,
    ).out
    assert "exceeds maximum" in out or "max_positions" in out or "skip" in out.lower()


def test_validate(fixed, data_bin):
    out = run_command(
        "fairseq-validate",
        *(data_bin, "--path", fixed / "checkpoint_last.pt", "--user-dir", "fairseq_fixed"),
        *("--max-tokens", "1000", "--cpu", "--log-format", "json"),
        *("--task", "translation", *ALL_SENTENCES),
    ).out
    assert re.search(r'"valid_loss": "?[\d.]+', out)


def test_training_resumes_with_the_losses_of_an_uninterrupted_run(data_bin, tmp_path):
    flags = ("--save-interval-updates", "10", "--keep-interval-updates", "1", "--seed", "7")
    whole = train(data_bin, tmp_path / "whole", "fixed_transformer", "--max-update", "30", *flags)
    train(data_bin, tmp_path / "parts", "fixed_transformer", "--max-update", "10", *flags)
    rest = train(data_bin, tmp_path / "parts", "fixed_transformer", "--max-update", "30", *flags)
    assert losses(rest.out) == losses(whole.out)[1:]
    a, b = (
        load_checkpoint(tmp_path / part / "checkpoint_last.pt")["model"]
        for part in ("whole", "parts")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_checkpoints_of_a_training_that_computes_bleu(data_bin, tmp_path):
    """Their validation's counts are numpy arrays."""
    flags = (
        *("--encoder-heads", "7f+1l", "--eval-bleu", "--eval-bleu-args", '{"beam": 1}'),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    )
    train(data_bin, tmp_path, "fixed_transformer", "--max-update", "5", *flags)
    assert len(generate(data_bin, tmp_path / "checkpoint_best.pt", "--max-len-b", "5")) == 80
    out = train(data_bin, tmp_path, "fixed_transformer", "--max-update", "7", *flags).out
    assert "Loaded checkpoint" in out and '"valid_bleu"' in out


def test_a_moving_average_of_a_model_that_ranks_tokens(data_bin, tmp_path):
    out = train(
        *(data_bin, tmp_path, "fixed_transformer", "--encoder-heads", "4xband:2:1+4xrare:2:3"),
        *("--max-update", "5", "--store-ema", "--ema-decay", "0.5"),
    ).out
    assert "done training" in out
    state = load_checkpoint(tmp_path / "checkpoint_last.pt")
    ema = state["extra_state"]["ema"]
    assert torch.equal(
        ema["encoder.vocabulary.rarity_version"],
        state["model"]["encoder.vocabulary.rarity_version"],
    )


def test_the_loss_falls(data_bin, tmp_path):
    out = train(
        data_bin, tmp_path, "fixed_transformer_tiny", "--encoder-heads", "8f", "--max-update", "40"
    ).out
    seen = losses(out)
    assert seen[-1] < seen[0] - 0.3


def test_the_mix_is_saved_with_the_model(fixed):
    state = load_checkpoint(fixed / "checkpoint_last.pt")
    assert state["cfg"]["model"].encoder_heads == "7f+1l"
    assert state["model"]["encoder.layers.0.self_attn.q_proj.weight"].shape == (8, 64)


def test_a_wrong_mix_stops_before_training(data_bin, tmp_path):
    out = train(
        *(data_bin, tmp_path, "fixed_transformer", "--encoder-heads", "7f+1lerned"), fails=True
    ).out
    assert "1lerned" in out.splitlines()[-1]


def test_a_checkpoint_of_another_architecture(data_bin, vanilla, tmp_path):
    out = train(
        *(data_bin, tmp_path, "fixed_transformer", "--max-update", "31"),
        *("--restore-file", vanilla / "checkpoint_last.pt"),
        fails=True,
    ).out
    assert "q_proj" in out
    assert "7f+1l" in out
    assert "architectures match" in out


def test_a_pickled_command_does_not_run(data_bin, fixed, tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("FAIRSEQ_FIXED_TEST_MARK", str(mark))
    state = load_checkpoint(fixed / "checkpoint_last.pt")
    torch.save({**state, "extra_state": RunsACommand()}, tmp_path / "evil.pt")
    out = run_command(
        "fairseq-generate",
        *(data_bin, "--path", tmp_path / "evil.pt", "--user-dir", "fairseq_fixed", "--cpu"),
        fails=True,
    ).out
    assert "posix.system" in out
    assert not mark.exists()


def test_layers_to_keep_at_translation(data_bin, fixed):
    kept = generate(
        *(data_bin, fixed / "checkpoint_last.pt", "--batch-size", 40),
        *("--model-overrides", "{'encoder_layers_to_keep': '1'}"),
    )
    assert len(kept) == 80


def test_hydra_train_from_another_directory(data_bin, tmp_path):
    out = run_command(
        "fairseq-hydra-train",
        *("--config-dir", ROOT / "configs" / "fairseq", "--config-name", "fixed_transformer"),
        f"task.data={data_bin}",
        f"common.user_dir={ROOT / 'fairseq_fixed'}",
        f"checkpoint.save_dir={tmp_path / 'save'}",
        f"hydra.run.dir={tmp_path / 'hydra'}",
        *("common.cpu=true", "optimization.max_update=12", "dataset.max_tokens=1000"),
        *("model.encoder_heads=0@8f/1@7f+1l", "model.encoder_layers=2"),
        *("model.encoder_embed_dim=64", "model.decoder_embed_dim=64"),
        cwd=tmp_path,
    ).out
    assert "FixedTransformerModel" in out
    state = load_checkpoint(tmp_path / "save" / "checkpoint_last.pt")
    assert "encoder.layers.0.self_attn.q_proj.weight" not in state["model"]  # 8f
    assert state["model"]["encoder.layers.1.self_attn.q_proj.weight"].shape == (8, 64)
    assert (
        len(generate(data_bin, tmp_path / "save" / "checkpoint_last.pt", "--batch-size", 40)) == 80
    )


def test_hydra_refuses_a_misspelt_option(data_bin, tmp_path):
    out = run_command(
        "fairseq-hydra-train",
        *("--config-dir", ROOT / "configs" / "fairseq", "--config-name", "fixed_transformer"),
        f"task.data={data_bin}",
        f"common.user_dir={ROOT / 'fairseq_fixed'}",
        f"hydra.run.dir={tmp_path / 'hydra'}",
        "common.cpu=true",
        "+model.encoder_head=8l",
        cwd=tmp_path,
        fails=True,
    ).out
    assert "Did you mean model.encoder_heads?" in out
