"""The README shows what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.cli.loading import load_program

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_plan_is_what_describe_prints() -> None:
    topology = load_program(ROOT / "examples" / "word_count.py").topology
    assert topology.describe() in README


def test_first_pipeline_is_that_of_the_example(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    program = tmp_path / "of_the_readme.py"
    program.write_text(block[1])
    shown = load_program(program).topology
    assert shown.describe() == load_program(ROOT / "examples" / "word_count.py").topology.describe()


def test_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
