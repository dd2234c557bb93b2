"""Run the scripts of the page in a JavaScript engine."""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shoal.app.explorer import NUMERICS, script, stored_tables

_TOOLS = """
const { tables, given } = JSON.parse(require("fs").readFileSync(0));
const known = {};
function activation(name) {
  known[name] ??= new Activation(name, tables.activations[name], tables.scales, tables.unit);
  return known[name];
}
const model = (setting) => ({ ...setting, activation: activation(setting.activation) });
"""


def engine() -> str:
    """The path of Node.js: that of the system, or the one inside Playwright."""
    found = shutil.which("node")
    if found is None and (spec := find_spec("playwright")) is not None and spec.origin:
        inside = Path(spec.origin).parent / "driver" / "node"
        found = str(inside) if inside.exists() else None
    if found is None:
        pytest.skip("no JavaScript engine: install Node.js, or pip install playwright")
    return found


def evaluated(expression: str, given: Any) -> Any:
    """What an expression in ``given`` and ``model`` is worth, through JSON."""
    code = "\n".join([*map(script, NUMERICS), _TOOLS])
    code += f"process.stdout.write(JSON.stringify({expression}));"
    text = json.dumps({"tables": stored_tables(), "given": given})
    done = subprocess.run(
        [engine(), "-e", code], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
