"""Allows the classes that `fairseq-train` saves in checkpoints, and nothing else.

Its options are an `argparse.Namespace`; with `--eval-bleu` the validation's counts of n-grams are
numpy arrays. Beyond their data arrays hold nothing: what they are made of is checked likewise.
"""

import argparse

import torch


def _arrays() -> list:
    """Return what pickled arrays and scalars of whole numbers and floats are made with."""
    try:
        import numpy as np
    except ImportError:  # attention alone needs torch alone
        return []
    core = getattr(np, "_core", None) or np.core
    kinds = {type(np.dtype(name)) for name in ("int64", "int32", "float64", "float32", "bool")}
    multiarray = core.multiarray
    return [np.ndarray, np.dtype, multiarray._reconstruct, multiarray.scalar, *kinds]


torch.serialization.add_safe_globals([argparse.Namespace, *_arrays()])
