#!/usr/bin/env bash
# The site of action.yml: adds the runs of a results directory to the site on a branch, and pushes that branch.
set -euo pipefail

branch="${ZBENCH_PAGES_BRANCH:-gh-pages}"
site="${RUNNER_TEMP:-/tmp}/zbench-site"
identity=(-c user.name=zbench -c user.email=zbench@users.noreply.github.com)

git worktree remove --force "$site" 2>/dev/null || rm -rf "$site"
if git fetch --quiet --depth=1 origin "$branch" 2>/dev/null; then
  start=FETCH_HEAD
else # the first time: the branch begins empty
  start=$(git "${identity[@]}" commit-tree "$(git mktree </dev/null)" -m "An empty site")
fi
git worktree add --quiet --detach "$site" "$start"

zbench publish "${ZBENCH_RESULTS:-results}" --to "$site" --no-color
git -C "$site" add --all -- . ':!.lock'
git -C "$site" diff --cached --quiet || git -C "$site" "${identity[@]}" commit --quiet -m "Runs up to ${GITHUB_SHA:-now}"
git -C "$site" push --quiet origin "HEAD:refs/heads/$branch"
git worktree remove --force "$site"
