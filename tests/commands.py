"""Running commands in this process, and looking at what they leave behind."""

from pathlib import Path

from typer.testing import CliRunner

from shoal.app.cli import app


def run(*arguments: str, code: int = 0):
    """Run a command in this process, which must end with a code, and without a traceback."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def files(folder: Path | str = ".") -> list[str]:
    """The files in a folder and below, hidden ones too."""
    place = Path(folder)
    return sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
