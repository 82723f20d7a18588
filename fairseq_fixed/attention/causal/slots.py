"""States that keep a slot for each of the last tokens.

Slots are made sixteen at a time: states of one size follow each other in memory that is there
already, where one that grew with every token would ask for new pages at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FIRST", "select_slots", "write_slot"]

#: Slots made at first, and each time that they are full.
FIRST, GROWTH = 32, 16


def _capacity(tokens: int, most: int | None) -> int:
    capacity = max(FIRST, -(-tokens // GROWTH) * GROWTH)
    return capacity if most is None else min(capacity, most)


def write_slot(
    state: Tensor | None, values: Tensor, *, slots: int, index: int, most: int | None
) -> Tensor:
    """Return the state with one more token's values; a full one overwrites the oldest.

    Args:
        state: of the step before, or None. Overwritten, unless gradients are recorded.
        values: of the state's shape but for its slots: 1.
        slots: dimension of the slots. The first `FIRST` of them are zero until written.
        index: of the token, from 0; it goes to slot `index` modulo `most`.
        most: slots there may be; None: any number.
    """
    slot = index if most is None else index % most
    if state is None:
        shape = list(values.shape)
        shape[slots] = _capacity(1, most)
        state = values.new_zeros(shape)
    elif slot >= state.shape[slots]:
        state = _with_room(state, slots, most)
    elif torch.is_grad_enabled():
        state = state.clone()  # what the step before saved for its gradient stays as it is
    state.narrow(slots, slot, 1).copy_(values)
    return state


def select_slots(
    state: Tensor, order: Tensor, *, batch: int, slots: int, tokens: int, most: int | None
) -> Tensor:
    """Pick sentences.

    Args:
        state: from :func:`write_slot`.
        order: (sentences,) int64.
        batch: dimension of the sentences.
        slots: dimension of the slots.
        tokens: written so far.
        most: slots there may be; None: any number.
    """
    if tokens != state.shape[slots] or tokens == most or state.requires_grad:
        return state.index_select(batch, order)
    # full: picked into room for the next tokens, in one copy
    shape = list(state.shape)
    shape[batch], shape[slots] = len(order), _capacity(tokens + 1, most)
    roomy = state.new_empty(shape)
    torch.index_select(state, batch, order, out=roomy.narrow(slots, 0, tokens))
    return roomy


def _with_room(state: Tensor, slots: int, most: int | None) -> Tensor:
    there = state.shape[slots]
    shape = list(state.shape)
    shape[slots] = _capacity(there + 1, most)
    roomy = state.new_empty(shape)
    roomy.narrow(slots, 0, there).copy_(state)
    return roomy
