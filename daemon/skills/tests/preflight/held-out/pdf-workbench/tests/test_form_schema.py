import pytest
from hypothesis import given, strategies as st

from form_schema import Field


@given(st.text())
def test_default(name):
    assert Field(name, "/Tx").value == ""


def test_missing():
    with pytest.raises(TypeError):
        Field()
