"""What an archive for a machine without internet holds: wheels, weights, documentation, presets."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from mcpmix import __version__
from mcpmix.config_file import load_config, weight_sources
from mcpmix.core.errors import ModelError
from mcpmix.core.reading import is_stray
from mcpmix.networks.weight_files import (
    EMBEDDED,
    PICKLES,
    UNUSED,
    licence_of,
    resnet_file,
    resolve,
    resolve_file,
    split_pin,
)
from mcpmix.pack.archive import Members
from mcpmix.pack.unpack import EXPECTED, WHEELS
from mcpmix.pack.wheels import Target, licence_of_wheel, missing_wheels

_DOCS = Path(__file__).parents[3] / "docs"  # of a checkout


def installation(
    wheels: Path,
    own: Path,
    target: Target,
    *,
    extras: Sequence[str] = (),
    config: Path | None = None,
    expected: Path | None = None,
) -> tuple[Members, dict[str, Any]]:
    """The members and the facts of an archive that installs mcpmix.

    Args:
        wheels: folder with the wheels of other packages; none need be there.
        own: the wheel of mcpmix.
        extras: of mcpmix, such as `studio`.
        config: a configuration whose weights are packed.
        expected: `table.json` of a test run, to compare with.
    """
    members: dict[str, Path | bytes] = {f"{WHEELS}/{own.name}": own}
    others = sorted(path for path in wheels.glob("*.whl") if not path.name.startswith("mcpmix-"))
    members |= {f"{WHEELS}/{path.name}": path for path in others}
    for preset in sorted(Path(str(resources.files("mcpmix") / "presets")).glob("*.yaml")):
        members[f"presets/{preset.name}"] = preset
    missing = missing_wheels(own, extras, target, wheels)
    docs = [
        path for path in sorted(_DOCS.rglob("*")) if path.is_file() and not is_stray(path.relative_to(_DOCS))
    ]
    members |= {f"docs/{path.relative_to(_DOCS).as_posix()}": path for path in docs}
    missing += [] if docs else ["docs: they are in a checkout, not in an installed package"]
    weights: list[dict[str, str]] = []
    if config is not None:
        files, weights, absent = weights_of(config)
        members |= {"configuration.yaml": config, **files}
        missing += absent
    if expected is not None:
        members[EXPECTED] = expected
    count = len({entry["place"] for entry in weights})
    facts = {
        "holds": f"mcpmix {__version__}, {len(others)} wheels of other packages, {count} sets of weights",
        "python": target.python,
        "platforms": list(target.platforms),
        "requirement": f"mcpmix[{','.join(extras)}]=={__version__}",
        "licences": {path.name: licence_of_wheel(path) for path in [own, *others]},
        "weights": weights,
        "missing": missing,
    }
    return members, facts


def weights_of(config: Path) -> tuple[Members, list[dict[str, str]], list[str]]:
    """The weights that a configuration names: files, where each setting finds them, and what is not here.

    Embedded weights are in the wheel. Pickles are left behind, except that the one of ResNet-50, which has no
    other form, becomes a safetensors file.
    """
    files: dict[str, Path | bytes] = {}
    entries, absent = [], []
    for setting, source in weight_sources(load_config(config)).items():
        name, _ = split_pin(source)
        if name == EMBEDDED:
            continue
        place = (
            f"weights/{name.strip('/').replace('/', '--') if not Path(name).exists() else Path(name).name}"
        )
        try:
            if name == "resnet50":
                place += ".safetensors"
                files[place] = _resnet_as_safetensors()
            elif (file := resolve_file(source)) is not None:
                files[place] = file
            else:
                folder = resolve(source, "")
                files |= {f"{place}/{path.relative_to(folder).as_posix()}": path for path in _needed(folder)}
        except ModelError as error:
            absent.append(f"weights of {setting}: {error}")
            continue
        entries.append({"setting": setting, "name": name, "place": place, "licence": licence_of(source)})
    return files, entries, absent


def _needed(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in PICKLES)
    return [
        path for path in found if path.parent.name not in UNUSED and not is_stray(path.relative_to(folder))
    ]


def _resnet_as_safetensors() -> bytes:
    import torch  # heavy
    from safetensors.torch import save

    path = resnet_file()
    if not path.is_file():
        raise ModelError(f"{path} is not on this machine.")
    return save(torch.load(path, map_location="cpu", weights_only=True))
