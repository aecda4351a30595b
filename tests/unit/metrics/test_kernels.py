"""Compilation, cache, memory and imports: what only shows in a fresh process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpmix.metrics import kernels as _kernels

SOURCE = str(Path(_kernels.__file__).parents[2])
PAIR = """
import numpy as np
truth, prediction = np.zeros((2, 512, 512), bool)
truth[100:300, 120:260] = prediction[110:310, 100:250] = True
"""


def run(code, **environment):
    path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_the_metrics_loads_nothing_heavy():
    heavy = "torch", "matplotlib"
    code = f"import sys, mcpmix.metrics; print([name for name in {heavy} if name in sys.modules])"
    assert run(code) == "[]"


def test_scoring_and_accumulating_need_no_torch_until_tensors_come():
    code = "from mcpmix.metrics import RegionAccumulator, score; import sys; print('torch' in sys.modules)"
    assert run(code) == "False"


def test_the_first_call_takes_less_than_three_seconds(tmp_path):
    code = (
        PAIR + "import time\nfrom mcpmix.metrics import score\n"
        "started = time.process_time()\nscore(truth, prediction)\nprint(time.process_time() - started)"
    )
    cold = float(run(code, NUMBA_CACHE_DIR=str(tmp_path)))
    assert cold < 3.0
    assert list(tmp_path.rglob("*.nbc"))
    assert float(run(code, NUMBA_CACHE_DIR=str(tmp_path))) < 0.5 * cold


def test_works_where_no_cache_folder_can_be_written():
    code = (
        "import numba.core.caching as caching\ncaching.CacheImpl._locator_classes = []\n"
        + PAIR
        + "from mcpmix.metrics import score\nprint(round(score(truth, prediction)['dsc'], 6))"
    )
    expected = 200 * (190 * 130) / (200 * 140 + 200 * 150)
    assert float(run(code)) == pytest.approx(expected)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory from /proc")
def test_large_masks_take_less_than_a_gigabyte():
    code = """
import numpy as np
from mcpmix.metrics import score
rng = np.random.default_rng(0)
noise = rng.integers(0, 2, (4096, 4096), np.uint8).view(bool)
y, x = (side.astype(np.int32) for side in np.ogrid[:4096, :4096])
disc = (y - 2000) ** 2 + (x - 2100) ** 2 < 1500**2
score(disc, np.roll(disc, 50, 0))
score(noise, disc)
score(noise, ~noise)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) / 2**20)
"""
    assert float(run(code)) < 1.0


def test_public_names_are_those_that_are_promised():
    import mcpmix.metrics as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'dice'"):
        package.dice  # noqa: B018
