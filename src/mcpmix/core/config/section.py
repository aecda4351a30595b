"""What all sections of the configuration share: their base and the ranges of numbers."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0)]
NaturalInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """Base of all sections: frozen, strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
