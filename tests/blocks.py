"""Code that documentation shows, with what it prints: found, run and compared."""

import contextlib
import doctest
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["Block", "Printed", "notebook_blocks", "page_blocks", "run_blocks"]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Block(NamedTuple):
    """Code, the line at which it begins, and what it is said to print, if that is said."""

    line: int
    code: str
    output: str | None


def page_blocks(page: Path) -> Iterator[Block]:
    """The ``python`` blocks of a page, each with the output block directly below it."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    for fence, following in itertools.zip_longest(fences, fences[1:]):
        if fence[1] != "python":
            continue
        is_output = (
            following is not None
            and following[1] in {"text", "output"}
            and not text[fence.end() : following.start()].strip()
        )
        line = text.count("\n", 0, fence.start(2)) + 1
        yield Block(line, fence[2], following[2] if is_output and following else None)


def notebook_blocks(path: Path) -> Iterator[Block]:
    """The code cells of a notebook with the text that is stored below them.

    What a cell with the tag ``varies`` prints depends on the machine.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed = [
            "".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout"
        ]
        varies = "varies" in cell["metadata"].get("tags", ())
        yield Block(1, "".join(cell["source"]), None if varies else "".join(printed))


class Printed(doctest.OutputChecker):
    """Output that was printed once: the same words, and numbers as far as computers agree.

    They may differ by one of the last digit, if that is at most a tenth, or in digits after the
    eighth. Numbers below 1e-9 are rounding, and may be a hundred times as large as was said.
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether the words are the same, and the numbers nearly."""
        if super().check_output(want, got, optionflags):
            return True
        if NUMBER.sub("#", want).split() != NUMBER.sub("#", got).split():
            return False
        return all(map(_agree, NUMBER.findall(want), NUMBER.findall(got)))


def _agree(wanted: str, found: str) -> bool:
    a, b = float(wanted), float(found)
    last_digit = 1.001 * min(_last_digit(wanted), _last_digit(found))
    rounding = abs(a) < 1e-9 and abs(b) < min(1e-9, max(1e-14, 100 * abs(a)))
    return rounding or abs(a - b) <= max(min(last_digit, 0.1 * abs(a)), 1e-8 * abs(a))


def _last_digit(number: str) -> float:
    """The unit of the last digit that is printed; zero for integers, which must be right."""
    mantissa, _, exponent = number.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if decimals or exponent else 0.0


def run_blocks(
    blocks: Iterable[Block],
    path: Path,
    namespace: dict[str, object],
) -> None:
    """Run blocks in order, in one namespace, and compare what they print."""
    checker = Printed()
    for number, block in enumerate(blocks, start=1):
        # Leading newlines make a traceback point at the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(code, namespace)
        if block.output is None:
            continue
        example = doctest.Example(block.code, block.output)
        if not checker.check_output(example.want, stdout.getvalue(), 0):
            difference = checker.output_difference(example, stdout.getvalue(), 0)
            where = f"{path.name}, block {number}, line {block.line}"
            pytest.fail(f"{where}:\n{difference}", pytrace=False)
