"""`fairseq-fixed bench`: thin verbs. Heavy modules are imported inside them."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairseq_fixed.quiet import quieten_fairseq

if TYPE_CHECKING:
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.grid import Grid
    from fairseq_fixed.bench.length_mix import LengthMix
    from fairseq_fixed.bench.models import ModelSettings
    from fairseq_fixed.bench.screen import Screen

__all__ = ["app"]

app = typer.Typer(
    name="bench",
    help="Measure speed and memory beside every peer, interleaved in one process.",
    no_args_is_help=True,
)


@app.callback()
def _setup(context: typer.Context) -> None:
    quieten_fairseq(context)


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
_Clock = Annotated[
    str,
    typer.Option(
        help="wall; or cpu, the processor's time, on busy machines with one thread.",
        rich_help_panel=_HOW_LONG,
    ),
]
_Json = Annotated[
    Path | None, typer.Option("--json", help="File for all figures.", rich_help_panel=_OUTPUT)
]
_Figure = Annotated[
    Path | None,
    typer.Option(help="PNG of cost against length.", rich_help_panel=_OUTPUT),
]
_FitFrom = Annotated[
    float,
    typer.Option(help="Exponents are fitted from this length on.", rich_help_panel=_OUTPUT),
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
_Batches = Annotated[int, typer.Option(help="Batches of the mix of lengths.")]
_Systems = Annotated[
    str,
    typer.Option(
        help="Heads of ours, commas between mixes; options of one behind spaces: "
        "'7f+1l,7f+1l tisa_kernels=5'."
    ),
]
_Arch = Annotated[str, typer.Option(help="Of ours; all models have its sizes.")]
_Option = Annotated[
    list[str] | None,
    typer.Option(help="Of all models: encoder_layers=3, dropout=0.3, share_all_embeddings=false."),
]
_Vocabulary = Annotated[int, typer.Option(help="Symbols of both languages.")]
_Tokens = Annotated[str, typer.Option(help="Positions a batch, as --max-tokens; commas.")]
_Dropout = Annotated[str, typer.Option(help="Commas.")]
_Side = Annotated[str, typer.Option(help="Of sources' padding: left, right; commas.")]
_Limit = Annotated[
    float | None,
    typer.Option(help="GiB that a contender's n×n matrices may need; most of what is free."),
]
_ARCHITECTURE = "fixed_transformer_iwslt_de_en"


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
    batches: _Batches = 4,
    tokens: Annotated[
        str, typer.Option(help="Positions a batch; commas. max(1, tokens // length) sentences.")
    ] = "2048",
    width: Annotated[int, typer.Option(help="Channels.")] = 512,
    heads: Annotated[int, typer.Option(help="Heads of every mix.")] = 8,
    layers: Annotated[
        int, typer.Option(help="Sublayers that share a batch's layout or mask, as an encoder's.")
    ] = 6,
    attention_dropout: _Dropout = "0,0.1",
    padding: Annotated[
        str, typer.Option(help="Share of positions, for fixed lengths; commas.")
    ] = "0.1",
    side: _Side = "left",
    passes: Annotated[
        str, typer.Option(help="forward, forward+backward; commas.")
    ] = "forward,forward+backward",
    peers: Annotated[
        str, typer.Option(help="Whom to compare with; commas.")
    ] = "fairseq,sdpa,torch,lightconv,dense,local-attention",
    memory: Annotated[bool, typer.Option(help="Measure peak memory of one sublayer.")] = True,
    memory_limit: _Limit = None,
    device: _Device = "cpu",
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    rounds: _Rounds = 15,
    seconds: _Seconds = 60.0,
    seed: _Seed = 1,
    clock: _Clock = "wall",
    json: _Json = None,
    figure: _Figure = None,
    fit_from: _FitFrom = 512,
) -> None:
    """The self-attention sublayer: projections, heads, output projection."""
    from fairseq_fixed.bench.attention import AttentionSettings, run_attention
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.settings import Place, parse_numbers

    settings = AttentionSettings(
        mixes=mixes,
        grid=_grid(lengths, text, data, batches, tokens, padding),
        width=width,
        heads=heads,
        layers=layers,
        dropouts=parse_numbers("attention-dropout", attention_dropout, float),
        passes=_words(passes),
        peers=_words(peers),
        memory=memory,
        limit=None if memory_limit is None else int(memory_limit * 2**30),
    )
    places = [Place(device, name, s) for name in _words(dtype) for s in _words(side)]
    _set_threads(threads)
    options = TimingOptions(rounds=rounds, seconds=seconds, seed=seed, clock=clock)

    def cases(screen: Screen) -> Iterator[dict[str, Any]]:
        screen.total = settings.cases * len(places)
        for place in places:
            yield from run_attention(settings, place, options, screen)

    _check_figure(figure, settings.grid)
    _run("attention", cases, settings, options, device, json, figure, fit_from)


@app.command()
def encoder(
    mixes: _Systems = "7f+1l,8f,8xband:8,8l",
    arch: _Arch = _ARCHITECTURE,
    option: _Option = None,
    vocabulary: _Vocabulary = 10_000,
    lengths: Annotated[
        str, typer.Option(help="Sentence lengths; real: a corpus's mix.")
    ] = "real,25,256,1024",
    text: _Text = None,
    data: _Data = None,
    batches: _Batches = 4,
    tokens: _Tokens = "2048",
    attention_dropout: _Dropout = "0,0.1",
    padding: Annotated[
        str, typer.Option(help="Share of positions, for fixed lengths; commas.")
    ] = "0.1",
    side: _Side = "left",
    passes: Annotated[
        str, typer.Option(help="forward, forward+backward; commas.")
    ] = "forward,forward+backward",
    peers: Annotated[
        str, typer.Option(help="Whom to compare with; commas.")
    ] = "fairseq,torch,lightconv",
    memory: Annotated[bool, typer.Option(help="Measure peak memory.")] = True,
    memory_limit: _Limit = None,
    device: _Device = "cpu",
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    rounds: _Rounds = 15,
    seconds: _Seconds = 60.0,
    seed: _Seed = 1,
    clock: _Clock = "wall",
    json: _Json = None,
    figure: _Figure = None,
    fit_from: _FitFrom = 512,
) -> None:
    """Whole encoders: embedding, layers, norms."""
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.encoder import EncoderSettings, run_encoder
    from fairseq_fixed.bench.settings import Place, parse_numbers

    settings = EncoderSettings(
        models=_models(mixes, arch, option, vocabulary),
        grid=_grid(lengths, text, data, batches, tokens, padding),
        dropouts=parse_numbers("attention-dropout", attention_dropout, float),
        passes=_words(passes),
        peers=_words(peers),
        memory=memory,
        limit=None if memory_limit is None else int(memory_limit * 2**30),
    )
    places = [Place(device, name, s) for name in _words(dtype) for s in _words(side)]
    _set_threads(threads)
    options = TimingOptions(rounds=rounds, seconds=seconds, seed=seed, clock=clock)

    def cases(screen: Screen) -> Iterator[dict[str, Any]]:
        screen.total = settings.cases * len(places)
        for place in places:
            yield from run_encoder(settings, place, options, screen)

    _check_figure(figure, settings.grid)
    _run("encoder", cases, settings, options, device, json, figure, fit_from)


@app.command()
def step(
    mixes: _Systems = "7f+1l,8f,8xband:8",
    arch: _Arch = _ARCHITECTURE,
    option: _Option = None,
    vocabulary: _Vocabulary = 10_000,
    text: _Text = None,
    data: _Data = None,
    batches: _Batches = 4,
    tokens: _Tokens = "2048",
    attention_dropout: _Dropout = "0,0.1",
    side: _Side = "left",
    device: _Device = "cpu",
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    rounds: _Rounds = 15,
    seconds: _Seconds = 240.0,
    seed: _Seed = 1,
    clock: _Clock = "wall",
    json: _Json = None,
) -> None:
    """A training step: forward, loss, backward, Adam; and what of it attention can save."""
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.settings import Place, parse_numbers
    from fairseq_fixed.bench.step import StepSettings, run_step

    settings = StepSettings(
        mix=_length_mix(text, data),
        models=_models(mixes, arch, option, vocabulary),
        tokens=parse_numbers("tokens", tokens, int),
        batches=batches,
        dropouts=parse_numbers("attention-dropout", attention_dropout, float),
    )
    places = [Place(device, name, s) for name in _words(dtype) for s in _words(side)]
    _set_threads(threads)
    options = TimingOptions(rounds=rounds, seconds=seconds, seed=seed, clock=clock)

    def cases(screen: Screen) -> Iterator[dict[str, Any]]:
        screen.total = settings.cases * len(places)
        for place in places:
            yield from run_step(settings, place, options, screen)

    _run("step", cases, settings, options, device, json)


@app.command()
def generate(
    mixes: _Systems = "7f+1l,8f",
    arch: _Arch = _ARCHITECTURE,
    option: _Option = None,
    vocabulary: _Vocabulary = 10_000,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="Trained models instead of random ones: give it for each."),
    ] = None,
    split: Annotated[str, typer.Option(help="Whose sentences checkpoints translate.")] = "test",
    text: _Text = None,
    data: _Data = None,
    batches: _Batches = 2,
    tokens: _Tokens = "1024",
    target_lengths: Annotated[
        str,
        typer.Option(
            help="Tokens that random models write, all of them; real: the batch's mean; commas."
        ),
    ] = "real",
    beam: Annotated[int, typer.Option(help="Width of the beam.")] = 5,
    side: _Side = "left",
    memory: Annotated[bool, typer.Option(help="Measure peak memory.")] = True,
    device: _Device = "cpu",
    dtype: _Dtype = "float32",
    threads: _Threads = None,
    rounds: _Rounds = 7,
    seconds: _Seconds = 240.0,
    seed: _Seed = 1,
    clock: _Clock = "wall",
    json: _Json = None,
) -> None:
    """Translating with fairseq's beam search: sentences a second."""
    from fairseq_fixed.bench.contest import TimingOptions
    from fairseq_fixed.bench.generate import (
        CheckpointSettings,
        GenerateSettings,
        run_checkpoints,
        run_generate,
    )
    from fairseq_fixed.bench.settings import Place, parse_numbers

    places = [Place(device, name, s) for name in _words(dtype) for s in _words(side)]
    _set_threads(threads)
    options = TimingOptions(rounds=rounds, seconds=seconds, seed=seed, clock=clock)
    settings: GenerateSettings | CheckpointSettings
    if checkpoint:
        settings = CheckpointSettings(
            checkpoints=checkpoint,
            data=data,
            split=split,
            tokens=parse_numbers("tokens", tokens, int),
            batches=batches,
            beam=beam,
            memory=memory,
        )
    else:
        numbers = ",".join("0" if word == "real" else word for word in _words(target_lengths))
        settings = GenerateSettings(
            mix=_length_mix(text, data),
            models=_models(mixes, arch, option, vocabulary),
            tokens=parse_numbers("tokens", tokens, int),
            batches=batches,
            target_lengths=parse_numbers("target-lengths", numbers, int),
            beam=beam,
            memory=memory,
        )

    def cases(screen: Screen) -> Iterator[dict[str, Any]]:
        screen.total = settings.cases * len(places)
        for place in places:
            if isinstance(settings, CheckpointSettings):
                yield from run_checkpoints(settings, place, options, screen)
            else:
                yield from run_generate(settings, place, options, screen)

    _run("generate", cases, settings, options, device, json)


