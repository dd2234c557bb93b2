"""Files are whole, old or new, whatever happens while they are written."""

import os
import subprocess
import sys
import time

import pytest

import shoal

NETWORK = shoal.ImplicitNetwork(gamma=0.4)


def network(seed=0):
    return shoal.build(NETWORK, in_features=3, width=16, seed=seed)


def test_a_killed_save_leaves_a_whole_file(tmp_path):
    path = tmp_path / "net.safetensors"
    shoal.save(network(), path)
    code = (
        "import sys, shoal\n"
        "net = shoal.load(sys.argv[1])\n"
        "while True:\n"
        "    shoal.save(net, sys.argv[1])\n"
        "    print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        for _ in range(20):
            process.stdout.readline()
            shoal.load(path)  # whole at any moment
        time.sleep(0.003)
        process.kill()
    assert shoal.load(path).spec == network().spec


@pytest.mark.parametrize("error", [RuntimeError("enough"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file(tmp_path, monkeypatch, error):
    def fail(tensors, file, metadata):  # noqa: ARG001
        file.write_bytes(b"half")
        raise error

    path = tmp_path / "net.safetensors"
    shoal.save(network(), path)
    before = path.read_bytes()
    monkeypatch.setattr("shoal.networks.saving.save_file", fail)
    with pytest.raises(type(error)):
        shoal.save(network(seed=1), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["net.safetensors"]


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere" / "net", tmp_path / "folder", tmp_path / f"{'n' * 300}"):
        with pytest.raises(OSError, match=f"'{path}'"):
            shoal.save(network(), path)
    assert os.listdir(tmp_path) == ["folder"]
    shoal.save(network(), tmp_path / "new")
    (tmp_path / "plain").touch()
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
