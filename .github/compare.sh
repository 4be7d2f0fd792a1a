#!/usr/bin/env bash
# The comparison of action.yml. It always ends with 0 and leaves the exit code as an output, so that the summary
# is written and the artifact uploaded before the job fails. A first run without anything to compare with passes.
set -uo pipefail

out="${RUNNER_TEMP:-/tmp}/zbench-comparison"
rm -rf "$out" && mkdir -p "$out"
echo "directory=$out" >>"$GITHUB_OUTPUT"

finish() {
  cat "$out/compare.md" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
  echo "exit-code=$1" >>"$GITHUB_OUTPUT"
  exit 0
}

say() { # the message goes where the table would be
  printf '%s\n### zbench\n\n%s\n' '<!-- zbench-compare -->' "$1" >"$out/compare.md"
}

first_run() {
  echo "::notice title=zbench::$1"
  say "$1"
  finish 0
}

options=(--fail-on "${ZBENCH_FAIL_ON:-regression,suspected,unchecked,missing,correctness}" --all-formats "$out")
while read -r threshold; do
  [ -n "$threshold" ] && options+=(--threshold "$threshold")
done <<<"${ZBENCH_THRESHOLDS:-}"

if [ "${ZBENCH_MODE:-paired}" = stored ]; then
  baseline="${ZBENCH_RESULTS:-results}/baselines/${ZBENCH_BASELINE:-main}.json"
  [ -f "$baseline" ] || first_run "There is no baseline $baseline yet, so there is nothing to compare with. \
Keep one with: zbench compare RUN --save-baseline ${ZBENCH_BASELINE:-main}"
  sides=("$baseline" "${ZBENCH_HEAD:-last}" --output-dir "${ZBENCH_RESULTS:-results}")
else
  head=$(git rev-parse --verify --quiet "${ZBENCH_HEAD:-HEAD}^{commit}") || head="${ZBENCH_HEAD:-HEAD}"
  base="${ZBENCH_BASE:-}"
  if [ -z "$base" ]; then
    target="origin/${GITHUB_BASE_REF:-}"
    [ -n "${GITHUB_BASE_REF:-}" ] || target="HEAD^"
    base=$(git merge-base "$target" "$head" 2>/dev/null) || first_run "There is no merge base with $target, so \
there is nothing to compare with. (Check the repository out with fetch-depth: 0.)"
  fi
  # a revision that does not exist is a mistake, which zbench names; one without a project is a first run
  git rev-parse --verify --quiet "$base^{commit}" >/dev/null && git cat-file -e "$head:pyproject.toml" 2>/dev/null &&
    ! git cat-file -e "$base:pyproject.toml" 2>/dev/null &&
    first_run "The base revision $base has no pyproject.toml to install, so there is nothing to compare with."
  sides=("$base" "$head" --paired --sweep "$ZBENCH_SWEEP" --blocks "${ZBENCH_BLOCKS:-8:24}")
fi

{ # progress is shown while it runs, and kept in case it is the only thing there is to say
  zbench compare "${sides[@]}" "${options[@]}" --no-color 2>&1 >&3 3>&- | tee "$out/stderr.txt" >&2
  code=${PIPESTATUS[0]}
} 3>&1
if [ ! -f "$out/compare.md" ]; then # it could not compare; its message says why
  say "$(printf 'zbench compare ended with %s:\n\n```\n%s\n```' "$code" "$(tail -n 20 "$out/stderr.txt")")"
fi
finish "$code"
