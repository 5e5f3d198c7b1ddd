#!/usr/bin/env bash
# up.sh FOLDER: starts a one-node SLURM cluster with accounting that lives in FOLDER. Called again it
# starts what is not running. README.md beside this file says why each setting is there.
#
# Settings, from the environment:
#   SLURM_LAB_PORT         first of three ports (6817): slurmctld, slurmd, slurmdbd
#   SLURM_LAB_CPUS         CPUs of the node (what slurmd finds); more than there are is fine
#   SLURM_LAB_MEM_MB       its memory (what slurmd finds)
#   SLURM_LAB_GPUS         stand-ins for GPUs (2)
#   SLURM_LAB_MAX_ARRAY    the site's MaxArraySize (10001)
#   SLURM_LAB_REQUEUE_S    seconds before a requeued job may start (5, the least)
#   SLURM_LAB_KILLWAIT_S   seconds from TERM to KILL (5)
#   SLURM_LAB_GRACE_S      seconds that a preempted job has (30)
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
PATH=$PATH:/usr/sbin:/sbin
port=${SLURM_LAB_PORT:-6817}
gpus=${SLURM_LAB_GPUS:-2}
requeue_s=${SLURM_LAB_REQUEUE_S:-5}

fail() { echo "lab: $*" >&2; exit 1; }

for tool in munged mungekey slurmctld slurmd slurmdbd sacctmgr scontrol mariadbd mariadb-install-db; do
    command -v "$tool" >/dev/null || fail "$tool is not there; slurm/lab/install.sh installs it"
done

mkdir -p "$1"
dir=$(cd "$1" && pwd -P)
# A socket's path has room for 108 bytes.
[ ${#dir} -le 80 ] || fail "the folder's path is too long for sockets: $dir"
case $dir in *[[:space:]]*) fail "the folder's path has a space: $dir" ;; esac
chmod 0755 "$dir"       # munge refuses a folder that others may write to
mkdir -p "$dir"/{etc,log,run,spool,state,munge,dev}
chmod 0755 "$dir/run" "$dir/log"
chmod 0700 "$dir/munge"

# Two who start the same cluster take turns.
exec 9>"$dir/run/lock"
flock 9

host=$(hostname -s)
user=$(id -un)
export SLURM_CONF=$dir/etc/slurm.conf
export MYSQL_UNIX_PORT=$dir/run/mysql.socket

address=$(getent ahostsv4 "$(hostname)" | awk '{ print $1; exit }' || true)
case $address in
127.*) ;;
*) fail "$(hostname) resolves to '$address': the daemons would listen there; /etc/hosts must say 127.*" ;;
esac

# runs NAME: whether our daemon of this name is alive; its pid may be another's by now.
runs() {
    local pid
    pid=$(cat "$dir/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] &&
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] &&
        grep -qzxF "SLURM_CONF=$SLURM_CONF" "/proc/$pid/environ" 2>/dev/null
}

