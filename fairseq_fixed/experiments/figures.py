"""Writing a picture whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["save_figure"]


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG and close it; a kill leaves the old file or the new one."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    figure.savefig(draft, dpi=130, format="png")
    pyplot.close(figure)
    draft.replace(path)
