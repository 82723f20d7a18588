import argparse
import os

import pytest
import torch

from fairseq_fixed.checkpoints import (
    CheckpointError,
    average_checkpoints,
    load_checkpoint,
    save_checkpoint,
)


def checkpoint(path, seed=0, **extra):
    generator = torch.Generator().manual_seed(seed)
    model = {
        "w": torch.randn(3, 4, generator=generator),
        "h": torch.randn(5, generator=generator).half(),
        "version": torch.tensor([3]),
    }
    args = argparse.Namespace(arch="transformer", encoder_heads="7f+1l")
    save_checkpoint({"model": model, "cfg": {"model": args}, **extra}, path)
    return model


class RunsACommand:
    """Unpickling this would create the file named by the environment."""

    def __reduce__(self):
        return os.system, ('touch "$FAIRSEQ_FIXED_TEST_MARK"',)


class Harmless:
    pass


def test_a_pickled_command_is_refused_and_does_not_run(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("FAIRSEQ_FIXED_TEST_MARK", str(mark))
    path = tmp_path / "evil.pt"
    checkpoint(path, extra_state=RunsACommand())
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        load_checkpoint(path)
    assert not mark.exists()
    # the test can fail: an unsafe load does run it
    torch.load(path, weights_only=False)
    assert mark.exists()


def test_another_class_is_named(tmp_path):
    path = tmp_path / "c.pt"
    checkpoint(path, extra_state=Harmless())
    with pytest.raises(CheckpointError, match="Harmless"):
        load_checkpoint(path)


def test_namespace_loads(tmp_path):
    path = tmp_path / "c.pt"
    checkpoint(path)
    assert load_checkpoint(path)["cfg"]["model"].encoder_heads == "7f+1l"
    assert torch.load(path)["cfg"]["model"].arch == "transformer"  # the plugin's own allowance


def test_unreadable_files(tmp_path):
    path = tmp_path / "c.pt"
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_checkpoint(path)
    checkpoint(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a readable checkpoint"):
            load_checkpoint(path)
    torch.save({"weights": 1}, path)
    with pytest.raises(CheckpointError, match="no 'model'"):
        load_checkpoint(path)


def test_average(tmp_path):
    paths = [tmp_path / f"{i}.pt" for i in range(3)]
    models = [checkpoint(path, seed) for seed, path in enumerate(paths)]
    average_checkpoints(paths, tmp_path / "average.pt")
    averaged = load_checkpoint(tmp_path / "average.pt")
    for name in ("w", "h"):
        expected = sum(model[name].double() for model in models) / 3
        torch.testing.assert_close(averaged["model"][name], expected.to(models[0][name].dtype))
        assert averaged["model"][name].dtype == models[0][name].dtype
    assert averaged["model"]["version"].item() == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_average_of_one_is_itself(tmp_path):
    model = checkpoint(tmp_path / "0.pt")
    average_checkpoints([tmp_path / "0.pt"], tmp_path / "average.pt")
    averaged = load_checkpoint(tmp_path / "average.pt")["model"]
    assert all(torch.equal(averaged[name], model[name]) for name in model)


def test_average_of_different_models_names_the_parameter(tmp_path):
    checkpoint(tmp_path / "0.pt")
    for other, message in (
        (
            {"w": torch.zeros(2, 4), "h": torch.zeros(5), "version": torch.zeros(1)},
            r"w is \(3, 4\)",
        ),
        ({"w": torch.zeros(3, 4)}, "has no h"),
    ):
        save_checkpoint({"model": other}, tmp_path / "1.pt")
        with pytest.raises(CheckpointError, match=message):
            average_checkpoints([tmp_path / "0.pt", tmp_path / "1.pt"], tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="no checkpoints"):
        average_checkpoints([], tmp_path / "a.pt")
