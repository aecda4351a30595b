from mcpmix.networks.features import resnet_file


def test_list_shows_licences_and_presence(mcpmix):
    done = mcpmix("models", "list")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if "stable-diffusion-v1-5" in line)
    assert "OpenRAIL" in line
    assert {"yes", "no"} & set(line.split())
    for part in ("pipeline", "control", "depth", "features", "segmenter"):
        assert f"embedded ({part})" in done.out


def test_list_finds_the_resnet_in_the_cache_of_torch(mcpmix, monkeypatch, tmp_path):
    def here():
        line = next(line for line in mcpmix("models", "list").out.splitlines() if "resnet50" in line)
        return {"yes", "no"} & set(line.split())

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert here() == {"no"}
    resnet_file().parent.mkdir(parents=True)
    resnet_file().write_bytes(b"weights")
    assert here() == {"yes"}


def test_digest_prints_a_pin_that_is_then_accepted(mcpmix, random_models):
    done = mcpmix("models", "digest", random_models / "depth")
    assert done.code == 0, done.err
    pin = done.out.strip()
    assert pin.startswith(f"{random_models / 'depth'}@sha256:")
    assert mcpmix("models", "digest", pin).out.strip() == pin
    done = mcpmix("models", "digest", f"{random_models / 'depth'}@sha256:{'0' * 64}")
    assert done.code == 4
    assert "not the pinned ones" in done.err
