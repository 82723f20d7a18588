import pytest
import torch

from fairseq_fixed.bench.memory import describe_method, peak_extra_bytes

MEGABYTE = 1_000_000


def megabytes(count: float) -> torch.Tensor:
    return torch.empty(int(count * MEGABYTE), dtype=torch.uint8)


def test_the_peak_of_known_allocations_is_exact():
    def work():
        first = megabytes(4)
        second = megabytes(2)  # 6 together: the peak
        del first
        third = megabytes(3)  # 5
        return second, third

    assert peak_extra_bytes(work, "cpu") == 6 * MEGABYTE


def test_what_was_there_before_does_not_count():
    there = megabytes(50)
    assert peak_extra_bytes(lambda: there[:10].clone(), "cpu") < 10_000


def test_in_place_work_needs_nothing():
    there = torch.ones(1000)
    assert peak_extra_bytes(lambda: there.add_(1), "cpu") < 1000


def test_a_backward_pass_counts_what_it_keeps_and_its_gradients():
    x = torch.ones(1000, 1000, requires_grad=True)  # 4 MB

    def forward():
        with torch.no_grad():
            return x.exp()

    def both():
        y = x.exp()  # kept, 4 MB
        return torch.autograd.grad(y, x, y.detach())  # the gradient, 4 MB

    assert peak_extra_bytes(forward, "cpu") == pytest.approx(4e6, rel=0.01)
    assert peak_extra_bytes(both, "cpu") == pytest.approx(8e6, rel=0.01)


def test_a_matrix_of_all_pairs_shows():
    n = 700
    x = torch.ones(n, 8)
    dense = peak_extra_bytes(lambda: (x @ x.t()).softmax(-1) @ x, "cpu")
    assert dense >= 2 * 4 * n * n
    assert peak_extra_bytes(lambda: x.cumsum(0), "cpu") < 100 * n


def test_the_profiler_writes_nothing_to_stderr(capfd):
    peak_extra_bytes(lambda: megabytes(1), "cpu")
    assert capfd.readouterr().err == ""


def test_the_method_is_said():
    assert "allocator" in describe_method("cpu")
    assert "max_memory_allocated" in describe_method("cuda:1")
