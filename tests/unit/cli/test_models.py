def test_list_shows_licences_and_presence(mcpmix, monkeypatch, tmp_path):
    done = mcpmix("models", "list")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if "stable-diffusion-v1-5" in line)
    assert "OpenRAIL" in line
    assert {"yes", "no"} & set(line.split())
    for part in ("pipeline", "depth", "features"):
        assert f"embedded ({part})" in done.out


def test_build_refuses_what_own_images_cannot_teach(mcpmix, tmp_path):
    done = mcpmix("models", "build", "depth", "--images", tmp_path, "--out", tmp_path / "weights")
    assert done.code == 2
    assert "depth cannot be built from --images" in done.err


def test_build_refuses_a_base_without_its_autoencoder(mcpmix, tmp_path):
    done = mcpmix("models", "build", "base", "--out", tmp_path / "weights")
    assert done.code == 4
    assert "mcpmix models build autoencoder" in done.err
    assert not (tmp_path / "weights").exists()


def test_build_refuses_images_and_a_number_of_phantom_frames(mcpmix, tmp_path):
    done = mcpmix(
        "models", "build", "autoencoder", "--images", tmp_path, "--corpus", 4, "--out", tmp_path / "w"
    )
    assert done.code == 2
    assert "--corpus" in done.err


def test_build_of_an_empty_folder(mcpmix, tmp_path):
    done = mcpmix("models", "build", "autoencoder", "--images", tmp_path, "--out", tmp_path / "weights")
    assert done.code == 3
    assert "No images below" in done.err


def test_build_trains_goes_on_and_keeps_its_corpus(mcpmix, tmp_path):
    arguments = ("models", "build", "features", "--out", tmp_path / "weights")
    done = mcpmix(*arguments, "--steps", 2, "--corpus", 32)
    assert done.code == 0, done.err
    assert f"finished: {tmp_path / 'weights' / 'features'}" in done.out
    assert (tmp_path / "weights" / "features" / "model.safetensors").exists()
    done = mcpmix(*arguments, "--steps", 2)
    assert done.code == 0, done.err
    assert "phantom frames: 32 to do" not in done.out
    assert "features: going on at 2/2" in done.out
    done = mcpmix(*arguments, "--steps", 2, "--corpus", 40)
    assert done.code == 5
    assert "corpus of 32 frames, not of 40" in done.err
