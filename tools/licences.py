"""The licence of each dependency, as an SPDX expression: from what its installed files state, or from a table.

`STATED` has the packages whose metadata says nothing precise, and those that are not installed on every platform. Their
licences were read from the files that they ship; a test fails for a locked package without a licence.
"""

import re
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "2-clause bsd license": "BSD-2-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd-2-clause": "BSD-2-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit": "MIT",
    "mit licence": "MIT",
    "mit license": "MIT",
    "mit or apache-2.0": "MIT OR Apache-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "mpl-2.0": "MPL-2.0",
    "mpl-2.0 and mit": "MPL-2.0 AND MIT",
    "psf-2.0": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
}
"""SPDX's names for what packages call their licences, in lower case."""

STATED = {
    "agent-client-protocol": "Apache-2.0",
    "colorama": "BSD-3-Clause",
    "cronsim": "BSD-3-Clause",
    "docutils": "BSD-2-Clause AND PSF-2.0",  # and most of it in the public domain
    "httpx2-jsfetch": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "mistralai": "Apache-2.0",
    "oxlint": "MIT",
    "pyasn1-modules": "BSD-2-Clause",
    "python-dateutil": "BSD-3-Clause",
    "pywin32": "PSF-2.0",
    "pywin32-ctypes": "BSD-3-Clause",
    "xllamacpp": "MIT",
}
"""By name, for packages that are not installed everywhere or state nothing precise."""


@dataclass(frozen=True)
class Vendored:
    """A library whose files are in this repository, with their licences beside them."""

    name: str
    version: str
    licence: str
    file: str
    source: str


VENDORED = (
    Vendored(
        "markdown-it",
        "15.0.3",
        "MIT AND BSD-2-Clause",  # with the five small libraries in its bundle
        "cantrip_actors/page/web/vendor/markdown-it.js",
        "https://github.com/markdown-it/markdown-it",
    ),
)


def find_licence(name: str) -> str | None:
    """Return the licence of a package as an SPDX expression; None if nothing says it."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    if normal in STATED:
        return STATED[normal]
    try:
        return _read(distribution(normal))
    except PackageNotFoundError:
        return None


def _read(package: Distribution) -> str | None:
    metadata = package.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    stated = SPDX.get(metadata["License"].strip().lower()) if "License" in metadata else None
    if stated is not None:
        return stated
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    names = {SPDX.get(text.rpartition(":: ")[2].lower()) for text in classifiers}
    return names.pop() if len(names) == 1 else None
