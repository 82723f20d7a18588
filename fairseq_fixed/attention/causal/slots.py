"""States that keep a slot for each of the last tokens.

Slots are made sixteen at a time: states of one size follow each other in memory that is there
already, where one that grew with every token would ask for new pages at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["select_slots", "write_slot"]

GROWTH = 16


def _capacity(tokens: int, most: int | None) -> int:
    capacity = -(-tokens // GROWTH) * GROWTH
    return capacity if most is None else min(capacity, most)


def write_slot(
    state: Tensor | None, values: Tensor, *, slots: int, index: int, most: int | None
) -> Tensor:
    """Return the state with one more token's values; a full one overwrites the oldest.

    Args:
        state: of the step before, or None. Overwritten, unless gradients are recorded.
        values: of the state's shape but for its slots: 1.
        slots: dimension of the slots.
        index: of the token, from 0; it goes to slot `index` modulo `most`.
        most: slots there may be; None: any number.
    """
    there = 0 if state is None else state.shape[slots]
    slot = index if most is None else index % most
    if slot >= there:
        shape = list(values.shape)
        shape[slots] = _capacity(slot + 1, most)
        roomy = values.new_empty(shape)
        if state is not None:
            roomy.narrow(slots, 0, there).copy_(state)
        state = roomy
    elif torch.is_grad_enabled():
        assert state is not None
        state = state.clone()  # what the step before saved for its gradient stays as it is
    assert state is not None
    state.narrow(slots, slot, 1).copy_(values)
    return state


def select_slots(
    state: Tensor, order: Tensor, *, batch: int, slots: int, tokens: int, most: int | None
) -> Tensor:
    """Pick sentences, with room for one more token; slots not written yet are not copied.

    Args:
        state: from :func:`write_slot`.
        order: (sentences,) int64.
        batch: dimension of the sentences.
        slots: dimension of the slots.
        tokens: written so far.
        most: slots there may be; None: any number.
    """
    filled = tokens if most is None else min(tokens, most)
    shape = list(state.shape)
    shape[batch], shape[slots] = len(order), _capacity(filled + 1, most)
    if filled == shape[slots]:
        return state.index_select(batch, order)
    roomy = state.new_empty(shape)
    old, new = state.narrow(slots, 0, filled), roomy.narrow(slots, 0, filled)
    if state.requires_grad:
        new.copy_(old.index_select(batch, order))
    else:
        torch.index_select(old, batch, order, out=new)
    return roomy
