"""The fingerprint follows the machine and nothing else."""

import json
import subprocess
import sys

from zbench.record import environment


def test_fingerprint_is_that_of_the_machine():
    machine = environment.machine_facts()
    assert environment.fingerprint(machine) == environment.fingerprint(json.loads(json.dumps(machine)))
    assert environment.fingerprint(machine | {"cpu": "another"}) != environment.fingerprint(machine)


def test_collected_facts_are_json_and_name_versions():
    facts = json.loads(json.dumps(environment.collect(command=["sweep"])))
    assert facts["invocation"] == {"command": ["sweep"]}
    assert facts["software"]["torch"]
    assert facts["machine"]["cores"] >= 1
    assert facts["fingerprint"] == environment.fingerprint(facts["machine"])


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert environment.collect()["git"] is None


def test_torch_is_not_imported():
    code = "import sys, zbench.record.environment as e; e.collect(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
