"""Where the time of a self-attention sublayer goes, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from fairseq_fixed.bench.attention import attention_work
from fairseq_fixed.bench.batches import Batch, fixed_lengths, make_tokens
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.memory import quiet_profiler
from fairseq_fixed.bench.peers.mixed import VOCABULARY, Mixed
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.bench.settings import Place, parse_mixes

__all__ = ["GROUPS", "ProfileSettings", "Share", "profile_mix", "shares_of"]

#: groups of operations, and what their names hold; the first that fits takes an operation. The
#: projections are single products, the heads' products come in batches
GROUPS = {
    "fused attention": ("scaled_dot_product", "_flash_attention", "_efficient_attention"),
    # and of a learned head with dropout, where there is one sentence in a chunk
    "single products": ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul"),
    "batches of products": ("aten::bmm", "aten::baddbmm"),
    "copies and fills": (
        *("aten::copy_", "aten::clone", "aten::cat", "aten::fill_", "aten::zero_", "aten::stack"),
        *("aten::gather", "aten::index", "aten::masked_fill", "aten::constant_pad"),
    ),
    "random numbers": ("aten::bernoulli", "aten::random", "aten::native_dropout"),
}
REST = "all other operations"


@dataclass(frozen=True)
class ProfileSettings:
    """What to look at.

    Attributes:
        mix: of heads, such as `7f+1l`.
        length: tokens of the longest sentence.
        tokens: positions a batch.
        width: channels d.
        heads: of the mix.
        layers: sublayers, each with its own weights and input, on one batch.
        dropout: of attention weights.
        backward: forward and backward, or forward alone.
        padding: share of positions.
        repeats: how often the work is done under the profiler.

    Raises:
        BenchError: what cannot be measured.
    """

    mix: str
    length: int = 256
    tokens: int = 4096
    width: int = 512
    heads: int = 8
    layers: int = 6
    dropout: float = 0.0
    backward: bool = True
    padding: float = 0.1
    repeats: int = 5

    def __post_init__(self) -> None:
        """Check."""
        if not 0 <= self.dropout < 1:
            raise BenchError(f"attention dropout {self.dropout:g}: from 0 to below 1")
        for name in ("length", "layers", "repeats"):
            if getattr(self, name) < 1:
                raise BenchError(f"{name} {getattr(self, name)}: at least one")


@dataclass(frozen=True)
class Share:
    """A group's part of the time.

    Attributes:
        group: of `GROUPS`, or `REST`.
        share: of the time of all operations, from 0 to 1.
        milliseconds: of one repeat.
        longest: the operations that take most of it, the longest first.
    """

    group: str
    share: float
    milliseconds: float
    longest: tuple[str, ...]


def profile_mix(settings: ProfileSettings, place: Place, seed: int = 1) -> list[Share]:
    """Run a mix under the profiler; return the groups' shares, the largest first.

    On the CPU it is the time of the thread that calls the operations, whose helpers work at the
    same time; on a GPU the time of its kernels.
    """
    specs = parse_mixes(settings.mix, settings.heads, settings.width)
    if len(specs) != 1:
        raise BenchError(f"one mix at a time, not {', '.join(specs)}")
    (heads,) = specs.values()
    layers = nn.ModuleList(
        Mixed(heads, Projections.draw(settings.width, i), settings.width, settings.dropout)
        for i in range(settings.layers)
    )
    layers.to(place.device, place.torch_dtype)
    layers.train(settings.backward or settings.dropout > 0)
    lengths = fixed_lengths(settings.length, settings.tokens, settings.padding)
    tokens = make_tokens(lengths, place.side, VOCABULARY, seed).to(place.device)
    batch = Batch(tokens, settings.layers, settings.width, place.torch_dtype, seed)
    work = attention_work(layers, batch, backward=settings.backward)
    times = _operations(work, settings.repeats, place)
    return shares_of(((name, t / settings.repeats) for name, t in times))


def _operations(
    work: Callable[[], object], repeats: int, place: Place
) -> Iterable[tuple[str, float]]:
    """Yield operations with their own time, without those they call, in milliseconds."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if place.device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(3):
        work()
    with quiet_profiler(), torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            work()
        if place.device != "cpu":
            torch.cuda.synchronize()
    for event in profile.key_averages():
        # on a GPU, too, operations: each has the time of the kernels that it started, which are
        # events of their own beside it
        if event.device_type == torch.autograd.DeviceType.CPU:
            gpu = place.device != "cpu"
            own = event.self_device_time_total if gpu else event.self_cpu_time_total
            yield event.key, own / 1000


def shares_of(times: Iterable[tuple[str, float]]) -> list[Share]:
    """Group operations.

    Args:
        times: of operations, their names and milliseconds.

    Raises:
        BenchError: no operation took any time.
    """
    groups: dict[str, dict[str, float]] = {}
    for name, milliseconds in times:
        group = next((g for g, parts in GROUPS.items() if any(p in name for p in parts)), REST)
        operations = groups.setdefault(group, {})
        operations[name] = operations.get(name, 0.0) + milliseconds
    whole = sum(sum(operations.values()) for operations in groups.values())
    if whole <= 0:
        raise BenchError("the profiler saw no operation")
    shares = []
    for group, operations in groups.items():
        longest = sorted(operations, key=operations.__getitem__, reverse=True)
        total = sum(operations.values())
        shares.append(Share(group, total / whole, total, tuple(longest[:3])))
    return sorted(shares, key=lambda share: share.share, reverse=True)
