"""What a reader sees of a run or of a data set: tables, charts, pictures, pages."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render_page(template: str, **values: object) -> str:
    """Fill in a template of `templates/`; all that it shows is escaped, but for charts (filter `svg`)."""
    environment = Environment(
        loader=PackageLoader("mcpmix.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # charts are made by `charts`, never from outside
    return environment.get_template(template).render(values)
