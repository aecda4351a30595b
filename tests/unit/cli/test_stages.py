import pytest


@pytest.mark.parametrize("text", ["p000_f01", "p000_f01:", ":2", "p000_f01:two", "p000_f01:-1"])
def test_only_takes_an_id_and_a_replica(mcpmix, config, text):
    ended = mcpmix("synthesize", config, "--only", text)
    assert ended.code != 0
    assert f"--only takes ID:REPLICA, as p000_f01:2, got {text!r}" in " ".join(ended.err.split())
