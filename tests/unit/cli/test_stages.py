import pytest


@pytest.mark.parametrize("text", ["p000_f01", "p000_f01:", ":2", "p000_f01:two", "p000_f01:-1"])
def test_only_takes_an_id_and_a_replica(mcpmix, config, text):
    ended = mcpmix("synthesize", config, "--only", text)
    assert ended.code != 0
    assert f"--only takes ID:REPLICA, as p000_f01:2, got {text!r}" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    "command",
    ["run", "depth", "finetune", "synthesize", "synthesize --only a:0", "train", "evaluate", "report"],
)
def test_every_stage_checks_the_settings_before_anything_is_made(mcpmix, config, command):
    name, *options = command.split()
    ended = mcpmix(name, config, "train.arms=[full-sup, mixupp]", *options)
    assert ended.code == 2
    assert "no strategy 'mixupp'" in ended.err
    assert not list(config.parent.rglob("dataset"))
