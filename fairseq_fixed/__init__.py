"""Fixed, band-projected and distance-biased encoder attention for fairseq.

`--user-dir fairseq_fixed` imports this module, then (by fairseq itself) every module in `models/`.
Importing it needs nothing.

From torch 2.6 on, `torch.load` refuses to unpickle any class that is not allowed by name. A
checkpoint written by `fairseq-train` holds `argparse.Namespace` and, after `--eval-bleu`, numpy
arrays: they are allowed, so that `fairseq-generate` and resumed training work. Nothing else is: a
checkpoint that holds another class is refused by torch, which names the class.
"""

import sys

__version__ = "0.1.0"

if "torch" in sys.modules:
    # fairseq imported it before it imports this plugin. Where nobody did yet, `models/` and
    # `checkpoints.py` see to it, so that `fairseq-fixed --help` need not wait for torch.
    from fairseq_fixed import safe_globals  # noqa: F401
