"""Counts: the design's limits, and torch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_fixed.bench.batches import Batch, make_tokens
from fairseq_fixed.bench.counting import attention_macs, counted_limit, step_macs
from fairseq_fixed.bench.models import ModelSettings, build_all, parse_options, parse_systems
from fairseq_fixed.bench.peers.dense import Dense
from fairseq_fixed.bench.peers.fairseq_attention import FairseqAttention
from fairseq_fixed.bench.peers.mixed import Mixed
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.bench.settings import Place
from fairseq_fixed.bench.step import make_sample
from fairseq_fixed.heads import parse_mix


@pytest.mark.parametrize(
    ("mix", "n", "forward", "both"),
    [
        # the table of the design: d = 512, 8 heads
        ("7f+1l", 25, 1.81, 1.82),
        ("7f+1l", 256, 2.11, 2.16),
        ("7f+1l", 1024, 2.91, 3.06),
        ("8f", 25, 2.05, None),
        ("8f", 256, 2.5, None),
        ("8f", 1024, 4.0, None),
        ("8f", 4096, 10.0, 11.3),
        ("8xband:8", 4096, 4.9, 5.6),
        ("8l", 77, 1.0, 1.0),
    ],
)
def test_the_counted_limits_are_those_of_the_design(mix, n, forward, both):
    specs = parse_mix(mix)
    digits = 0.05 if n == 4096 else 0.005
    assert counted_limit(specs, [(3, n)], 512, False) == pytest.approx(forward, abs=digits)
    if both is not None:
        assert counted_limit(specs, [(3, n)], 512, True) == pytest.approx(both, abs=digits)


def test_a_band_as_wide_as_the_sentence_is_learned_attention():
    assert attention_macs(parse_mix("8xband:99"), 20, 64) == attention_macs(parse_mix("8l"), 20, 64)
    narrow = attention_macs(parse_mix("8xband:2:3"), 100, 64)
    assert narrow.scores == 8 * 2 * (2 * 2 + 1 + 3) * 8  # heads, products, keys, channels


def multiply_adds(work) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 2


def test_learned_attention_is_counted_as_torch_counts_it():
    # with dropout it is plain products, forward and backward
    d, lengths = 32, [12] * 3
    batch = Batch(make_tokens(lengths, "left", 50, 1), 1, d, torch.float32, 1)
    layer = FairseqAttention(Projections.draw(d, 0), d, 8, 0.1)
    x = batch.inputs(False)[0]
    macs = attention_macs(parse_mix("8l"), 12, d).times(36)
    assert multiply_adds(lambda: layer(x, None)) == macs.total(False)
    both = multiply_adds(lambda: layer(x, None).sum().backward())
    # nothing is recomputed here: the backward pass is twice the forward
    assert both == 3 * (macs.products + macs.scores)


@pytest.mark.parametrize("mix", ["8f", "7f+1l", "4xlearned+4xprevious"])
def test_a_mixes_projections_are_counted_as_torch_counts_them(mix):
    d, n = 32, 12
    batch = Batch(make_tokens([n] * 3, "left", 50, 1), 1, d, torch.float32, 1)
    specs = parse_mix(mix)
    layer = Mixed(specs, Projections.draw(d, 0), d, 0.1)
    layer.train()
    prepared = layer.prepare(batch.tokens)
    macs = attention_macs(specs, n, d).times(3 * n)
    found = multiply_adds(lambda: layer(batch.inputs(False)[0], prepared))
    # fixed heads may use small products, which are not counted: O(k) additions a token
    assert macs.total(False) <= found <= macs.total(False) + 8 * n * d * 3 * n


def test_dense_patterns_cost_what_learned_mixing_costs():
    d, n = 32, 12
    batch = Batch(make_tokens([n] * 3, "left", 50, 1), 1, d, torch.float32, 1)
    layer = Dense(parse_mix("8f"), Projections.draw(d, 0), d, 0.0)
    prepared = layer.prepare(batch.tokens)
    found = multiply_adds(lambda: layer(batch.inputs(False)[0], prepared))
    assert found == (2 * d * d + n * d) * 3 * n


def test_a_training_step_is_counted_as_torch_counts_it():
    models = ModelSettings(
        parse_systems("8l"),
        "fixed_transformer_tiny",
        parse_options(
            [
                "encoder_embed_dim=32",
                "decoder_embed_dim=32",
                "encoder_ffn_embed_dim=48",
                "decoder_ffn_embed_dim=40",
                "encoder_layers=2",
                "decoder_layers=3",
            ]
        ),
        vocabulary=60,
    )
    vanilla = build_all(models, 1, attention_dropout=0.1)["fairseq"]
    sample = make_sample([(9, 6), (9, 6), (9, 6), (9, 6)], Place(), 60, 1)
    attention, whole = step_macs(models.sizes(), [parse_mix("8l")] * 2, [(4, 9, 6)])
    found = multiply_adds(lambda: vanilla(**sample["net_input"]))
    assert found == whole.total(False)
    assert attention.total(False) == attention_macs(parse_mix("8l"), 9, 32).total(False) * 36 * 2
