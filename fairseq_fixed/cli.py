"""`fairseq-fixed`: thin verbs over the package. Heavy modules are imported inside the verbs."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairseq_fixed.analysis.verbs import app as analyse_app
from fairseq_fixed.bench.verbs import app as bench_app
from fairseq_fixed.experiments import verbs
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.quiet import quieten_fairseq

__all__ = ["app", "main"]

app = typer.Typer(
    name="fairseq-fixed",
    help="Experiments with fixed, band-projected and distance-biased encoder attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_EXPERIMENTS = "Experiments"
_ANALYSIS = "Analysis"
_STAGES = "Stages of a run (commands.sh runs these)"

_Recipe = Annotated[
    str, typer.Argument(help="A name that `fairseq-fixed recipes` lists, or a YAML file.")
]
_Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings: train.max_update=500 systems=[vanilla,8f] seeds=[1,2]"),
]
_Run = Annotated[Path, typer.Argument(help="A run's folder: runs/RECIPE.")]


@app.callback()
def _setup(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(levelname)s | %(name)s | %(message)s",
        stream=sys.stderr,
    )
    for chatty in ("matplotlib", "fontTools", "PIL", "sacrebleu"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@app.command(rich_help_panel=_EXPERIMENTS)
def run(
    recipe: _Recipe,
    overrides: _Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands and write nothing.")
    ] = False,
    redo: Annotated[
        list[str] | None, typer.Option(help="Run a stage again: its name, or `train` for all.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live table.")] = False,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="One run for each of a key's values: a,b,c.")
    ] = False,
    search: Annotated[
        int | None, typer.Option(help="With -m: so many trainings, chosen by Optuna.")
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(help="With -m: submit the runs. A setting of submitit: timeout_min=240."),
    ] = None,
) -> None:
    """Run a recipe from raw text to a table; started again, it goes on where it was."""
    from fairseq_fixed.experiments import session, sweep
    from fairseq_fixed.experiments.recipe import load

    if multirun or sweep.brings_sweep(recipe, overrides or ()):
        _run_many(recipe, overrides or (), dry_run, redo or (), plain, search, slurm)
        return
    if search is not None or slurm is not None:
        raise ExperimentError("--search and --slurm go with -m")
    if dry_run:
        _print_driver(recipe, overrides or ())
        return
    experiment = load(recipe, overrides or ())
    folder = session.run_folder(experiment)
    typer.echo(f"{experiment.name}: {_systems(experiment)} in {folder}")
    with _resumable(recipe, *(overrides or ())):
        ran = session.run_session(experiment, folder, _view(plain), redo or ())
    if not ran:
        typer.echo("All is done already.")
    _show_report(folder)


@contextlib.contextmanager
def _resumable(*words: str) -> Iterator[None]:
    """Say, when stopped by Ctrl-C or a signal, that the same command goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        command = shlex.join(["fairseq-fixed", "run", *words])
        typer.echo(f"\nStopped. The same command goes on from here: {command}", err=True)
        raise typer.Exit(128 + number) from None


def _run_many(
    recipe: str,
    overrides: Sequence[str],
    dry_run: bool,
    redo: Sequence[str],
    plain: bool,
    search: int | None,
    slurm: Sequence[str] | None,
) -> None:
    """Run a recipe once for every combination of values, or for those that a search tries."""
    from fairseq_fixed.experiments import multirun, sweep_report
    from fairseq_fixed.experiments.sweep import plan_sweep

    if search is not None:
        if dry_run:
            raise ExperimentError(
                "--dry-run prints commands, and those of a search follow from what it finds; leave "
                "out --search to see the commands of every point"
            )
        _search(recipe, overrides, search, plain)
        return
    sweep = plan_sweep(recipe, overrides, tools=not dry_run)
    count = len(sweep.points)
    if dry_run:
        for point in sweep.points:
            typer.echo(shlex.join(["fairseq-fixed", *multirun.point_command(sweep, point)]))
        return
    if slurm is not None:
        from fairseq_fixed.experiments.slurm import submit

        for name, job in submit(sweep, slurm).items():
            typer.echo(f"{job}  {name}")
        typer.echo("When all have ended, the same command without --slurm shows what they found.")
        return
    typer.echo(f"{sweep.name}: {count} run{'s' * (count > 1)} in {sweep.folder}")
    with _resumable(recipe, *overrides, "-m"):
        ran, failures = multirun.run_sweep(sweep, _view(plain), redo)
    if not ran:
        typer.echo("All is done already.")
    page = sweep_report.write(sweep, failures)
    typer.echo(f"\n{page.read_text(encoding='utf-8')}\n{page}")
    if failures:
        for folder, failure in failures.items():
            typer.echo(f"\n{folder.name}: {failure}", err=True)
        raise ExperimentError(f"{len(failures)} of {count} runs failed; the same command goes on")


