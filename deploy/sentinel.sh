#!/bin/sh
# Runs a Redis Sentinel that watches the primary `redis` under the name `spotwise`. What it learns, the primary of the moment above
# all, it writes into its file, which is therefore made only once.
set -eu
file=/data/sentinel.conf
if [ ! -s "$file" ]; then
  umask 077
  cat >"$file" <<END
port 26379
bind 0.0.0.0
protected-mode no
dir /data
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $1
sentinel monitor spotwise redis 6379 2
sentinel down-after-milliseconds spotwise 1000
sentinel failover-timeout spotwise 5000
sentinel parallel-syncs spotwise 1
END
fi
exec redis-server "$file" --sentinel
