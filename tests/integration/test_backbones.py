"""Every backbone learns under every arm: a few steps on the phantom, through the trainer of stage 3."""

import pytest

from mcpmix.core.progress import SILENT
from mcpmix.run import run
from mcpmix.segmenter import train

BACKBONES = {"segformer": "nano", "unet": "mobilenet_v2", "deeplabv3plus": "mobilenet_v2", "segnet": "small"}
ARMS = {"full-sup": "loss_real", "mixup": "loss_mixed", "mcpmix": "loss_real", "mcpmix-rla": "loss_real"}
SETTINGS = [
    "data.phantom.train_patients=2",
    "data.phantom.frames_per_patient=4",
    "train.epochs=6",
    "train.batch_size=4",
    "train.learning_rate=3e-3",
    "train.validate_every=6",
    "train.arms=[full-sup, mixup, mcpmix, mcpmix-rla]",
    "segmenter.weights=null",  # all from scratch
]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Shared by all cases: data, generator and pairs are made once."""
    return tmp_path_factory.mktemp("backbones")


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_learns_under_an_arm(make_config, output, tmp_path, monkeypatch, name, arm):
    config = make_config(output, *SETTINGS, f"segmenter.name={name}", f"segmenter.variant={BACKBONES[name]}")
    # Checkpoints would take most of the time.
    monkeypatch.setattr(train, "save_state", lambda *_: None)
    made = run(config, until="inputs")
    trainer = train.Trainer(config, made.inputs(config, arm), arm, 0, tmp_path, made.runtime)
    try:
        trainer.fit(SILENT)
    finally:
        trainer.close()
    losses = [row[ARMS[arm]] for row in trainer.log.rows()]
    assert len(losses) == 6
    assert min(losses[-2:]) < 0.8 * losses[0]