def _search(recipe: str, overrides: Sequence[str], trials: int, plain: bool) -> None:
    """Search settings by the valid loss."""
    from fairseq_fixed.experiments.search import run_search

    with _resumable(recipe, *overrides, "-m", "--search", str(trials)):
        page = run_search(recipe, overrides, trials, _view(plain))
    typer.echo(f"\n{page.read_text(encoding='utf-8')}\n{page}")


def _print_driver(recipe: str, overrides: Sequence[str]) -> None:
    """Print a recipe's commands as a script that fits any machine."""
    from fairseq_fixed.experiments.recipe import load
    from fairseq_fixed.experiments.script import render_driver
    from fairseq_fixed.experiments.stages import compile_plan

    experiment = load(recipe, overrides, tools=False)
    typer.echo(render_driver(experiment, compile_plan(experiment), [recipe, *overrides]), nl=False)


@app.command(rich_help_panel=_EXPERIMENTS)
def status(folder: _Run) -> None:
    """Show what of a run is done and how far the rest is; of a multirun, each of its runs."""
    from fairseq_fixed.experiments import multirun
    from fairseq_fixed.experiments.lock import holder
    from fairseq_fixed.experiments.progress import StageProgress, format_seconds
    from fairseq_fixed.experiments.recipe import read
    from fairseq_fixed.experiments.stages import compile_plan
    from fairseq_fixed.experiments.stamps import Stamps

    if points := multirun.points_in(folder):
        for line in multirun.survey(points):
            typer.echo(line)
        return
    plan = compile_plan(read(folder))
    stamps = Stamps(folder.absolute())
    states = stamps.survey(plan, save=False)
    process = holder(folder)
    for stage in plan:
        state = states[stage.name]
        word = state.state
        more = format_seconds(state.seconds) if word == "done" else state.why
        if process is not None and word != "done" and stamps.running(stage):
            word = "running"
            progress = StageProgress(stage, folder, begun=True)
            progress.look()
            more = progress.describe()
        typer.echo(f"{word:8}  {stage.name:34}  {more}".rstrip())
    done = sum(s.state == "done" for s in states.values())
    owner = f", run by process {process}" if process is not None else ""
    typer.echo(f"{done} of {len(plan)} stages done{owner}")


@app.command(rich_help_panel=_EXPERIMENTS)
def recipes() -> None:
    """List the recipes: language pair, what they are, what they cost."""
    from fairseq_fixed.experiments.errors import ExperimentError
    from fairseq_fixed.experiments.recipe import compose, recipe_files

    for file in recipe_files():
        try:
            content = compose(file.stem)
        except ExperimentError as error:
            typer.echo(f"{file.stem}: {error}")
            continue
        typer.echo(f"{file.stem}  ({content.get('pair', '?')})")
        for key in ("description", "cost"):
            if content.get(key):
                typer.echo(f"    {content[key]}")
        for key, values in (content.get("multirun") or {}).items():
            typer.echo(f"    a run for each of {key}={values}")


@app.command(rich_help_panel=_EXPERIMENTS)
def validate(context: typer.Context, recipe: _Recipe, overrides: _Overrides = None) -> None:
    """Check a recipe, and its options by fairseq's own parsers; all errors at once."""
    from fairseq_fixed.experiments.options_check import parse_options
    from fairseq_fixed.experiments.recipe import load
    from fairseq_fixed.experiments.stages import compile_plan

    experiment = load(recipe, overrides or ())
    plan = compile_plan(experiment)
    if importlib.util.find_spec("fairseq") is not None:
        quieten_fairseq(context)
        parse_options(plan)
    typer.echo(f"{experiment.name} is valid: {_systems(experiment)}, {len(plan)} stages")


@app.command(rich_help_panel=_EXPERIMENTS)
def translate(
    folder: _Run,
    file: Annotated[str, typer.Argument(help="Text, a sentence a line; - is stdin.")] = "-",
    system: Annotated[
        str | None, typer.Option(help="As in the table; the first that is not the baseline.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The run's first.")] = None,
    beam: Annotated[int | None, typer.Option(help="The recipe's.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences at once, at most.")] = 64,
    cpu: Annotated[bool, typer.Option("--cpu", help="Even where there is a GPU.")] = False,
) -> None:
    """Translate text with a model of a run: raw text in, a line of text out for each line."""
    from fairseq_fixed.experiments.parallel_text import read_lines
    from fairseq_fixed.experiments.translate import Translator, by_arrival, read_stream

    translator = Translator.from_run(
        folder, system=system, seed=seed, beam=beam, batch_size=batch_size, cpu=cpu
    )
    if file == "-":
        stream = read_stream(sys.stdin.buffer)
    elif Path(file).is_file() and not Path(file).stat().st_size:
        stream = iter(())  # no line in, none out
    else:
        stream = read_lines(file)
    output = sys.stdout
    for line in translator.stream(by_arrival(stream)):
        output.write(f"{line}\n")
        output.flush()


