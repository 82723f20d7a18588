"""`fairseq-fixed bench`: thin verbs. Heavy modules are imported inside them."""

from __future__ import annotations

import dataclasses
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.length_mix import LengthMix
    from fairseq_fixed.bench.screen import Screen

__all__ = ["app"]

app = typer.Typer(
    name="bench",
    help="Measure speed and memory beside every peer, interleaved in one process.",
    no_args_is_help=True,
)

_WHERE = "Where"
_HOW_LONG = "How long"
_OUTPUT = "Output"

_Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1.", rich_help_panel=_WHERE)]
_Dtype = Annotated[
    str, typer.Option(help="float32, bfloat16, float16; commas.", rich_help_panel=_WHERE)
]
_Threads = Annotated[
    int | None, typer.Option(min=1, help="Of torch on the CPU; its own.", rich_help_panel=_WHERE)
]
_Rounds = Annotated[int, typer.Option(min=1, help="Of a case, at most.", rich_help_panel=_HOW_LONG)]
_Seconds = Annotated[
    float,
    typer.Option(
        help="No round of a case begins later, but for the first three.", rich_help_panel=_HOW_LONG
    ),
]
_Seed = Annotated[
    int, typer.Option(help="Of tokens, weights and the order.", rich_help_panel=_HOW_LONG)
]
_Json = Annotated[
    Path | None, typer.Option("--json", help="File for all figures.", rich_help_panel=_OUTPUT)
]
_Text = Annotated[
    list[Path] | None,
    typer.Option(
        help="Text whose length mix to take, tokens between spaces: source, then target. "
        "Without: the embedded corpus's."
    ),
]
_Data = Annotated[
    Path | None, typer.Option(help="Binarised data (fairseq-preprocess) whose mix to take.")
]


@app.command()
def attention(
    mixes: Annotated[
        str, typer.Option(help="Heads of ours, commas between mixes.")
    ] = "7f+1l,8f,8xband:8,8l",
    lengths: Annotated[
        str, typer.Option(help="Sentence lengths; real: a corpus's mix.")
    ] = "real,25,256,1024,4096",
    text: _Text = None,
    data: _Data = None,
    batches: Annotated[int, typer.Option(help="Batches of the mix of lengths.")] = 8,
    tokens: Annotated[
        str, typer.Option(help="Positions a batch; commas. max(1, tokens // length) sentences.")
    ] = "4096",
    width: Annotated[int, typer.Option(help="Channels.")] = 512,
    heads: Annotated[int, typer.Option(help="Heads of every mix.")] = 8,
    layers: Annotated[
        int, typer.Option(help="Sublayers that share a batch's layout or mask, as an encoder's.")
    ] = 6,
    attention_dropout: Annotated[str, typer.Option(help="Commas.")] = "0,0.1",
    padding: Annotated[
        str, typer.Option(help="Share of positions, for fixed lengths; commas.")
    ] = "0.1",
    side: Annotated[str, typer.Option(help="Of the padding: left, right.")] = "left",
    passes: Annotated[
        str, typer.Option(help="forward, forward+backward; commas.")
    ] = "forward,forward+backward",
    peers: Annotated[
        str, typer.Option(help="Whom to compare with; commas.")
    ] = "fairseq,sdpa,torch,lightconv,dense,local-attention",
    memory: Annotated[bool, typer.Option(help="Measure peak memory of one sublayer.")] = True,
    memory_limit: Annotated[
        float | None,
        typer.Option(help="GiB that a contender's n×n matrices may need; most of what is free."),
    ] = None,
    device: _Device = "cpu",
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    rounds: _Rounds = 15,
    seconds: _Seconds = 60.0,
    seed: _Seed = 1,
    json: _Json = None,
) -> None:
    """The self-attention sublayer: projections, heads, output projection."""
    from fairseq_fixed.bench.attention import AttentionSettings, run_attention
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.settings import Place, parse_numbers

    fixed = [part.strip() for part in lengths.split(",") if part.strip()]
    mix = _length_mix(text, data) if "real" in fixed else None
    numbers = ",".join(part for part in fixed if part != "real")
    settings = AttentionSettings(
        mixes=mixes,
        lengths=parse_numbers("lengths", numbers, int) if numbers or mix is None else (),
        mix=mix,
        batches=batches,
        tokens=parse_numbers("tokens", tokens, int),
        width=width,
        heads=heads,
        layers=layers,
        dropouts=parse_numbers("attention-dropout", attention_dropout, float),
        paddings=parse_numbers("padding", padding, float),
        passes=_words(passes),
        peers=_words(peers),
        memory=memory,
        limit=None if memory_limit is None else int(memory_limit * 2**30),
    )
    places = [Place(device, name, side) for name in _words(dtype)]
    _set_threads(threads)
    options = TimingOptions(rounds=rounds, seconds=seconds, seed=seed)

    def cases(screen: Screen) -> Iterator[dict[str, Any]]:
        screen.total = settings.cases * len(places)
        for place in places:
            yield from run_attention(settings, place, options, screen)

    asked = {
        name: value
        for name, value in vars(settings).items()
        if name not in ("specs", "mix", "limit")
    }
    asked["mix"] = mix.about if mix is not None else None
    _run("attention", cases, asked, options, device, json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _length_mix(text: list[Path] | None, data: Path | None) -> LengthMix:
    from fairseq_fixed.bench.length_mix import LengthMix

    if text and data:
        raise typer.BadParameter("give --text or --data, not both")
    if data:
        return LengthMix.of_data(data)
    return LengthMix.of_text(*text) if text else LengthMix.embedded()


def _command() -> str:
    """Return this command without the names of corpora and folders."""
    import sys

    words, hide = [], False
    for word in sys.argv[1:]:
        name, equals, _ = word.partition("=")
        private = name in ("--text", "--data", "--checkpoint", "--json", "--figure")
        if hide:
            words.append("…")
        elif private and equals:
            words.append(f"{name}=…")
        else:
            words.append(word)
        hide = private and not equals and not hide
    return "fairseq-fixed " + shlex.join(words).replace("'…'", "…")


def _run(
    bench: str,
    cases: Any,
    settings: dict[str, Any],
    options: TimingOptions,
    device: str,
    json: Path | None,
) -> None:
    """Measure, print, and write after every case what there is."""
    from fairseq_fixed.bench.record import new_record, write_record
    from fairseq_fixed.bench.screen import Screen

    record = new_record(
        bench, {**settings, **dataclasses.asdict(options)}, command=_command(), device=device
    )
    screen = Screen()
    try:
        for case in cases(screen):
            record["cases"].append(case)
            if json is not None:
                write_record(record, json)
    except KeyboardInterrupt:
        screen.clear()
        kept = f", kept in {json}" if json is not None and record["cases"] else ""
        typer.echo(f"Stopped. {len(record['cases'])} cases were measured{kept}.", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        screen.clear()
    if json is not None:
        typer.echo(f"{json}")
