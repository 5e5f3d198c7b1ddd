#!/usr/bin/env bash
# Installs SLURM and what accounting needs from Debian's packages, without starting a service.
# Ends with 0 and does nothing where they are there; needs root otherwise.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
tools="sbatch srun sacct slurmctld slurmd slurmdbd munged mungekey mariadbd mariadb-install-db"
missing=0
for tool in $tools; do command -v "$tool" >/dev/null || missing=1; done
[ $missing = 1 ] || exit 0

command -v apt-get >/dev/null || { echo "no apt-get here: SLURM cannot be installed" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "SLURM can only be installed as root" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
packages="slurm-wlm slurmdbd munge mariadb-server"
# The lists may be missing, or old.
# shellcheck disable=SC2086
timeout 300 apt-get install -y -qq --no-install-recommends $packages >/dev/null 2>&1 || {
    timeout 120 apt-get update -qq &&
        timeout 300 apt-get install -y -qq --no-install-recommends $packages >/dev/null
}
