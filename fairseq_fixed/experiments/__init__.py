"""Experiments: a recipe becomes a plan of ordinary commands, run, resumed, scored and reported.

recipe (YAML, composed by Hydra) → :class:`schema.Recipe` (validated, all errors at once) →
:class:`plan.Plan` (stages: a command, what it reads, what it writes) → :mod:`runner` (several
stages at once, stamps, resume) → :mod:`report`.
"""
