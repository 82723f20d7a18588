"""`fairseq-fixed analyse`: thin verbs. Heavy modules are imported inside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairseq_fixed.quiet import quieten_fairseq

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["app"]

app = typer.Typer(
    name="analyse", help="What trained heads, positions and matrices look like.",
    no_args_is_help=True,
)  # fmt: skip

_Checkpoint = Annotated[Path, typer.Argument(help="Of transformer or fixed_transformer.")]
_Data = Annotated[
    Path | None, typer.Option(help="Binarised data with the dictionaries; where it was trained.")
]
_Json = Annotated[Path | None, typer.Option("--json", help="File for all numbers.")]
_Figure = Annotated[Path | None, typer.Option(help="Picture to write: .png, .pdf, .svg.")]


@app.callback()
def _setup(context: typer.Context) -> None:
    quieten_fairseq(context)


@app.command()
def heads(
    checkpoint: _Checkpoint,
    data: _Data = None,
    split: Annotated[str, typer.Option(help="Whose source sentences.")] = "valid",
    sentences: Annotated[int, typer.Option(min=1, help="The first so many.")] = 200,
    json: _Json = None,
    figure: _Figure = None,
) -> None:
    """What each encoder head attends to: how near, how spread, which fixed pattern is nearest."""
    from fairseq_fixed.analysis.trained import load_encoder, profile_heads, read_sentences

    encoder, task = load_encoder(checkpoint, data)
    profiles = profile_heads(encoder, read_sentences(task, split, sentences))
    rows = [
        (
            f"{p.layer}", f"{p.head}", p.kind, f"{p.within[1]:.2f}", f"{p.within[3]:.2f}",
            f"{p.within[10]:.2f}", f"{p.entropy:.2f}", f"{p.pattern} {p.difference:.2f}",
        )
        for p in profiles
    ]  # fmt: skip
    columns = (
        *("layer", "head", "kind", "|j-i| ≤ 1", "≤ 3", "≤ 10", "entropy (bits)"),
        "nearest pattern",
    )
    _table(columns, rows)
    _write(json, [p.as_dict() for p in profiles])
    if figure is not None:
        from fairseq_fixed.analysis.figures import draw_profiles

        typer.echo(f"{draw_profiles(profiles, figure)}")


@app.command()
def positions(
    checkpoint: _Checkpoint,
    data: _Data = None,
    length: Annotated[int, typer.Option(min=2, help="Positions.")] = 50,
    border: Annotated[int, typer.Option(min=0, help="Left out at each end.")] = 2,
    reach: Annotated[int, typer.Option(min=1, help="TISA's functions, from -k to k.")] = 20,
    json: _Json = None,
    figure: _Figure = None,
) -> None:
    """How far positions act through their distance alone; the figure is TISA's functions."""
    from fairseq_fixed.analysis.positions import measure_positions, tisa_functions
    from fairseq_fixed.analysis.trained import load_encoder

    encoder, _ = load_encoder(checkpoint, data)
    functions = tisa_functions(encoder, reach)
    found: list[Any] = []
    if encoder.embed_positions is None:
        typer.echo("no position embeddings in the encoder")
    else:
        with _said():
            found = measure_positions(encoder, length, border)
        rows = [(i.what, f"{i.r2:.3f}", f"{i.r2_off_diagonal:.3f}") for i in found]
        _table(("", "R² of the nearest Toeplitz matrix", "without the main diagonal"), rows)
    _write(json, {"invariance": [vars(i) for i in found], "tisa": functions})
    if figure is not None:
        if not functions:
            raise typer.BadParameter("--figure draws TISA's functions; this model has none")
        from fairseq_fixed.analysis.figures import draw_functions

        typer.echo(f"{draw_functions(functions, figure)}")


@app.command()
def matrices(
    file: Annotated[Path, typer.Argument(help="Attention matrices, (heads, n, n): .npy.")],
    w: Annotated[int, typer.Option("--w", min=0, help="Half-width of the band.")] = 3,
    num_pos: Annotated[
        int, typer.Option(min=0, help="Further entries a row; rare tokens of a draw.")
    ] = 2,
    epsilon: Annotated[float | None, typer.Option(min=0, help="Bound of further entries.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Of the random search, from each set.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    json: _Json = None,
) -> None:
    """How far matrices are from bands, and from bands with few further entries."""
    import math

    import torch

    from fairseq_fixed.analysis import projection

    found = torch.from_numpy(_read_matrices(file))
    n = found.shape[-1]
    bound = math.inf if epsilon is None else epsilon
    band = projection.distance(found, projection.project_band(found, w))
    sparse = projection.project_band_sparse(found, w, num_pos, bound)
    further = projection.distance(found, sparse)
    with _said():
        drawn = [projection.nearest_draw(h, w, num_pos, draws=draws, seed=seed) for h in found]
    rows = [
        (
            f"{i}", f"{band[i]:.3f} ({band[i] / n**2:.4f})",
            f"{further[i]:.3f} ({further[i] / n**2:.4f})",
            f"{d.distance:.3f} ({d.distance / n**2:.4f})", d.family,
        )
        for i, d in enumerate(drawn)
    ]  # fmt: skip
    columns = ("head", f"band w={w}", f"and {num_pos} entries a row", f"best of {draws} draws", "")
    _table(columns, rows)
    typer.echo("Σ|h - x| over all entries; in brackets the mean of an entry.")
    content = [
        {"head": i, "band": float(b), "band_sparse": float(f), **d._asdict()}
        for i, (b, f, d) in enumerate(zip(band, further, drawn, strict=True))
    ]
    _write(json, content)


def _read_matrices(file: Path) -> NDArray[np.float64]:
    """Return (heads, n, n)."""
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror or error}") from None
    except (EOFError, ValueError):
        # numpy's own message advises to load without a check, which could run code
        raise typer.BadParameter(f"{file}: not a .npy file of numbers") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise typer.BadParameter(f"{file}: not a .npy file of numbers")
    matrices = array.astype(np.float64)
    if matrices.ndim == 2:
        matrices = matrices[None]
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        raise typer.BadParameter(f"{file}: holds {array.shape}, not (heads, n, n)")
    if not (np.isfinite(matrices).all() and (matrices >= 0).all()):
        raise typer.BadParameter(f"{file}: attention weights are finite and not negative")
    return matrices


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Turn a ValueError, which says what was wrong with an option, into the command's error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140, no_color=True)
    console.print(table)


def _write(path: Path | None, content: Any) -> None:
    if path is not None:
        from fairseq_fixed.experiments.stamps import write_json

        write_json(path, content)
        typer.echo(f"{path}")
