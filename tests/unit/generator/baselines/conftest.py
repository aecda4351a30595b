import pytest

from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.generator.baselines.labelled_set import Real, Sources
from mcpmix.run import run


@pytest.fixture(scope="package")
def prepared(make_config, tmp_path_factory):
    """A run up to its generator, with what the baselines read."""
    config = make_config(tmp_path_factory.mktemp("prepared"))
    made = run(config, until="generator")
    sources = Sources(read_artifact(config.folder / "dataset"), generator=made.generator)
    return config, sources, made.runtime


@pytest.fixture
def real(prepared):
    """Four training images whose lesions may be of any size."""
    config, sources, _ = prepared
    records = DatasetIndex.read(sources.dataset).part("train")
    return Real(records, load_arrays(records, config.data.size), (1e-6, 1.0))


@pytest.fixture
def any_area(monkeypatch):
    """Two steps of training teach no areas: masks of any size are labels."""
    monkeypatch.setattr("mcpmix.generator.baselines.labelled_set._areas", lambda _: (0.0, 1.0))
