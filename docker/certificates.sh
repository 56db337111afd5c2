#!/bin/sh
# Certificates and keys of a federation, for a start: a certificate authority of its own, the
# SuperLink's certificate, and a key pair for each SuperNode.
#
#   certificates.sh FOLDER "NAMES OF THE SUPERLINK" CLIENT [CLIENT ...]
#   certificates.sh tls "localhost superlink 127.0.0.1" hospital-a hospital-b
#
# FOLDER gets ca.crt, ca.key, server.crt, server.key and nodes/CLIENT.key, nodes/CLIENT.pub. Give each
# client ca.crt and its own key alone, over a channel you trust; ca.key stays off the servers. What
# is there already is kept: run it again with a further client to add that client.
set -eu
umask 077

if [ $# -lt 3 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder=$1 names=$2
shift 2
for program in openssl ssh-keygen; do
    command -v "$program" >/dev/null || {
        echo "certificates.sh: $program is not installed" >&2
        exit 2
    }
done
for client in "$@"; do
    case "$client" in
    *[!A-Za-z0-9._-]* | "" | .*)
        echo "certificates.sh: client $client: use letters, digits, '.', '_' and '-' alone" >&2
        exit 2
        ;;
    esac
done
mkdir -p "$folder/nodes"

if [ ! -e "$folder/ca.crt" ]; then
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out "$folder/ca.key"
    openssl req -new -x509 -sha256 -days "${DAYS:-365}" -key "$folder/ca.key" -subj "/O=fedforget CA" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
        -out "$folder/ca.crt"
fi
if [ ! -e "$folder/server.crt" ]; then
    san=""
    for name in $names; do
        case "$name" in
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
        esac
        san="$san${san:+,}$kind:$name"
    done
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out "$folder/server.key"
    openssl req -new -key "$folder/server.key" -subj "/O=fedforget SuperLink" -out "$folder/server.csr"
    printf 'subjectAltName=%s\n' "$san" >"$folder/server.ext"
    openssl x509 -req -sha256 -days "${DAYS:-365}" -in "$folder/server.csr" -CA "$folder/ca.crt" \
        -CAkey "$folder/ca.key" -CAcreateserial -extfile "$folder/server.ext" -out "$folder/server.crt" 2>/dev/null
    rm -f "$folder/server.csr" "$folder/server.ext"
fi
for client in "$@"; do
    key=$folder/nodes/$client.key
    [ -e "$key" ] && continue
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$key"
    mv "$key.pub" "$folder/nodes/$client.pub"
done
chmod 644 "$folder/ca.crt" "$folder/server.crt" "$folder"/nodes/*.pub
echo "$folder: ca.crt, server.crt, keys of $(find "$folder/nodes" -name '*.pub' | wc -l) client(s)"
