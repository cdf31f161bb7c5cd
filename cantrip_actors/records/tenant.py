"""The tenants of one loom, and names that are unique for each tenant.

An entity has a tenant, which is in its header; children and forks have the tenant of the entity that they come from.
The default tenant is "". A name belongs to a tenant: stores keep it scoped, so that two tenants may use the same name.
"""

from __future__ import annotations

from typing import Final

from cantrip_actors.terms.arguments import check_short_name

_BETWEEN: Final = "\x1f"
"""The separator of a tenant and a name: neither may contain it."""


def check_tenant(name: str) -> str:
    """Return the name of a tenant. Raises ValueError for anything but a text without control characters."""
    check_short_name("tenant", name)
    return name


def scope_name(tenant: str, name: str) -> str:
    """Return a name as stores keep it, which is different for each tenant.

    >>> scope_name("", "notes"), scope_name("acme", "notes") == scope_name("", "notes")
    ('notes', False)
    """
    return f"{tenant}{_BETWEEN}{name}" if tenant else name


def unscope_name(text: str) -> str:
    """Return the name that `scope_name` scoped."""
    return split_name(text)[1]


def split_name(text: str) -> tuple[str, str]:
    """Return the tenant and the name of a name that `scope_name` scoped."""
    tenant, _, name = text.rpartition(_BETWEEN)
    return tenant, name
