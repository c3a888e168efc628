"""The description of the machine."""

import sys

import pytest

from slowfast_patches.utils.machine import versions


def test_a_checkout_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [])
    found = versions()
    assert found["slowfast-multigrid"] == "not installed"
    assert found["torch"][0].isdigit()
