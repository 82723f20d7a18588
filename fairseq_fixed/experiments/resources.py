"""Where `configs/` and `data/` are: beside the package in a clone, inside it when installed."""

from __future__ import annotations

from pathlib import Path

__all__ = ["configs_folder", "data_folder", "import_root", "plugin_folder"]


def plugin_folder() -> Path:
    """Return the package's folder: what fairseq takes as `--user-dir`."""
    return Path(__file__).resolve().parents[1]


def import_root() -> Path:
    """Return the folder that makes `import fairseq_fixed` work when it is on the path."""
    return plugin_folder().parent


def configs_folder() -> Path:
    """Return the folder of the YAML files (`recipe/`, `model/`, `train/`)."""
    return _find("configs", "recipe")


def data_folder() -> Path:
    """Return the folder of the corpus builders (`sword.py`)."""
    return _find("data", "sword.py")


def _find(name: str, witness: str) -> Path:
    for root in (plugin_folder(), import_root()):
        if (root / name / witness).exists():
            return root / name
    raise FileNotFoundError(
        f"no {name}/ with {witness} beside or inside {plugin_folder()}: the installation is "
        "incomplete; install fairseq-fixed-attention again, or run from a clone"
    )