# until_ok SECONDS WHAT COMMAND...: waits for COMMAND to succeed.
until_ok() {
    local end=$((SECONDS + $1)) what=$2 said
    shift 2
    until said=$("$@" 2>&1); do
        if [ $SECONDS -ge $end ]; then
            tail -n 5 "$dir"/log/*.log >&2 || true
            fail "$what did not come up: $said"
        fi
        sleep 0.05
    done
}

# --- what the node has
found() { slurmd -C | sed -n "1s/.* $1=\\([0-9]*\\).*/\\1/p"; }
cpus=${SLURM_LAB_CPUS:-$(found CPUs)}
memory=${SLURM_LAB_MEM_MB:-$(found RealMemory)}
: >"$dir/etc/gres.conf"
for ((i = 0; i < gpus; i++)); do
    device=$dir/dev/gpu$i
    # Where no device node may be made a file does, but jobs are then not told which they have.
    [ -e "$device" ] || mknod "$device" c 1 3 2>/dev/null || : >"$device"
    echo "NodeName=$host Name=gpu File=$device" >>"$dir/etc/gres.conf"
done
gres_types='' gres=''
if [ "$gpus" -gt 0 ]; then gres_types=GresTypes=gpu gres=Gres=gpu:$gpus; fi

cat >"$dir/etc/slurm.conf" <<CONF
# Written by slurm/lab/up.sh, anew at each start.
ClusterName=lab
SlurmctldHost=$host($address)
SlurmUser=$user
SlurmdUser=$user
SlurmctldPort=$port
SlurmdPort=$((port + 1))
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge.socket,cred_expire=$requeue_s
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
# slurmctld will not start without a mail program.
MailProg=/bin/true
# No cgroups: processes are followed by their ancestry, nothing is bound.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((memory / cpus))
$gres_types
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PriorityType=priority/basic
MaxArraySize=${SLURM_LAB_MAX_ARRAY:-10001}
KillWait=${SLURM_LAB_KILLWAIT_S:-5}
MinJobAge=300
JobRequeue=1
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$((port + 2))
AccountingStoragePass=$dir/run/munge.socket
${gres_types:+AccountingStorageTRES=gres/gpu}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
NodeName=$host NodeAddr=$address CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory $gres State=UNKNOWN
PartitionName=DEFAULT Nodes=$host State=UP MaxTime=INFINITE DefaultTime=60 OverSubscribe=NO
PartitionName=debug Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=preempt PriorityTier=1 PreemptMode=REQUEUE GraceTime=${SLURM_LAB_GRACE_S:-30}
CONF
echo "CgroupAutomount=no" >"$dir/etc/cgroup.conf"
(
    umask 077
    cat >"$dir/etc/slurmdbd.conf" <<CONF
DbdHost=localhost
DbdAddr=$address
CommunicationParameters=NoInAddrAny
DbdPort=$((port + 2))
SlurmUser=$user
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge.socket
PidFile=$dir/run/slurmdbd.pid
LogFile=$dir/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=$user
StorageLoc=slurm_acct_db
CONF
)
cat >"$dir/env.sh" <<CONF
export SLURM_CONF=$dir/etc/slurm.conf
case :\$PATH: in *:/usr/sbin:*) ;; *) export PATH=\$PATH:/usr/sbin ;; esac
CONF

# --- the daemons: without our lock and the caller's pipes, or a reader would wait for them too
quietly() { local log=$dir/log/$1.out; shift; "$@" >>"$log" 2>&1 9>&- </dev/null; }

if ! runs munged; then
    [ -s "$dir/munge/munge.key" ] || mungekey --create --keyfile="$dir/munge/munge.key"
    rm -f "$dir/run/munge.socket"
    quietly munged munged --force --socket="$dir/run/munge.socket" \
        --key-file="$dir/munge/munge.key" --pid-file="$dir/run/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/munge/munged.seed" --num-threads=2
fi
until_ok 10 munged test -S "$dir/run/munge.socket"

if [ ! -d "$dir/mysql/mysql" ]; then
    rm -rf "$dir/mysql" "$dir/mysql.new"
    quietly mariadb-install mariadb-install-db --no-defaults --user="$user" \
        --datadir="$dir/mysql.new" --auth-root-authentication-method=socket \
        --auth-root-socket-user="$user" --skip-test-db || fail "see $dir/log/mariadb-install.out"
    mv "$dir/mysql.new" "$dir/mysql"
fi
if ! runs mariadbd; then
    # Not in a function: its shell would stay, with our lock and the caller's pipes.
    setsid mariadbd --no-defaults --user="$user" --datadir="$dir/mysql" \
        --socket="$MYSQL_UNIX_PORT" --pid-file="$dir/run/mariadbd.pid" --skip-networking \
        --innodb-buffer-pool-size=64M --innodb-log-file-size=16M --innodb-lock-wait-timeout=900 \
        --innodb-flush-log-at-trx-commit=2 --log-error="$dir/log/mariadbd.log" \
        >>"$dir/log/mariadbd.out" 2>&1 9>&- </dev/null &
fi
until_ok 60 mariadbd mariadb-admin --no-defaults --socket="$MYSQL_UNIX_PORT" --user="$user" ping
runs slurmdbd || quietly slurmdbd slurmdbd
until_ok 60 slurmdbd sacctmgr -n list cluster
[ -n "$(sacctmgr -n list cluster name=lab format=cluster)" ] || sacctmgr -i add cluster lab >/dev/null
runs slurmctld || quietly slurmctld slurmctld -f "$SLURM_CONF"
until_ok 60 slurmctld scontrol ping
runs slurmd || quietly slurmd slurmd -f "$SLURM_CONF"

ready() { sinfo -h -N -n "$host" -o %T | grep -Eqx 'idle|mixed|allocated|completing'; }
sleep 0.2
# A node comes back that a hard stop left down.
ready || scontrol update NodeName="$host" State=RESUME >/dev/null 2>&1 || true
until_ok 60 "node $host" ready
echo "lab: up; . $dir/env.sh"
