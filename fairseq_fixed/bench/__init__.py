"""Speed and memory of the encoder's heads, beside every peer, in interleaved runs of one process.

Machines are noisy: contenders take turns, each once a round in an order drawn anew, and what is
reported is the median of the rounds' ratios with its quartiles. `fairseq-fixed bench` runs it.
"""
