import re
from pathlib import Path

import torch
from torch import nn

import mcpmix

ROOT = Path(__file__).parents[3]


def somebody():
    """A model, features, a loss and data that know nothing of this package."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 1))
    phi = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    masks = (torch.rand(4, 1, 10, 10) > 0.6).float()
    real = masks + 0.5 * torch.randn(4, 3, 10, 10)
    return model, phi, nn.BCEWithLogitsLoss(), real, 0.6 * torch.randn(4, 3, 10, 10) + 0.5, masks


def test_five_lines_in_somebody_elses_loop():
    model, phi, criterion, real, synthetic, masks = somebody()

    rla = mcpmix.RLA(
        epochs=12,
        features=phi,
        s_max=0.7,
        rho_max=0.5,
        mu=1.0,
        tau0=0.05,
        lambda_s=1e-3,
        lambda_rho=1e-3,
        controller="network",
    )
    gates = {"params": rla.gate_parameters(), "lr": rla.gate_learning_rate(steps=60), "weight_decay": 0.0}
    optimiser = torch.optim.AdamW([{"params": model.parameters()}, gates], lr=1e-2)
    history = []
    for t in range(1, 13):
        rla.set_epoch(t)
        for _ in range(5):
            mixed = rla.mix(real, synthetic)
            out = rla.loss(criterion(model(real), masks), criterion(model(mixed), masks), real, mixed)
            optimiser.zero_grad()
            out.total.backward()
            optimiser.step()
        history.append((float(out.total.detach()), float(rla.s.detach()), float(rla.rho.detach())))
    assert history[-1][0] < history[0][0]
    assert history[-1][1] < history[0][1] < 0.35 + 0.05
    assert 0.0 < history[-1][2] < 0.5


def code(page, section=""):
    """The one block of Python of a page, or of a section of it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(section)[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    return block


def test_the_loop_of_the_page_runs():
    model, phi, criterion, real, synthetic, masks = somebody()
    names = {
        "torch": torch,
        "epochs": 3,
        "steps": 6,
        "model": model,
        "phi": phi,
        "criterion": criterion,
        "loader": [(real, synthetic, masks)] * 2,
    }
    exec(code("docs/rla.md"), names)
    assert float(names["rla"].psi.detach()) != 0.0
    assert float(names["rla"].zeta.detach()) != 0.0
    assert int(names["rla"].epoch) == 3


def test_the_code_of_the_readme_runs_as_it_is():
    torch.manual_seed(0)
    names = {}
    exec(code("README.md", "## RLA in your own loop\n"), names)
    rla, optimiser = names["rla"], names["optimiser"]
    assert int(rla.epoch) == names["epochs"]
    assert float(rla.psi.detach()) != 0.0
    assert float(rla.zeta.detach()) != 0.0
    assert optimiser.param_groups[1]["lr"] != optimiser.param_groups[0]["lr"]
    assert optimiser.param_groups[1]["weight_decay"] == 0.0