@app.command(rich_help_panel=_EXPERIMENTS)
def contrast(
    model: Annotated[
        Path, typer.Argument(help="A run's folder (all of its models), or a checkpoint (.pt).")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="source, reference, wrong variant, type, distance with tabs between them (.tsv); "
            "or LingEval97's or ContraPro's .json."
        ),
    ],
    system: Annotated[str | None, typer.Option(help="Only this one of the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this one of the run.")] = None,
    score: Annotated[
        Literal["mean", "sum"], typer.Option(help="Of the subwords' log-probabilities.")
    ] = "mean",
    out: Annotated[Path | None, typer.Option(help="File to write: .md or .json.")] = None,
    scores: Annotated[Path | None, typer.Option(help="TSV to write: every pair's scores.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="For a checkpoint: folder of its dictionaries.")
    ] = None,
    subwords: Annotated[
        Path | None,
        typer.Option(help="For a checkpoint: sentencepiece model; without: FILE is in subwords."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Subwords a batch.")] = 4000,
    cpu: Annotated[bool, typer.Option("--cpu", help="Even where there is a GPU.")] = False,
) -> None:
    """Count how often models prefer the reference to a variant with an error: by type, distance."""
    from fairseq_fixed.experiments.contrast_report import render, render_scores
    from fairseq_fixed.experiments.contrast_run import run_contrast
    from fairseq_fixed.experiments.stamps import write_json, write_text

    found = run_contrast(
        model,
        file,
        system=system,
        seed=seed,
        data=data,
        subwords=subwords,
        how=score,
        max_tokens=max_tokens,
        cpu=cpu,
    )
    text = render(found.report)
    if out is None:
        typer.echo(text, nl=False)
    elif out.suffix == ".json":
        write_json(out, found.report)
    else:
        write_text(out, text)
    if scores is not None:
        write_text(scores, render_scores(found.names, found.judged))
    for path in filter(None, (out, scores)):
        typer.echo(f"{path}", err=out is None)


@app.command(rich_help_panel=_EXPERIMENTS)
def report(
    folder: Annotated[Path, typer.Argument(help="A run's folder; or results, or results/RECIPE.")],
    page: Annotated[
        Path | None, typer.Option(help="Markdown file whose marked tables to renew: README.md.")
    ] = None,
    view: Annotated[
        str, typer.Option(help="Of results: table, trainings, speed or length.")
    ] = "table",
    figures: Annotated[
        Path | None, typer.Option(help="Folder for pictures of results: curves, lengths.")
    ] = None,
) -> None:
    """Write a finished run's report again, or print the tables of all that `results` holds."""
    from fairseq_fixed.experiments import multirun, paths
    from fairseq_fixed.experiments.collection import draw_collection, update_page
    from fairseq_fixed.experiments.recipe import read
    from fairseq_fixed.experiments.report import write_report
    from fairseq_fixed.experiments.sweep_report import MARKDOWN

    if page is not None:
        changed = update_page(page, folder)
        typer.echo(f"{page}: {'tables renewed' if changed else 'its tables are up to date'}")
    elif (folder / paths.RECIPE).exists() or not folder.is_dir():
        if view != "table" or figures is not None:
            raise ExperimentError(
                f"--view and --figures are of results; the report of {folder} holds all views"
            )
        write_report(read(folder), folder)
        _show_report(folder)
    elif multirun.points_in(folder):
        summary = folder / MARKDOWN
        if not summary.is_file():
            raise ExperimentError(f"{folder} has no {MARKDOWN} yet: its runs are not finished")
        typer.echo(summary.read_text(encoding="utf-8"), nl=False)
    else:
        for recipe in _recipes_in(folder):
            if figures is not None:
                for picture in draw_collection(recipe, figures):
                    typer.echo(f"{picture}")
            else:
                typer.echo(f"## {recipe.name}\n\n{_shown(recipe, view)}")


def _recipes_in(folder: Path) -> list[Path]:
    """Return the folders of results: all below it, or that of one recipe, itself."""
    if any(folder.glob("*.json")):
        return [folder]
    below = sorted(path for path in folder.iterdir() if any(path.glob("*.json")))
    if not below:
        raise ExperimentError(
            f"{folder} holds neither a run nor results: give runs/RECIPE, results, or "
            "results/RECIPE; fairseq-fixed collect runs/RECIPE writes results"
        )
    return below


def _shown(recipe: Path, view: str) -> str:
    """Return a view of a recipe's results; of older ones, which may not hold it, say so."""
    from fairseq_fixed.experiments.collection import VIEWS, render_collection

    try:
        return render_collection(recipe, view)
    except ExperimentError as error:
        if view == "table" or view not in VIEWS:
            raise
        return f"{error}\n"


@app.command(rich_help_panel=_EXPERIMENTS)
def collect(
    folder: _Run,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
) -> None:
    """Copy what a run has finished so far to `results`; the run may go on meanwhile."""
    from fairseq_fixed.experiments.recipe import read
    from fairseq_fixed.experiments.results import collect_results

    written = collect_results(read(folder), folder, results)
    for path in written:
        typer.echo(f"{path}")
    if not written:
        typer.echo(f"{folder}: no system is finished yet")


@app.command(rich_help_panel=_ANALYSIS)
def patterns(
    mix: Annotated[str, typer.Argument(help="Heads, such as 7f+1l or 0-2@7f+1l/3-5@8l.")],
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .pdf or .svg.")],
    length: Annotated[int, typer.Option(help="Tokens of an unnamed sentence.")] = 12,
    layers: Annotated[int | None, typer.Option(help="Layers; as many as named.")] = None,
    sentence: Annotated[
        str | None, typer.Option(help="Tokens between spaces, to name rows and columns.")
    ] = None,
    dictionary: Annotated[
        Path | None, typer.Option("--dict", help="dict.LANG.txt of fairseq: which are rare.")
    ] = None,
) -> None:
    """Draw what each head of a mix attends to."""
    from fairseq_fixed.analysis.patterns import PatternsError, draw_patterns
    from fairseq_fixed.heads import HeadsError

    try:
        draw_patterns(
            mix, out, length=length, layers=layers, sentence=sentence, dictionary=dictionary
        )
    except (HeadsError, PatternsError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{out}")


@app.command(rich_help_panel=_ANALYSIS)
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Of transformer or fixed_transformer.")],
    out: Annotated[Path, typer.Option(help="Checkpoint to write.")],
    encoder_heads: Annotated[str, typer.Option(help="Such as 8xband:3 or 7f+1l.")],
    decoder_heads: Annotated[str | None, typer.Option(help="None: as they are.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Of the heads: band_projection=exact.")
    ] = None,
) -> None:
    """Give a trained model other heads with the weights that it has."""
    from fairseq_fixed.conversion import ConversionError, convert_checkpoint

    options = {}
    for text in option or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ConversionError(f"--option {text}: write NAME=VALUE")
        options[name.replace("-", "_")] = value
    convert_checkpoint(
        checkpoint, out, encoder_heads=encoder_heads, decoder_heads=decoder_heads, options=options
    )
    typer.echo(f"{out}")


app.add_typer(analyse_app, name="analyse", rich_help_panel=_ANALYSIS)
app.add_typer(bench_app, name="bench", rich_help_panel=_ANALYSIS)
for _name, _verb in verbs.VERBS.items():
    app.command(_name, rich_help_panel=_STAGES)(_verb)


def _systems(experiment: Any) -> str:
    names = ", ".join(system.name for system in experiment.systems)
    seeds = experiment.recipe.seeds
    return f"{names}; seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _view(plain: bool) -> Any:
    from rich.console import Console

    from fairseq_fixed.experiments.progress import LiveView, PlainView

    console = Console()
    if plain or not console.is_terminal:
        return PlainView(lambda line: typer.echo(line))
    return LiveView(console)


def _show_report(folder: Path) -> None:
    """Print the table, a few translations, and where the report lies."""
    from fairseq_fixed.experiments.report_view import show

    show(folder)


def main() -> None:
    """Run the command line; errors that a user can act on are printed without a traceback."""
    try:
        app()
    except _known_errors() as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"Error: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _known_errors() -> tuple[type[Exception], ...]:
    """Return our errors, as far as their modules were imported."""
    known = (
        ("fairseq_fixed.checkpoints", "CheckpointError"),
        ("fairseq_fixed.heads", "HeadsError"),
        ("fairseq_fixed.experiments.corpus", "TextError"),
    )
    modules = [(sys.modules.get(module), name) for module, name in known]
    found = [getattr(module, name) for module, name in modules if module is not None]
    return (ExperimentError, *found)


if __name__ == "__main__":
    main()
