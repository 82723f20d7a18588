"""The fairseq side: layers, encoder, decoder, model and architectures.

fairseq imports every module here by itself under `--user-dir`. Where `fairseq_fixed` was imported
before fairseq saw `--user-dir`, fairseq skips that: importing this package does the same.
"""

from fairseq_fixed import safe_globals  # noqa: F401
from fairseq_fixed.models import architectures
from fairseq_fixed.models.decoder import FixedTransformerDecoder
from fairseq_fixed.models.decoder_layer import FixedTransformerDecoderLayer
from fairseq_fixed.models.encoder import FixedTransformerEncoder
from fairseq_fixed.models.layer import FixedTransformerEncoderLayer
from fairseq_fixed.models.model import FixedTransformerModel

__all__ = [
    "FixedTransformerDecoder",
    "FixedTransformerDecoderLayer",
    "FixedTransformerEncoder",
    "FixedTransformerEncoderLayer",
    "FixedTransformerModel",
    "architectures",
]
