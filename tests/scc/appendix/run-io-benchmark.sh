#!/bin/bash

TDIR=$1
DIR=$(basename $1)
WORKERS=$2
RUNS=$3
MAXWRITES=$4

RESDIR=results/$DIR-mw$MAXWRITES-$(date +%s)
mkdir -p $RESDIR

run_test() {
    rm -f /dev/shm/shmfs-control /dev/shm/shmfs-data
    drop_caches
    shminit

    time (ls $TDIR/file-* | head -n$2 | xargs -I'{}' -n1 -P$2 shmls '{} ' $MAXWRITES) &> $1
}

echo "I/O scheduling benchmark"
echo

for ((i = 1; i <= $WORKERS; i++))
do
    echo "---- Testing $i workers ----"
    echo
    for ((j = 0; j < $RUNS; j++))
    do
        echo -n "`date` -- Doing run $j"
        run_test $RESDIR/x${i}_run-${j} $i
        echo " -- done"
    done
    echo
done
