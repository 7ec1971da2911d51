# The first process of a cluster's namespace: runs the lines that it reads and answers each with its exit code. It ends
# with its input, and everything in the namespace ends with it.
#
# $1: folder of the cluster
munged --foreground --force --num-threads=2 --key-file="$1/munge.key" --socket="$1/munge.socket" \
    --pid-file="$1/munged.pid" --log-file="$1/munged.log" --seed-file="$1/munged.seed" >>"$1/munged.out" 2>&1 </dev/null &
while read -r line; do
    eval "$line"
    echo $?
done