@app.command()
def profile(
    mix: Annotated[str, typer.Argument(help="Heads, such as 7f+1l.")],
    length: Annotated[int, typer.Option(min=1, help="Tokens of the longest sentence.")] = 256,
    tokens: Annotated[int, typer.Option(min=1, help="Positions a batch.")] = 4096,
    width: Annotated[int, typer.Option(help="Channels.")] = 512,
    heads: Annotated[int, typer.Option(help="Heads of the mix.")] = 8,
    layers: Annotated[int, typer.Option(min=1, help="Sublayers on one batch.")] = 6,
    attention_dropout: Annotated[float, typer.Option(help="Of learned weights.")] = 0.0,
    backward: Annotated[bool, typer.Option(help="Forward and backward.")] = True,
    side: Annotated[str, typer.Option(help="Of padding: left, right.")] = "left",
    device: _Device = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16.", rich_help_panel=_WHERE)
    ] = "float32",
    threads: _Threads = None,
    repeats: Annotated[int, typer.Option(min=1, help="Under the profiler.")] = 5,
) -> None:
    """Where the time of a mix's sublayer goes, by torch's profiler."""
    from rich import box
    from rich.table import Table

    from fairseq_fixed.bench.profile import ProfileSettings, profile_mix
    from fairseq_fixed.bench.screen import Screen
    from fairseq_fixed.bench.settings import Place

    _set_threads(threads)
    settings = ProfileSettings(
        mix=mix,
        length=length,
        tokens=tokens,
        width=width,
        heads=heads,
        layers=layers,
        dropout=attention_dropout,
        backward=backward,
        repeats=repeats,
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("", "share", "ms", "operations that take most"):
        table.add_column(name, justify="right" if name in ("share", "ms") else "left")
    for share in profile_mix(settings, Place(device, dtype, side)):
        operations = ", ".join(share.longest)
        table.add_row(share.group, f"{share.share:.0%}", f"{share.milliseconds:.1f}", operations)
    Screen().out.print(table)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="JSON that benchmarks wrote.")],
    mixes: Annotated[str | None, typer.Option(help="Of ours to show; commas.")] = None,
    peers: Annotated[str | None, typer.Option(help="To compare with; commas.")] = None,
    show: Annotated[
        str, typer.Option(help="Tables of attention and encoder; commas.")
    ] = "speed,cost,memory,exponents",
    figure: _Figure = None,
    fit_from: _FitFrom = 512,
    out: Annotated[
        Path | None, typer.Option(help="File for the Markdown; stdout.", rich_help_panel=_OUTPUT)
    ] = None,
) -> None:
    """Write measured results as Markdown, and as a figure."""
    from fairseq_fixed.bench.record import read_record
    from fairseq_fixed.bench.report import SECTIONS, Chosen, render_records
    from fairseq_fixed.bench.settings import check_choice
    from fairseq_fixed.experiments.stamps import write_text

    for name in (sections := _words(show)):
        check_choice("show", name, SECTIONS)
    chosen = Chosen(*(None if names is None else _words(names) for names in (mixes, peers)))
    records = [read_record(file) for file in files]
    text = render_records(records, fit_from=fit_from, chosen=chosen, show=sections)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(f"{out}")
    if figure is not None:
        from fairseq_fixed.bench.figure import draw_costs

        draw_costs(
            [case for record in records for case in record["cases"]],
            figure,
            fit_from=fit_from,
            shown=lambda curve: (chosen.mix if curve.ours else chosen.peer)(curve.name),
        )
        typer.echo(f"{figure}", err=out is None)


