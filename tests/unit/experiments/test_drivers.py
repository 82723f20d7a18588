"""scripts/recipes: every recipe's driver is what its dry run prints, on any machine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairseq_fixed.cli import app
from fairseq_fixed.experiments import machine, recipe, resources, script, stages

SCRIPTS = resources.import_root() / "scripts/recipes"
RECIPES = [f.stem for f in recipe.recipe_files() if f.parent.name == "recipe"]
AGAIN = "; after a change to recipes or commands: bash scripts/recipes/make.sh"


def driver(name):
    experiment = recipe.load(name, tools=False)
    return script.render_driver(experiment, stages.compile_plan(experiment))


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "custom"])
def test_a_driver_is_what_a_dry_run_prints(name, monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("3", "5"))
    monkeypatch.setattr(machine, "available_cores", lambda: 7)
    text = (SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    assert text == driver(name), f"scripts/recipes/{name}.sh is out of date{AGAIN}"


def test_the_command_line_prints_the_same():
    done = CliRunner().invoke(app, ["run", "bible_en_es", "--dry-run"])
    assert done.exit_code == 0
    assert done.stdout == (SCRIPTS / "bible_en_es.sh").read_text(encoding="utf-8")


def test_there_is_a_driver_for_every_recipe_and_no_other():
    assert {f.stem for f in SCRIPTS.glob("*.sh")} == {*RECIPES, "make"}


@pytest.mark.parametrize("file", sorted(SCRIPTS.glob("*.sh")), ids=lambda file: file.stem)
def test_a_driver_is_bash_and_knows_nothing_of_this_machine(file):
    subprocess.run(["bash", "-n", str(file)], check=True)
    text = file.read_text(encoding="utf-8")
    for place in (resources.import_root(), sys.prefix, Path.home()):
        assert not re.search(rf"{re.escape(str(place))}(/|$)", text, re.MULTILINE)
    assert not re.search(r"(?<![\w.:/$}!])/(home|root|work|tmp|usr|opt)/", text)
