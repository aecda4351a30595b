"""Everything that is wrong with a data set, found at once: files, masks, names, copies across the split."""

from mcpmix.data.audit.findings import Finding, Severity
from mcpmix.data.audit.run import Audit, inspect_all

__all__ = ["Audit", "Finding", "Severity", "inspect_all"]
