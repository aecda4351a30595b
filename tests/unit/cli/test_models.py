def test_list_shows_licences_and_presence(mcpmix):
    done = mcpmix("models", "list")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if "stable-diffusion-v1-5" in line)
    assert "OpenRAIL" in line
    assert {"yes", "no"} & set(line.split())


def test_digest_prints_a_pin_that_is_then_accepted(mcpmix, random_models):
    done = mcpmix("models", "digest", random_models / "depth")
    assert done.code == 0, done.err
    assert mcpmix("models", "digest", done.out.strip()).out == done.out
    wrong = mcpmix("models", "digest", f"{random_models / 'depth'}@sha256:{'0' * 64}")
    assert (wrong.code, "not the pinned ones" in wrong.err) == (4, True)
