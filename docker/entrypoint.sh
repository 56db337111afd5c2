#!/bin/sh
# What a container of the fedforget image does; also runs as it is on a machine without containers.
#
#   entrypoint.sh superlink     the server's SuperLink
#   entrypoint.sh supernode     one client's SuperNode
#   entrypoint.sh register      make the SuperNodes' public keys known to the SuperLink
#   entrypoint.sh health        0 if the SuperLink or SuperNode beside it answers
#   entrypoint.sh COMMAND ...   anything else is run as a command, e.g. fedforget or flwr
#
# Variables, and their defaults:
#   TLS_DIR          folder that certificates.sh wrote; nothing is started without it unless
#   INSECURE=1       asks for plain HTTP without authentication: for one machine, for trying out
#   SUPERLINK        host:port that SuperNodes and commands connect to (superlink:8000)
#   HOST, PORT       what the process listens on (0.0.0.0 8000; a SuperNode: 127.0.0.1 9094)
#   HEALTH           host:port of the health service (127.0.0.1:8090)
#   NODE_CONFIG      a SuperNode's node configuration, e.g. client-id="hospital-a" role="forget" ...
#   NODE_KEY         a SuperNode's private key (TLS_DIR/node.key)
#   RESTART_DELAY    seconds to wait after a SuperNode ended unasked, before the container ends (65)
#   KEYS             register: the folder with the public keys, CLIENT.pub (TLS_DIR/nodes)
#   NODES            register: the file that gets each client's node id ($FEDFORGET_HOME/nodes.yaml)
#   WAIT             register: seconds that the SuperLink may take to answer (60)
set -eu

die() {
    echo "entrypoint.sh: $1" >&2
    exit 2
}

secure() {
    if [ -n "${TLS_DIR:-}" ]; then
        [ -r "$TLS_DIR/ca.crt" ] || die "$TLS_DIR/ca.crt cannot be read; run certificates.sh first, or set INSECURE=1"
        return 0
    fi
    [ "${INSECURE:-0}" = 1 ] || die "set TLS_DIR to the folder with the certificates, or INSECURE=1 to do without"
    return 1
}

SUPERLINK=${SUPERLINK:-superlink:8000}
HEALTH=${HEALTH:-127.0.0.1:8090}
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0

case "${1:-}" in
superlink)
    set -- --host "${HOST:-0.0.0.0}" --port "${PORT:-8000}" --health-server-address "$HEALTH" \
        --disable-runtime-dependency-installation
    if secure; then
        set -- "$@" --ssl-ca-certfile "$TLS_DIR/ca.crt" --ssl-certfile "$TLS_DIR/server.crt" \
            --ssl-keyfile "$TLS_DIR/server.key" --enable-supernode-auth
    else
        set -- "$@" --insecure
    fi
    exec flower-superlink "$@"
    ;;
supernode)
    [ -n "${NODE_CONFIG:-}" ] || die 'set NODE_CONFIG, e.g. client-id="hospital-a" role="forget" domain="bio" data="/data/a.jsonl"'
    set -- --superlink "$SUPERLINK" --host "${HOST:-127.0.0.1}" --port "${PORT:-9094}" \
        --health-server-address "$HEALTH" --node-config "$NODE_CONFIG"
    if secure; then
        key=${NODE_KEY:-$TLS_DIR/node.key}
        [ -r "$key" ] || die "the node's private key $key cannot be read"
        set -- "$@" --root-certificates "$TLS_DIR/ca.crt" --auth-supernode-private-key "$key"
    else
        set -- "$@" --insecure
    fi
    asked=0 node='' status=0
    # Asked before the SuperNode has a number, or after its end, there is nobody to pass it on to.
    trap 'asked=1; [ -z "$node" ] || kill -TERM "$node" 2>/dev/null || :' TERM INT
    flower-supernode "$@" &
    node=$!
    [ "$asked" = 0 ] || kill -TERM "$node" 2>/dev/null || :
    wait "$node" || status=$?
    if [ "$asked" = 1 ]; then
        wait "$node" || : # the signal interrupted the first
        exit "$status"
    fi
    trap - TERM INT
    # It also ends, with status 0, where the SuperLink does not know its key any more. A SuperLink takes a
    # node for alive for about a minute after it died, and until then refuses its key: a restart at once
    # would fail again and again.
    [ "$status" != 0 ] || status=1
    echo "entrypoint.sh: the SuperNode ended, see above: code 2004 says that its key is not registered, or that" \
        "its last process died a moment ago. Ending with status $status in ${RESTART_DELAY:-65} s" >&2
    sleep "${RESTART_DELAY:-65}"
    exit "$status"
    ;;
register)
    secure || die "there is nothing to register without TLS and authentication"
    FLWR_HOME=${FLWR_HOME:-$HOME/.flwr}
    COLUMNS=300 # Flower wraps what it says
    export FLWR_HOME COLUMNS
    mkdir -p "$FLWR_HOME"
    config=$FLWR_HOME/config.toml
    [ -e "$config" ] || printf '[superlink]\ndefault = "production"\n' >"$config"
    grep -q '^\[superlink\.production\]' "$config" || printf \
        '\n[superlink.production]\naddress = "%s"\nroot-certificates = "%s"\n' "$SUPERLINK" "$TLS_DIR/ca.crt" >>"$config"
    nodes=${NODES:-${FEDFORGET_HOME:-$FLWR_HOME}/nodes.yaml}
    mkdir -p "$(dirname "$nodes")"
    touch "$nodes"
    left=${WAIT:-60}
    for key in "${KEYS:-$TLS_DIR/nodes}"/*.pub; do
        [ -r "$key" ] || die "no public key in ${KEYS:-$TLS_DIR/nodes}"
        client=$(basename "$key" .pub)
        until said=$(flwr supernode register "$key" production 2>&1); do
            case "$said" in
            *lready*) break ;; # a key that is known is what was wanted
            *unavailable*) [ "$left" -gt 0 ] || die "no SuperLink answers at the connection production of $config: $said" ;;
            *) die "$key was not registered: $said" ;;
            esac
            left=$((left - 1))
            sleep 1
        done
        number=$(printf '%s\n' "$said" | sed -n 's/.*SuperNode \([0-9]\{1,\}\) registered.*/\1/p')
        if [ -n "$number" ]; then
            { awk -v name="\"$client\":" '$1 != name' "$nodes" && echo "\"$client\": $number"; } >"$nodes.new"
            mv "$nodes.new" "$nodes"
        fi
        echo "registered: $client${number:+, node $number}"
    done
    ;;
health)
    exec python -c '
import sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
sys.exit(answer.status != health_pb2.HealthCheckResponse.SERVING)
' "$HEALTH"
    ;;
"")
    die "say what to do: superlink, supernode, register, health, or a command"
    ;;
*)
    exec "$@"
    ;;
esac
