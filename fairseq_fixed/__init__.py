"""Fixed, band-projected and distance-biased encoder attention for fairseq.

`--user-dir fairseq_fixed` imports this module, then (by fairseq itself) every module in `models/`.
Importing it needs torch alone.

From torch 2.6 on, `torch.load` refuses to unpickle any class that is not allowed by name. A
checkpoint written by `fairseq-train` holds exactly one such class, `argparse.Namespace`: it is
allowed here, so that `fairseq-generate` and resumed training work. Nothing else is: a checkpoint
that holds another class is refused by torch, which names the class.
"""

import argparse

import torch

__version__ = "0.1.0"

torch.serialization.add_safe_globals([argparse.Namespace])
