"""Wheels of a few bytes, made on the spot: no network, no build."""

import zipfile


def make_wheel(folder, name, version="1.0", *, needs=(), about=("License-Expression: MIT",)):
    """A wheel with one module `name.py` whose `VALUE` is the version."""
    place = f"{name}-{version}.dist-info"
    facts = [f"Name: {name}", f"Version: {version}", *about, *(f"Requires-Dist: {item}" for item in needs)]
    content = {
        f"{name}.py": f"VALUE = {version!r}\n",
        f"{place}/METADATA": "\n".join(["Metadata-Version: 2.1", *facts]) + "\n",
        f"{place}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{place}/RECORD"] = "".join(f"{file},,\n" for file in [*content, f"{place}/RECORD"])
    file = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for member, text in content.items():
            archive.writestr(member, text)
    return file
