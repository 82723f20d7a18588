"""Keeps fairseq from saying what it loads in the middle of a command's own output."""

from __future__ import annotations

import logging

import typer

__all__ = ["quieten_fairseq"]


def quieten_fairseq(context: typer.Context) -> None:
    """Let fairseq say warnings alone until a command ends; then it logs as before."""
    logger = logging.getLogger("fairseq")
    before = logger.level
    logger.setLevel(logging.WARNING)
    context.call_on_close(lambda: logger.setLevel(before))
