"""The figures of the source document: typed once, held against its text once, and unchanged since."""

from pathlib import Path
from typing import Any

from sparse_control.files import read_yaml, sha256_json
from sparse_control.records.published import published_path, read_published
from sparse_control.verify.check import Check, attempt

# of the content of paper/published.yaml, in canonical JSON; whoever corrects a figure renews it with the document open
CONTENT_SHA256 = "967c1b253cff50c27285e7f281d346904928a9c7304f7085d77d6774398cc723"


def read_checked(project: Path) -> tuple[dict[str, Any] | None, Check]:
    """The figures, None where they cannot be read, and the check that they are what was typed."""
    path = published_path(project)
    published, check = attempt("paper/published.yaml", lambda: read_published(project))
    if published and (found := sha256_json(read_yaml(path))) != CONTENT_SHA256:
        detail = f"a figure or a word of it changed: SHA-256 of its content {found}, as typed {CONTENT_SHA256}"
        check = Check(check.name, "FAIL", detail)
    return published, check
