"""From a recipe's name and overrides to a checked experiment; all errors at once."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairseq_fixed.experiments import resources
from fairseq_fixed.experiments.errors import ExperimentError, RecipeError
from fairseq_fixed.experiments.recipe_checks import check_comparison, check_settings
from fairseq_fixed.experiments.schema import Recipe
from fairseq_fixed.experiments.systems import System, parse_systems, with_files_read
from fairseq_fixed.experiments.tokenizers import usual_tokenizer
from fairseq_fixed.experiments.validation import build, nearest

__all__ = [
    "Experiment",
    "check",
    "compose",
    "dump",
    "load",
    "name_of",
    "quoted",
    "read",
    "reading",
    "recipe_files",
    "require_hydra",
]

logger = logging.getLogger(__name__)

_GROUPS = ("recipe", "sweep")  # folders of configs/
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)  # of which Hydra takes nothing for itself


@dataclass(frozen=True)
class Experiment:
    """A checked recipe: its name, its settings, its systems in the order of the table."""

    name: str
    recipe: Recipe
    systems: tuple[System, ...]

    @property
    def baseline(self) -> System:
        """The system that the others are compared with."""
        wanted = self.recipe.baseline
        return next((s for s in self.systems if s.name == wanted), self.systems[0])

    @property
    def others(self) -> tuple[System, ...]:
        """The systems compared with the baseline."""
        return tuple(s for s in self.systems if s is not self.baseline)

    @property
    def tokenizer(self) -> str:
        """BLEU's tokenizer."""
        return self.recipe.score.tokenize or usual_tokenizer(self.recipe.target)


def recipe_files() -> list[Path]:
    """Return the recipes that come with the project, and the sweeps behind them."""
    folder = resources.configs_folder()
    return [file for group in _GROUPS for file in sorted((folder / group).glob("*.yaml"))]


def name_of(recipe: str) -> str:
    """Return the name of a recipe that is given by its name or its file."""
    return Path(recipe).stem if recipe.endswith((".yaml", ".yml")) else recipe


def require_hydra() -> None:
    """Check that there is a Hydra that can compose recipes.

    Raises:
        ExperimentError: there is none, or an old one.
    """
    try:
        import hydra
    except ImportError:
        raise ExperimentError(
            "recipes need hydra-core 1.2 or newer; it comes with the extras [recipes] and [fairseq]"
        ) from None

    if tuple(int(part) for part in hydra.__version__.split(".")[:2]) < (1, 2):
        raise ExperimentError(
            f"recipes need hydra-core 1.2 or newer, found {hydra.__version__} (stock fairseq 0.12 "
            "pins it); the extra fairseq-fixed-attention[fairseq] brings a fairseq that takes 1.3"
        )


def compose(recipe: str, overrides: Sequence[str] = (), *, resolve: bool = True) -> dict[str, Any]:
    """Return a recipe with its defaults and overrides as plain data, composed by Hydra.

    Args:
        recipe: a name in `configs/recipe`, or the path of a YAML file, whose `defaults` may name
            `/train: …` and `/recipe/…` of the project.
        overrides: Hydra's `key=value`. A key that the YAML does not hold is added, so that it is
            the validation that judges it; a group (`train=…`) chooses another file.
        resolve: whether to fill in `${vars.NAME}` and the like.

    Raises:
        ExperimentError: there is no such recipe, or Hydra refuses an override.
    """
    require_hydra()
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    configs = resources.configs_folder()
    file = Path(recipe)
    if file.suffix in (".yaml", ".yml"):
        if file.suffix == ".yml":
            raise ExperimentError(f"Hydra knows recipes by .yaml alone: rename {recipe}")
        if not file.is_file():
            raise ExperimentError(f"there is no file {recipe}")
        folder, name = file.resolve().parent, file.stem
    else:
        groups = {f.stem: f.parent.name for f in recipe_files()}
        if recipe not in groups:
            raise ExperimentError(
                f"there is no recipe {recipe!r}; {nearest(recipe, groups)} "
                "(fairseq-fixed recipes lists them; a path ending in .yaml names one's own)"
            )
        folder, name = configs, f"{groups[recipe]}/{recipe}"
    try:
        words, values = _adding(overrides, folder, configs)
        words.insert(0, f"hydra.searchpath=[{quoted(f'file://{configs}')}]")
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(folder), version_base="1.1"):
            config = hydra_compose(config_name=name, overrides=words)
        with open_dict(config):
            for key, value in values.items():
                OmegaConf.update(config, key, value, merge=True)
        content = OmegaConf.to_container(config, resolve=resolve)
    except (HydraException, OmegaConfBaseException) as error:
        raise ExperimentError(f"recipe {recipe!r} cannot be composed: {error}") from error
    except yaml.YAMLError as error:
        raise ExperimentError(f"recipe {recipe!r} is not valid YAML: {error}") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"recipe {recipe!r} is not UTF-8: {error}") from error
    if not isinstance(content, dict):
        raise ExperimentError(f"recipe {recipe!r} holds no keys and values")
    return _without_blanks(content)


