#!/bin/sh
# Runs after each job of a self-hosted GitHub Actions runner, also after one that failed or was cancelled: ends what the
# job has left on the GPUs. Only processes of the runner's own user that carry this job's own RUNNER_TRACKING_ID get a
# signal: SIGTERM, and SIGKILL after 5 s. A step that is meant to leave something running sets RUNNER_TRACKING_ID="" for
# it, as for the runner's own clean-up.
# A job must not fail for what this finds, and the runner must not wait for long: the memory has 30 s to come back.
@COMMAND@ && exit 0
code=$?
case $code in
121) echo '::warning title=GPU memory::Not all GPU memory came back after this job. See the log of its last step.' ;;
*) echo "::warning title=GPU memory::gpuresid could not tell whether this job left GPU memory in use (exit code $code)." ;;
esac
exit 0
