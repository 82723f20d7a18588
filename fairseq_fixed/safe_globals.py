"""Allows the one class that `fairseq-train` saves in checkpoints, and nothing else."""

import argparse

import torch

torch.serialization.add_safe_globals([argparse.Namespace])
