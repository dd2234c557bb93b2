"""Build the release twice, compare the bytes, and install it with each of several Pythons.

    python .ci/release.py [--dist DIR] [--torch VERSION ...] --python PYTHON ...

It needs the package ``build`` and git. What is built is the last commit, in folders of their own,
with its date (``SOURCE_DATE_EPOCH``), so that anybody gets the same bytes. For every PYTHON, in an
environment that is empty before:

- a notebook of the gallery is run as a hosted service would run it: alone in a folder, with the
  wheel beside it, which its first cell installs, with the newest of everything on the index (or
  the torch of ``--torch``, which is there before); ``pip check`` has nothing to say;
- the library and the command line do a small job, in an empty folder;
- the wheel that this Python builds from the source archive is the released one, byte for byte, and
  installing the source archive in its place works as well.

It prints the rows of the table in docs/install.md.
"""

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "gallery" / "gaussian_processes.ipynb"

LIBRARY = """
import json, pathlib, platform, sys
import torch
import shoal

package = pathlib.Path(shoal.__file__).parent
assert package.is_relative_to(sys.prefix), f"shoal was imported from {package}"
assert (package / "py.typed").is_file(), "py.typed is missing"

deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
x = torch.nn.functional.normalize(torch.tensor([[3.0, 1.0], [1.0, 2.0], [-1.0, 1.0]]).double())
ntk = shoal.kernel(deq, x).ntk
shallow = shoal.design(deq, input_norm=1.0, which="ntk", method="sphere").architecture
assert (ntk - shoal.kernel(shallow, x).ntk).abs().max() < 1e-8, "the design has another kernel"
net = shoal.build(deq, in_features=2, width=512, out_features=1, dtype=torch.float64)
net(x).square().sum().backward()
assert (shoal.empirical_kernel(net, x).ntk - ntk).abs().max() < 0.2, "the network is another"
print(json.dumps([platform.python_version(), torch.__version__]))
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command outside the tree; what it prints is returned, or shown if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = inherited | {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every archive in a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def build(dist: Path, scratch: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of the last commit, built in two folders and the same."""
    commit, date = run("git", "log", "-1", "--format=%H %ct", cwd=ROOT).split()
    run("git", "archive", "--output", scratch / "source.tar", commit, cwd=ROOT)
    for attempt in ("first", "second"):
        source = scratch / attempt / "source"
        source.mkdir(parents=True)
        run("tar", "--extract", "--file", scratch / "source.tar", cwd=source)
        out = scratch / attempt / "dist"
        run(sys.executable, "-m", "build", "--outdir", out, cwd=source, SOURCE_DATE_EPOCH=date)
    first, second = (checksums(scratch / attempt / "dist") for attempt in ("first", "second"))
    if first != second:
        raise SystemExit(f"two builds of one commit differ:\n{first}\n{second}")
    dist.mkdir(parents=True, exist_ok=True)
    for name, checksum in first.items():
        (dist / name).write_bytes((scratch / "first" / "dist" / name).read_bytes())
        print(f"{checksum}  {name}", flush=True)
    (wheel,) = (dist / name for name in first if name.endswith(".whl"))
    (archive,) = (dist / name for name in first if name.endswith(".tar.gz"))
    return wheel, archive


def date_in(archive: Path) -> str:
    """The date that a source archive gives to what is in it: SOURCE_DATE_EPOCH of its build."""
    with tarfile.open(archive) as files:
        return str(int(files.getmembers()[0].mtime))


def smoke(python: Path, version: str, folder: Path) -> tuple[str, str]:
    """Let the installed library and command do a small job; which Python and torch did it."""
    shoal = python.parent / "shoal"
    if (said := run(shoal, "--version", cwd=folder).strip()) != f"shoal {version}":
        raise SystemExit(f"this is not version {version}: {said}")
    job = ("analyze", "--n", "60", "--only", "well_posedness,kernels", "--output", "analysis")
    run(shoal, *job, cwd=folder)
    if "</html>" not in (folder / "analysis" / "report.html").read_text(encoding="utf-8"):
        raise SystemExit("shoal analyze wrote no page")
    run(python, "-m", "pip", "check", cwd=folder)
    return tuple(json.loads(run(python, "-W", "error", "-c", LIBRARY, cwd=folder)))


def hosted(python: Path, wheel: Path, folder: Path) -> None:
    """Run the cells of a notebook where nothing is but the wheel beside it, and torch perhaps."""
    alone = folder / "hosted"
    alone.mkdir()
    shutil.copy(wheel, alone)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (alone / "cells.py").write_text("\n\n\n".join(code), encoding="utf-8")
    run(python, "cells.py", cwd=alone, MPLBACKEND="agg", PIP_NO_CACHE_DIR="1", PIP_NO_COMPILE="1")


def install(wheel: Path, archive: Path, interpreter: str, torch: str | None) -> str:
    """A row of the table: the wheel, then the source archive, in an environment of its own."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="shoal-release-") as name:
        folder = Path(name)
        run(interpreter, "-m", "venv", folder / "environment", cwd=folder)
        python = folder / "environment" / "bin" / "python"
        pip = (python, "-m", "pip", "--no-cache-dir")
        if torch:
            run(*pip, "install", "--no-compile", f"torch=={torch}", cwd=folder)
        hosted(python, wheel, folder)
        found = smoke(python, version, folder)

        rebuild = (*pip, "wheel", "--no-deps", "--wheel-dir", "rebuilt", archive)
        run(*rebuild, cwd=folder, SOURCE_DATE_EPOCH=date_in(archive))
        if (folder / "rebuilt" / wheel.name).read_bytes() != wheel.read_bytes():
            raise SystemExit(f"{interpreter} builds another wheel from {archive.name}")
        run(*pip, "uninstall", "--yes", "shoal-deq", cwd=folder)
        run(*pip, "install", "--no-compile", archive, cwd=folder)
        smoke(python, version, folder)
    today = datetime.datetime.now(datetime.UTC).date()
    return f"| {found[0]} | {found[1]} | works | works | works, builds the same wheel | {today} |"


def main() -> None:
    """Build, then install with every Python and every torch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where archives are kept")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--torch", nargs="*", help="versions of torch (default: the newest)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-build-") as scratch:
        wheel, archive = build(given.dist.resolve(), Path(scratch))
    print("| Python | torch | notebook | wheel | source archive | on |\n|---|---|---|---|---|---|")
    for interpreter in given.python:
        for torch in given.torch or [None]:
            print(install(wheel, archive, interpreter, torch), flush=True)


if __name__ == "__main__":
    main()
