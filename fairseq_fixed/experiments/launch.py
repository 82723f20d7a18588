"""Starts fairseq-train where its own command cannot: several processes on a CPU, or bf16.

With GPUs fairseq-train starts a process for each by itself. Without, it starts none; and what
torchrun tells it makes it divide by the number of GPUs. So each rank gets a command of its own, and
they meet through gloo. `--bf16` on the command line means a TPU to fairseq (Hydra's
`common.bf16=true` does not): here it does not, either.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from fairseq_fixed.experiments import commands
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.process import dying_with_parent

__all__ = ["launch", "rank_options"]

_PROGRAM = "fairseq-train"
_PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL


def launch(command: Sequence[str], *, processes: int = 1, bf16: bool = False) -> int:
    """Run a training to its end.

    Args:
        command: `fairseq-train` and its options.
        processes: one a GPU; without GPUs, on the CPU.
        bf16: train in bfloat16.

    Returns:
        The exit status: that of the first process that failed, or 0.

    Raises:
        ExperimentError: another command, or fewer GPUs than processes.
    """
    import torch

    program, *words = command
    if program != _PROGRAM:
        raise ExperimentError(f"launch starts {_PROGRAM}, not {program}")
    if processes < 1:
        raise ExperimentError(f"processes must be at least 1, is {processes}")
    gpus = torch.cuda.device_count()
    if gpus == 0 and processes > 1:
        return _run_ranks(words, processes, bf16)
    if processes > max(1, gpus):
        raise ExperimentError(f"{processes} processes need as many GPUs; {gpus} are visible")
    if gpus:
        words += ["--distributed-world-size", str(processes)]
    _train(words, bf16)
    return 0


def rank_options(rank: int, processes: int, port: int) -> tuple[str, ...]:
    """Return the options that make a fairseq-train one of several on this machine's CPU."""
    return (
        "--cpu", "--distributed-world-size", str(processes), "--distributed-rank", str(rank),
        "--distributed-no-spawn", "--device-id", "0",
        "--distributed-init-method", f"tcp://127.0.0.1:{port}",
        "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp",
    )  # fmt: skip


def _run_ranks(words: Sequence[str], processes: int, bf16: bool) -> int:
    port = _free_port()
    env = dict(os.environ)
    if sys.platform.startswith("linux"):
        # loopback: else gloo looks up the machine's own name, which not every network knows
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start = ("python", "-m", "fairseq_fixed.cli", "launch", "--bf16", "--", _PROGRAM)
    program = commands.expand(start if bf16 else (_PROGRAM,))
    ranks = [
        subprocess.Popen(
            [*program, *words, *rank_options(rank, processes, port)],
            env=env,
            preexec_fn=dying_with_parent(),
        )
        for rank in range(processes)
    ]
    try:
        while True:
            states = [rank.poll() for rank in ranks]
            failed = next((status for status in states if status), None)
            if failed is not None:
                return failed if failed > 0 else 128 - failed
            if all(status == 0 for status in states):
                return 0
            time.sleep(0.1)
    finally:
        _end(ranks)


def _end(ranks: Sequence[subprocess.Popen]) -> None:
    living = [rank for rank in ranks if rank.poll() is None]
    for rank in living:
        rank.terminate()
    for rank in living:
        try:
            rank.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _train(words: Sequence[str], bf16: bool) -> None:
    """Do what fairseq-train's own `cli_main` does, in its own kind of log."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed
    from fairseq_cli.train import main

    # fairseq leaves a --user-dir alone that has been imported, as this package has.
    import fairseq_fixed.models  # noqa: F401

    # fairseq sets this up where nobody has before it; the learning curve is read from that log
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
        stream=sys.stdout,
        force=True,
    )
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [*words, *(["--bf16"] if bf16 else [])])
    if bf16:
        args.tpu = False
    distributed.call_main(convert_namespace_to_omegaconf(args), main)
