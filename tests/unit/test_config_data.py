"""Classes: what is refused, what follows from them, and that settings without them stay as they were."""

import pytest

from mcpmix.config_file import resolve_config, to_yaml
from mcpmix.core.errors import ConfigError

FOLDER = {"data": {"images": "images", "masks": "masks"}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[polyp]", "classes: expected 2 to 255 names, got 1. For one kind of lesion leave it out"),
        ("[a,b,a]", "classes: a, b, a names one twice"),
        ("[a,../b]", "data.classes.1: String should match pattern"),
    ],
)
def test_names_that_cannot_be_classes(value, message):
    with pytest.raises(ConfigError) as caught:
        resolve_config(FOLDER, [f"data.classes={value}"])
    assert message in str(caught.value)


def test_a_phantom_draws_two_kinds_and_no_more():
    with pytest.raises(ConfigError, match="a phantom draws 2 kinds of lesion, got 3"):
        resolve_config({"data": {"source": "phantom"}}, ["data.classes=[a,b,c]"])


@pytest.mark.parametrize(
    ("classes", "labels", "channels"), [("[]", 2, 1), ("[a,b]", 3, 3), ("'a, b, c'", 4, 4)]
)
def test_labels_of_masks_and_channels_of_networks(classes, labels, channels):
    data = resolve_config(FOLDER, [f"data.classes={classes}"]).data
    assert (data.labels, data.channels) == (labels, channels)


def test_without_classes_nothing_is_written_about_them():
    assert "classes" not in to_yaml(resolve_config(FOLDER))
    config = resolve_config(FOLDER, ["data.classes=[adenoma,cancer]"])
    assert type(config).model_validate(config.model_dump(mode="json")) == config
