import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest


def test_it_prints_an_address_whose_token_opens_the_page(tmp_path):
    command = [sys.executable, "-m", "mcpmix", "studio", str(tmp_path), "--no-browser", "--port", "18471"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered) as it:
        try:
            line = it.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}$", line.strip())
            assert found, line
            with urllib.request.urlopen(found[0], timeout=30) as answer:
                assert "No runs here yet" in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(found[0][:-1] + "!", timeout=30).close()
        finally:
            it.terminate()
    assert list(tmp_path.iterdir()) == [tmp_path / ".studio"]


def test_a_missing_folder_is_named(mcpmix, tmp_path):
    outcome = mcpmix("studio", tmp_path / "absent", "--no-browser")
    assert outcome.code == 5
    assert "absent is not a folder" in outcome.err


def test_without_its_packages_the_extra_is_named(mcpmix, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("mcpmix.studio", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    outcome = mcpmix("studio", tmp_path, "--no-browser")
    assert outcome.code == 6
    assert "pip install 'mcpmix[studio]'" in outcome.err
