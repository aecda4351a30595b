"""No dead settings, and no default in two places.

Every field of the configuration is read by code outside of it.

A field counts as read where a file that knows its section (reads `.train` or names `TrainConfig`) reads
`.epochs`, or where the section is passed on as arguments, `f(**config.train.model_dump())`: a function
refuses arguments that it does not have. Fields that only a property of their section reads
(`Config.folder`) count if that property is read.
"""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

import mcpmix
from mcpmix.config import Config
from mcpmix.config_training import RLAConfig
from mcpmix.mixing.mcpmix import CosineMix, StepwiseMix, UniformMix
from mcpmix.mixing.rla import RLA, RLAMix

PACKAGE = Path(mcpmix.__file__).parent
SECTIONS = ("config.py", "config_data.py", "config_training.py")


@dataclass(frozen=True)
class Leaf:
    """A setting: `train.epochs` is the field `epochs` of `TrainConfig`, which is called `train`."""

    path: str
    section: type[BaseModel]
    called: str
    field: str


def leaves(section, path=""):
    """All settings below a section, recursively."""
    for field, info in section.model_fields.items():
        place = f"{path}.{field}".lstrip(".")
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from leaves(info.annotation, place)
        else:
            yield Leaf(place, section, path.rpartition(".")[2], field)


@dataclass(frozen=True)
class Words:
    """What a source says: attributes it reads (`.name`, not assigned), plain names, sections it passes on."""

    read: set[str]
    names: set[str]
    passed: list[tuple[str, set[str]]]  # what the section is called there, the fields left out

    def use(self, name, leaf):
        knows_section = leaf.called in self.read or leaf.section.__name__ in self.names
        return (name in self.read and knows_section) or any(
            leaf.called == called and name not in left_out for called, left_out in self.passed
        )


def words_of(source):
    nodes = list(ast.walk(ast.parse(source)))
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return Words(read, names, list(filter(None, map(passed_section, unpacked(nodes)))))


def unpacked(nodes):
    """Every x in `f(**x)` and `{**x}`."""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg is None:
            yield node.value
        elif isinstance(node, ast.Dict):
            yield from (value for key, value in zip(node.keys, node.values, strict=True) if key is None)


def passed_section(node):
    """For `config.rla.model_dump(exclude={"mu"})`: `rla` and the fields left out."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    if node.func.attr != "model_dump":
        return None
    constants = [item for item in ast.walk(node) if isinstance(item, ast.Constant)]
    return ast.unparse(node.func.value).rpartition(".")[2], {item.value for item in constants}


def properties_reading(leaf):
    """Properties of the section whose body reads the field."""
    for name, member in vars(leaf.section).items():
        if isinstance(member, property):
            source = textwrap.dedent(inspect.getsource(member.fget))
            if leaf.field in words_of(source).read:
                yield name


def dead(found, files):
    """Paths of the settings that nobody reads."""
    return [
        leaf.path
        for leaf in found
        if not any(file.use(name, leaf) for file in files for name in (leaf.field, *properties_reading(leaf)))
    ]


def test_every_setting_is_read_outside_the_configuration():
    found = list(leaves(Config))
    sources = [path for path in PACKAGE.rglob("*.py") if path.name not in SECTIONS]

    assert len(found) > 60
    assert len(sources) > 30
    unread = dead(found, [words_of(path.read_text(encoding="utf-8")) for path in sources])
    assert not unread, f"nobody reads: {', '.join(unread)}"


def test_classes_that_users_call_have_the_defaults_of_the_configuration():
    settings = RLAConfig().model_dump(exclude={"features"})
    named = {"rho": settings["fixed_rho"], "gate_lr": settings["gate_learning_rate"]}
    for function, count in ((RLA, 13), (RLAMix, 2), (UniformMix, 2), (StepwiseMix, 1), (CosineMix, 1)):
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.default is not parameter.empty
        }
        configured = {name: value for name, value in (settings | named).items() if name in defaults}
        assert configured == {name: defaults[name] for name in configured}, function.__name__
        assert len(configured) == count, f"{function.__name__}: {', '.join(configured)}"


class Inner(BaseModel):
    used: int = 0
    unused: int = 0
    by_property: int = 0
    by_method: int = 0

    @property
    def doubled(self):
        return 2 * self.by_property

    def method(self):
        return self.by_method


class Outer(BaseModel):
    inner: Inner = Inner()


def test_the_search_tells_read_from_unread():
    found = list(leaves(Outer))
    everything = ["inner.used", "inner.unused", "inner.by_property", "inner.by_method"]

    def unread(source):
        return dead(found, [words_of(source)])

    assert [leaf.path for leaf in found] == everything
    assert unread("x.inner.used + x.inner.doubled + x.inner.method()") == ["inner.unused", "inner.by_method"]
    assert unread("def f(settings: Inner): return settings.used") == everything[1:]
    assert unread("other.used + used + 'inner.used'") == everything  # another thing of the same name
    assert unread("x.inner\ny.used = 3") == everything  # written only
    assert unread("f(**x.inner.model_dump())") == []
    assert unread("f({'a': 1, **inner.model_dump(exclude={'used'})})") == ["inner.used"]
    assert unread("key = x.inner.model_dump()\nf(**x.other.model_dump())") == everything
