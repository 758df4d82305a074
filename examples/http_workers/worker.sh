#!/bin/sh
# A worker in plain shell, with curl and jq. For each job it runs the program FOLDER/TASK, with the payload on its
# input. What that prints is the result, as JSON if it is JSON; if it fails, what it wrote to stderr is the error.
#     SHIGOTO_URL=http://127.0.0.1:8710 SHIGOTO_TOKEN=shg_… ./worker.sh FOLDER
set -eu
folder=$1 api=${SHIGOTO_URL:-http://127.0.0.1:8710}/api/v1 running='' stopping=''
here=$(mktemp -d)
printf 'Content-Type: application/json\n' >"$here/headers" # in a file: arguments are for all to see
[ -z "${SHIGOTO_TOKEN:-}" ] || printf 'Authorization: Bearer %s\n' "$SHIGOTO_TOKEN" >>"$here/headers"

ask() { # METHOD PATH FILE, the body on the input: the answer goes to the file, its status is printed (000: none came)
    curl -sS --max-time 60 -o "$here/$3" -w '%{http_code}' -X "$1" -H "@$here/headers" --data-binary @- "$api$2" || :
}

register() { # until it works, but not if we are not let in
    until case $(ls "$folder" | jq -Rnc --arg name "$(uname -n):$$" '{$name, tasks: [inputs], isolates: true}' |
        ask POST /workers answer) in 201) ;; 4*) cat "$here/answer" >&2; exit 1 ;; *) false ;; esac; do sleep 2; done
    worker=$(jq -r .worker "$here/answer") every=$(jq .beat_every "$here/answer")
}

beats() { # as long as the job runs; if it is no longer ours, or somebody wants it cancelled, it is stopped
    while sleep "$every"; do
        case $(jq -c '{held: [{id, number, token}]}' "$here/job" | ask POST "/workers/$worker/beat" beat) in
        200) jq -e '.cancels + .lost == []' "$here/beat" >/dev/null || kill "$1" ;; 410) kill "$1" ;; esac
    done
}

run() { # the job, and tell how it ended
    task=$(jq -r .task "$here/job") id=$(jq -r .id "$here/job") token=$(jq .token "$here/job") code=0
    jq -c .payload "$here/job" >"$here/payload"
    "$folder/$task" <"$here/payload" >"$here/out" 2>"$here/err" & running=$!
    beats "$running" & beating=$!
    wait "$running" || code=$?
    while kill -0 "$running" 2>/dev/null; do code=0; wait "$running" || code=$?; done # a signal ends a wait, too
    kill "$beating"; running=''
    if [ "$code" = 0 ]; then
        { jq -s 'if length == 1 then .[0] else error end' "$here/out" 2>/dev/null || jq -Rs . "$here/out"; } |
            jq -c --argjson token "$token" '{$token, outcome: "completed", result: .}'
    else
        outcome=errored; [ -z "$stopping" ] || outcome=released # stopped by us: it counts as nothing
        tail -c 4000 "$here/err" | jq -Rsc --argjson token "$token" --arg outcome "$outcome" \
            --arg code "$code" '{$token, $outcome, error: "exit \($code): \(.)"}'
    fi >"$here/end"
    until case $(ask POST "/workers/$worker/jobs/$id/settle" answer <"$here/end") in 000 | 429 | 5*) false ;; esac
    do sleep 2; done # to say it twice does no harm
    echo "$task $id $(jq -r '.state // .code' "$here/answer")"
}

trap 'stopping=1; [ -z "$running" ] || kill "$running" 2>/dev/null || :' TERM INT
trap 'echo "" | ask DELETE "/workers/${worker:-none}" answer >/dev/null; rm -rf "$here"' EXIT
register
while [ -z "$stopping" ]; do
    case $(echo '{"wait": 5, "held": []}' | ask POST "/workers/$worker/claim" answer) in # a lost answer comes back
    200) jq -ec '.jobs[0]' "$here/answer" >"$here/job" || continue; [ -z "$stopping" ] || break; run ;;
    410) register ;; # we were silent for too long, and others have our jobs
    *) sleep 2 ;;
    esac
done
