#!/bin/bash

SIZE=$1
NUMBER=$2
DIR=$3

mkdir $DIR

bashstring="head -c$SIZE /dev/urandom > $DIR/file-{}"
seq 1 $NUMBER | xargs -n1 -I{} -P$NUMBER bash -c "$bashstring"
