"""The core in interpreters other than the first."""

from __future__ import annotations

from typing import Final

from programs import run

# A legacy sub-interpreter shares the interpreter lock; mod_wsgi uses one per application.
_PROGRAM: Final = """
import sys
try:
    from _interpreters import create, exec
    from _interpreters import new_config
    number = create(new_config("legacy"))
    run = lambda code: exec(number, code)
except ImportError:
    import _xxsubinterpreters
    number = _xxsubinterpreters.create(isolated=False)
    run = lambda code: _xxsubinterpreters.run_string(number, code)
run('''
try:
    import penstock
except ImportError as error:
    print("refused:", error, flush=True)
else:
    print("imported", flush=True)
''')
import penstock
print(bool(penstock.Limiter({"Orders": "1/minute"}).spend("Orders", "ada")))
"""


def test_sub_interpreter_refuses_to_import() -> None:
    refused, main = run(_PROGRAM).splitlines()
    assert refused.startswith("refused:"), refused
    assert main == "True"
