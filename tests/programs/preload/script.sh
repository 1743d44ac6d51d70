# Functions, pipes, subshells, traps, jobs, arithmetic, here documents, and a status that is not 0.
count() { local n=0; while read -r _; do n=$((n + 1)); done; echo "$n lines"; }
trap 'echo "trap $?"' EXIT
seq 1 100 | sort -rn | awk '{ sum += $1 } END { print sum }'
seq 1 1000 | count
(sleep 0.05; echo background) &
wait $!
cat <<END | tr a-z A-Z
here ${BASH_VERSINFO[0]:+bash}
END
diff <(echo one) <(echo two)
echo "status $?"
sh -c 'kill -TERM $$'
echo "status $?"
printf '%s\n' "${LANG:-none}" > /dev/null
ls /proc/self/fd | wc -l
exit 9
