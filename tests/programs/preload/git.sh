# A repository, two branches with a conflict, a clone and garbage collection, without network, clock
# or the user's settings.
set -e
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
rm -rf first second
git init -q -b main first
cd first
echo one > file && git add file && git commit -q -m one
git checkout -q -b other && echo two > file && git commit -q -am two
git checkout -q main && echo three > file && git commit -q -am three
git merge other || echo "conflict $?"
git merge --abort
git gc -q
git log --all --format='%H %s'
cd .. && git clone -q first second && git -C second log -1 --format=%H
git -C second show no-such-commit || exit $?
