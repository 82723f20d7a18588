"""Build entry of the distribution `fairseq-fixed-attention` (package `fairseq_fixed`).

The name is not `fairseq-fixed`: that is a published fork of fairseq itself, which pip would
replace. fairseq is an extra for the same reason: who has fairseq 0.12.x keeps it.
"""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="fairseq-fixed-attention",
    version="0.1.0",
    description="Fixed, band-projected and distance-biased encoder attention for fairseq",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    packages=[
        *find_packages(include=["fairseq_fixed", "fairseq_fixed.*"]),
        # configs/ and data/ live at the top of the repository and travel inside the package.
        "fairseq_fixed.configs",
        "fairseq_fixed.data",
    ],
    package_dir={"fairseq_fixed.configs": "configs", "fairseq_fixed.data": "data"},
    package_data={
        "fairseq_fixed.configs": ["**/*.yaml", "*.yaml"],
        "fairseq_fixed.bench": ["*.json"],
        "fairseq_fixed.data": ["contrast/*.tsv"],
    },
    install_requires=[
        "torch>=2.6",
        "numpy",
        "sacrebleu>=2.0",
        "sentencepiece",
        "pysword",
        "typer>=0.19",
        "rich",
        "matplotlib",
        "tensorboardX",
    ],
    extras_require={
        # Not required: beside stock fairseq 0.12.2 they would replace the versions that it needs.
        # The fork below brings its own.
        "recipes": ["hydra-core>=1.2"],
        "fairseq": ["fairseq-fixed==0.12.3.1"],
        # A peer of `fairseq-fixed bench`; without it that row is left out.
        "bench": ["local-attention==1.11.2"],
        # fairseq-fixed run … -m --search N, and --slurm
        "search": ["optuna>=4"],
        "slurm": ["submitit>=1.5"],
        "dev": ["pytest", "pytest-timeout", "hypothesis", "ruff", "mypy"],
    },
    entry_points={"console_scripts": ["fairseq-fixed=fairseq_fixed.cli:main"]},
)
