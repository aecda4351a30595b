"""What a reader sees of a run or of a data set: tables, charts, pictures, pages."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def page_templates(package: str) -> Environment:
    """The templates of a package; all that they show is escaped, and what they miss is an error."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_page(template: str, **values: object) -> str:
    """Fill in a template of `templates/`; all that it shows is escaped, but for charts (filter `svg`)."""
    environment = page_templates("mcpmix.report")
    environment.filters["svg"] = Markup  # charts are made by `charts`, never from outside
    return environment.get_template(template).render(values)
