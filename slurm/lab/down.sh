#!/usr/bin/env bash
# down.sh FOLDER [--purge]: ends the jobs and daemons of the cluster that up.sh started in FOLDER,
# each by its pid. Nothing is done where none runs. --purge removes the folder as well.
set -euo pipefail

[ $# -eq 1 ] || [ "${2:-}" = --purge ] || { echo "usage: $0 FOLDER [--purge]" >&2; exit 2; }
[ -d "$1" ] || exit 0
dir=$(cd "$1" && pwd -P)
[ -f "$dir/etc/slurm.conf" ] || { echo "lab: $dir holds no cluster" >&2; exit 1; }
PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF=$dir/etc/slurm.conf
exec 9>"$dir/run/lock"
flock 9

# ours PID: whether a process was started with our configuration.
ours() { grep -qzxF "SLURM_CONF=$SLURM_CONF" "/proc/$1/environ" 2>/dev/null; }
pid_of() {
    local pid
    pid=$(cat "$dir/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] &&
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] && ours "$pid" && echo "$pid"
}

# Jobs first: they would outlive the daemons.
if pid_of slurmctld >/dev/null && pid_of slurmd >/dev/null; then
    for state in PENDING RUNNING SUSPENDED; do scancel --state=$state || true; done
    for _ in $(seq 75); do
        [ -n "$(squeue -h 2>/dev/null)" ] || break
        sleep 0.2
    done
fi

for name in slurmd slurmctld slurmdbd mariadbd munged; do
    pid=$(pid_of $name) || continue
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 300); do
        pid_of $name >/dev/null || break
        sleep 0.1
    done
    if pid_of $name >/dev/null; then kill -9 "$pid" 2>/dev/null || true; fi
    rm -f "$dir/run/$name.pid"
done

# What jobs of a crashed cluster left: processes with our configuration and a job id, and the
# slurmstepd above them, which runs in our log folder.
for proc in /proc/[0-9]*; do
    pid=${proc#/proc/}
    [ "$pid" != $$ ] || continue
    if { ours "$pid" && grep -qz '^SLURM_JOB_ID=' "$proc/environ" 2>/dev/null; } ||
        { [ "$(cat "$proc/comm" 2>/dev/null)" = slurmstepd ] &&
            [ "$(readlink "$proc/cwd" 2>/dev/null)" = "$dir/log" ]; }; then
        kill -9 "$pid" 2>/dev/null || true
    fi
done
rm -f "$dir"/run/*.socket "$dir"/run/*.socket.lock "$dir"/run/*.pid
if [ "${2:-}" = --purge ]; then rm -rf "$dir"; fi
