import pytest

from mcpmix.core.errors import DataError
from mcpmix.replay import remake
from mcpmix.run import run


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A bank of four masks with two replicas each, in batches of two."""
    config = make_config(tmp_path_factory.mktemp("remaking"))
    return config, run(config, until="pairs").pairs


def test_an_image_of_the_bank_is_made_again_to_the_bit(finished):
    config, pairs = finished
    name = sorted(path.name for path in (pairs / "images").iterdir())[1]
    remade = remake(config, name, 1)
    assert remade.stored == pairs / "images" / name / "1.png"
    assert remade.difference == 0


def test_a_draw_that_the_bank_lacks_is_made_too(finished):
    config, pairs = finished
    name = sorted(path.name for path in (pairs / "images").iterdir())[0]
    remade = remake(config, name, 17)
    assert (remade.stored, remade.difference) == (None, None)
    assert remade.image.shape == (64, 64, 3)


def test_an_unknown_id_is_named_with_an_example(finished):
    with pytest.raises(DataError, match=r"No training image has the id 'x'\. Ids look like 'p0"):
        remake(finished[0], "x", 0)