def _without_blanks(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Drop YAML's `???`, which says that a key must be given."""
    return {
        str(key): _without_blanks(value) if isinstance(value, Mapping) else value
        for key, value in content.items()
        if value != "???"
    }


def _adding(
    overrides: Sequence[str], folder: Path, configs: Path
) -> tuple[list[str], dict[str, Any]]:
    """Turn `key=value` into Hydra's `++key=value`, unless the key is a group of files.

    Hydra takes every folder beside a recipe for a group: `results=results` would then look for
    `results/results.yaml`, in what the run before has written. Such keys' values come back apart.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words, values = [], {}
    parser = OverridesParser.create()
    for text in overrides:
        parsed = reading(text, parser.parse_override)
        if parsed.is_sweep_override():
            raise ExperimentError(
                f"{text} gives several values: with -m, fairseq-fixed run takes them one by one"
            )
        key, value = parsed.key_or_group, parsed._value
        is_name = isinstance(value, str)
        if text[:1] in "+~" or (
            is_name and any((root / key / f"{value}.yaml").is_file() for root in (folder, configs))
        ):
            words.append(text)
        elif is_name and (configs / key).is_dir():
            files = [file.stem for file in sorted((configs / key).glob("*.yaml"))]
            raise ExperimentError(f"{text}: there is no {key} {value!r}; {nearest(value, files)}")
        elif (folder / key).is_dir():
            values[key] = parsed.value()
        else:
            words.append(f"++{text}")
    return words, values


def reading(text: str, parse: Callable[[str], Any]) -> Any:
    """Return what Hydra makes of an override.

    Raises:
        ExperimentError: it cannot be read.
    """
    from hydra.errors import HydraException

    try:
        return parse(text)
    except HydraException as error:
        raise ExperimentError(
            f"cannot read the override {text!r}: {error}. Overrides look like "
            "train.max_update=500 or systems=[vanilla,7f+1l]; what holds other characters than "
            "letters, digits and -+./:@ needs quotes, and the shell others around them: "
            '\'data.train=["ä.de","ä.en"]\''
        ) from error


def quoted(text: str) -> str:
    """Return a text as Hydra's overrides have it, in quotes where its characters need them."""
    if _PLAIN.fullmatch(text):
        return text
    # Hydra takes a backslash for itself, but before a quote.
    return '"' + re.sub(r'(\\*)("|$)', lambda m: 2 * m[1] + m[2].replace('"', '\\"'), text) + '"'


def load(recipe: str, overrides: Sequence[str] = (), *, tools: bool = True) -> Experiment:
    """Compose and check a recipe.

    Args:
        recipe: as for :func:`compose`.
        overrides: as for :func:`compose`.
        tools: as for :func:`check`.

    Raises:
        ExperimentError: it cannot be composed.
        RecipeError: everything that is wrong with it.
    """
    return check(name_of(recipe), compose(recipe, overrides), tools=tools)


def read(folder: Path) -> Experiment:
    """Return the experiment of a run's folder, from its `recipe.yaml`.

    Raises:
        ExperimentError: the folder holds no run.
    """
    from fairseq_fixed.experiments.paths import RECIPE

    file = folder / RECIPE if folder.is_dir() else folder
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(
            f"{folder} is not the folder of a run: {file.name} is missing or unreadable"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ExperimentError(
            f"{file} is damaged: {error}. The command that made the run writes it anew"
        ) from error
    if not isinstance(content, dict):
        raise ExperimentError(f"{file} holds no recipe")
    name = str(content.pop("name", file.parent.name))
    return check(name, content, files=False, tools=False)


def dump(experiment: Experiment, *, defaults: bool = True) -> str:
    """Return the recipe as composed, as YAML for `read`.

    Args:
        experiment: the recipe.
        defaults: whether every default is filled in, or left out.
    """
    recipe = experiment.recipe
    settings = dataclasses.asdict(recipe) if defaults else _without_defaults(recipe)
    content = {"name": experiment.name, **settings}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def _without_defaults(settings: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            value = _without_defaults(value)
            if not value:
                continue
        elif field.name != "kind":  # of the data, which tells what its other keys are
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            if value == default:
                continue
        kept[field.name] = value
    return kept


def check(
    name: str, content: Mapping[str, Any], *, files: bool = True, tools: bool = True
) -> Experiment:
    """Return the experiment that plain data describes.

    Args:
        name: the recipe's name.
        content: keys and values, as composed.
        files: whether the data files must be there.
        tools: whether what scoring needs must be installed.

    Raises:
        RecipeError: everything that is wrong with it.
    """
    errors: list[str] = []
    recipe = build(Recipe, content, "", errors)
    if recipe is None:
        raise RecipeError(name, errors)
    check_settings(recipe, errors, files=files, tools=tools)
    folder = resources.configs_folder() / "model"
    recipe.systems = with_files_read(recipe.systems, folder)
    systems = parse_systems(recipe.systems, recipe.model, folder, errors)
    check_comparison(recipe, systems, errors)
    if errors:
        raise RecipeError(name, errors)
    return Experiment(name, recipe, tuple(systems))