def _models(mixes: str, arch: str, option: list[str] | None, vocabulary: int) -> ModelSettings:
    from fairseq_fixed.bench.models import ModelSettings, parse_options, parse_systems

    return ModelSettings(
        systems=parse_systems(mixes),
        architecture=arch,
        options=parse_options(option or ()),
        vocabulary=vocabulary,
    )


def _grid(
    lengths: str,
    text: list[Path] | None,
    data: Path | None,
    batches: int,
    tokens: str,
    padding: str,
) -> Grid:
    from fairseq_fixed.bench.grid import Grid
    from fairseq_fixed.bench.settings import parse_numbers

    parts = _words(lengths)
    fixed = ",".join(part for part in parts if part != "real")
    mix = _length_mix(text, data) if "real" in parts else None
    return Grid(
        lengths=parse_numbers("lengths", fixed, int) if fixed or mix is None else (),
        mix=mix,
        batches=batches,
        tokens=parse_numbers("tokens", tokens, int),
        paddings=parse_numbers("padding", padding, float),
    )


def _check_figure(figure: Path | None, grid: Grid) -> None:
    from fairseq_fixed.bench.errors import BenchError

    if figure is not None and not grid.lengths:
        raise BenchError(
            "--figure draws cost against length: give lengths, as in --lengths 256,1024"
        )


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
    settings: Any,
    options: TimingOptions,
    device: str,
    json: Path | None,
    figure: Path | None = None,
    fit_from: float = 0,
) -> None:
    """Measure, print, and write after every case what there is."""
    from fairseq_fixed.bench.record import (
        check_writable,
        describe_settings,
        new_record,
        write_record,
    )
    from fairseq_fixed.bench.screen import Screen

    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(device)
    for target in (json, figure):
        if target is not None:
            check_writable(target)

    record = new_record(
        bench, describe_settings(settings, options), command=_command(), device=device
    )
    screen = Screen()
    stopped = False
    try:
        for case in cases(screen):
            record["cases"].append(case)
            if json is not None:
                write_record(record, json)
    except KeyboardInterrupt:
        stopped = True
    finally:
        screen.clear()
    if figure is not None and record["cases"]:
        from fairseq_fixed.bench.figure import draw_costs

        draw_costs(record["cases"], figure, fit_from=fit_from)
    written = [str(path) for path in (json, figure) if path is not None and record["cases"]]
    if stopped:
        kept = f", kept in {', '.join(written)}" if written else ""
        typer.echo(f"Stopped. {len(record['cases'])} cases were measured{kept}.", err=True)
        raise typer.Exit(128 + signal.SIGINT)
    for path in written:
        typer.echo(path)
