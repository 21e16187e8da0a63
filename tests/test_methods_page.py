"""docs/methods.md is what the registry says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastslow.methods import METHODS
from fastslow.report.methods_page import page

DOCS = Path(__file__).parent.parent / "docs" / "methods.md"


def test_the_committed_page_is_up_to_date():
    assert DOCS.read_text(encoding="utf-8") == page(), "run python -m fastslow.report.methods_page"


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_is_documented(name):
    info = METHODS[name]
    assert all((info.paper, info.summary, info.formula, info.cost, info.choose))
    section = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^##|\Z)", page(), re.MULTILINE | re.DOTALL)
    assert section is not None
    assert "- cost: " in section[1]
    assert "- choose it " in section[1]
    assert len((info.cls.__doc__ or "").strip()) > 20
