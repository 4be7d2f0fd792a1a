"""Simulates the trials that arrive on stdin, a JSON line each; answers on stdout, a JSON line each."""

import gc
import json
import os
import sys
from pathlib import Path

from zbench.estimate.reading import estimate, explained
from zbench.spec.trial import TrialSpec


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's model prints is no answer
    gc.disable()  # a collection in the middle of a step would free at a moment that is no part of it
    for number, line in enumerate(sys.stdin):
        question = json.loads(line)
        try:
            trial = TrialSpec.model_validate(question["trial"])
            outcome = estimate(trial, Path(question["base_dir"]))
            answer: dict[str, object] = {"estimate": outcome.to_json()}
        except Exception as error:
            answer = {"problem": explained(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        gc.collect()
        if number == 0:
            gc.freeze()  # the modules that are loaded by now: not to be looked through after each trial


if __name__ == "__main__":
    main()
