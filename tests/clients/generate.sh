#!/usr/bin/env bash
# Generates client code from proto/skilld/v1 in each language, and compiles it together with the sample client.
#
#   tests/clients/generate.sh OUT [LANGUAGE …]    go java cpp node python ruby php csharp; all without LANGUAGE
#
# Prints a line for each language: versions and seconds. If one fails, prints what its compiler said, and ends with 1.
# Afterwards OUT/LANGUAGE/client runs docs/samples/client.*; PHP and C# have none.
#
# Compilers are those of the system: tests/setup.sh languages. Plugins and libraries have the versions of the files
# beside this one and of docs/samples/pom.xml; those of C++, Ruby and PHP are the system's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
proto=${here%/*/*}/proto samples=${here%/*/*}/docs/samples
protoset=$proto/skilld.binpb

die() { echo "clients: $*" >&2 && exit 1; }
protoc_version() { protoc --version | cut -d' ' -f2; }
package_version() { dpkg-query --show --showformat '${Version}' "$1" 2>/dev/null || echo "of the system"; }

# Writes down the versions for the language's line.
versions() { echo "$1" >"$dir/versions"; }

# Writes the program OUT/LANGUAGE/client, a script with this command. It finds skilld's files as in an installation.
client() { # command
    mkdir "$dir/share"
    cp "$protoset" "$samples/../service-config.json" "$dir/share"
    printf '#!/bin/sh\nexec env SKILLD_SHARE=%s %s "$@"\n' "'$dir/share'" "$1" >"$dir/client"
    chmod +x "$dir/client"
}

make_go() {
    cp "$here"/go/go.* "$samples/client.go" "$dir"
    cd "$dir"
    # The programs have the versions of go.mod.
    go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
    mkdir api
    printf 'module skilld.dev/api\n\ngo 1.19\n' >api/go.mod
    PATH=$dir/bin:$PATH protoc -I "$proto" --go_out=api --go_opt=module=skilld.dev/api \
        --go-grpc_out=api --go-grpc_opt=module=skilld.dev/api "${files[@]}"
    go build -o bin/client .
    client "'$dir/bin/client'"
    go vet .
    versions "protoc-gen-go $(go list -m -f '{{.Version}}' google.golang.org/protobuf), protoc-gen-go-grpc $(
        go list -m -f '{{.Version}}' google.golang.org/grpc/cmd/protoc-gen-go-grpc
    ), $(go version | cut -d' ' -f3)"
}

make_java() {
    mkdir -p "$dir"/src/main/{java,proto}
    cp "$samples/pom.xml" "$dir"
    cp "$samples/Client.java" "$dir/src/main/java"
    cp --parents "${files[@]}" "$dir/src/main/proto"
    cd "$dir"
    mvn --quiet --batch-mode compile
    client "java -cp '$dir/target/classes:$dir/target/lib/*' Client"
    versions "protoc-gen-grpc-java $(sed -n 's|.*<grpc.version>\(.*\)</.*|\1|p' pom.xml), protoc $(
        sed -n 's|.*<protobuf.version>\(.*\)</.*|\1|p' pom.xml
    )"
}

make_cpp() {
    mkdir "$dir/gen"
    protoc -I . --cpp_out="$dir/gen" --grpc_out="$dir/gen" --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" "${files[@]}"
    # The details of errors, which are in the protoset.
    protoc --descriptor_set_in="$protoset" --cpp_out="$dir/gen" google/rpc/status.proto google/rpc/error_details.proto
    cp "$samples/client.cc" "$dir/gen"
    cd "$dir/gen"
    find . -name '*.cc' -print0 | xargs -0 -P "$(nproc)" -I {} sh -c 'g++ -std=c++20 -I . -c "$1" -o "$1.o" || exit 255' sh {}
    mapfile -t objects < <(find . -name '*.o')
    g++ -o ../main "${objects[@]}" $(pkg-config --libs grpc++ protobuf)
    client "'$dir/main'"
    versions "grpc_cpp_plugin $(package_version protobuf-compiler-grpc), protoc $(protoc_version), g++ $(g++ -dumpfullversion)"
}

make_node() {
    cp "$here"/node/*.json "$samples/client.mjs" "$dir"
    cd "$dir"
    npm ci --silent --no-audit --no-fund --ignore-scripts
    PATH=$dir/node_modules/.bin:$PATH
    mkdir -p static/{ts-proto,es}
    protoc -I "$proto" --ts_proto_out=static/ts-proto \
        --ts_proto_opt=outputServices=grpc-js,esModuleInterop=true,env=node,importSuffix=.js "${files[@]}"
    protoc -I "$proto" --es_out=static/es --es_opt=target=ts,import_extension=js "${files[@]}"
    tsc
    # Loads the compiled code, and the .proto files in the way that needs no code.
    node --input-type=module --eval '
        import { pathToFileURL } from "node:url";
        import loader from "@grpc/proto-loader";
        const [proto, ...modules] = process.argv.slice(1);
        for (const module of modules) await import(pathToFileURL(module));
        loader.loadSync(process.env.FILES.split(" "), { includeDirs: [proto] });
    ' "$proto" $(find build -name '*.js')
    client "node '$dir/client.mjs'"
    versions "$(node --print 'Object.entries(require("./package.json").dependencies).map((it) => it.join(" ")).join(", ")')"
}

make_python() {
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    mkdir "$dir/gen"
    "$dir/venv/bin/python" -m grpc_tools.protoc -I . --python_out="$dir/gen" --pyi_out="$dir/gen" --grpc_python_out="$dir/gen" \
        "${files[@]}"
    cp "$samples/client.py" "$dir/gen"
    cd "$dir/gen"
    "$dir/venv/bin/python" -m compileall -q .
    for module in skilld/v1/*.py; do printf 'import %s\n' "${module//\//.}"; done | sed 's/\.py$//' | "$dir/venv/bin/python" -
    client "PYTHONPATH='$dir/gen' '$dir/venv/bin/python' '$dir/gen/client.py'"
    versions "$("$dir/venv/bin/pip" freeze | grep -E '^(grpcio|protobuf)' | sed 's/==/ /' | paste -sd, | sed 's/,/, /g')"
}

make_ruby() {
    mkdir "$dir/gen"
    protoc -I . --ruby_out="$dir/gen" --grpc_out="$dir/gen" --plugin=protoc-gen-grpc="$(command -v grpc_ruby_plugin)" "${files[@]}"
    cp "$samples/client.rb" "$dir/gen"
    cd "$dir/gen"
    ruby -wc client.rb
    for file in skilld/v1/*.rb; do printf 'require "%s"\n' "$file"; done | ruby -I . -
    client "ruby -I '$dir/gen' '$dir/gen/client.rb'"
    versions "grpc_ruby_plugin $(package_version protobuf-compiler-grpc), protoc $(protoc_version), grpc $(
        ruby -r grpc -e 'print GRPC::VERSION'
    ), ruby $(ruby -e 'print RUBY_VERSION')"
}

make_php() {
    mkdir "$dir/gen"
    protoc -I . --php_out="$dir/gen" --grpc_out="$dir/gen" --plugin=protoc-gen-grpc="$(command -v grpc_php_plugin)" "${files[@]}"
    find "$dir/gen" -name '*.php' -print0 | xargs -0 -n 1 -P "$(nproc)" php --syntax-check
    versions "grpc_php_plugin $(package_version protobuf-compiler-grpc), protoc $(protoc_version), php $(php -r 'print PHP_VERSION;')"
}

# Nothing in Debian compiles it, nor generates the code of services.
make_csharp() {
    mkdir "$dir/gen"
    protoc -I . --csharp_out="$dir/gen" "${files[@]}"
    versions "protoc $(protoc_version)"
}

[ $# -gt 0 ] || die "which folder? $0 OUT [LANGUAGE …]"
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$proto"
files=(skilld/v1/*.proto)
languages=("$@")
[ $# -gt 0 ] || languages=(go java cpp node python ruby php csharp)
[ -f "$protoset" ] || die "$protoset does not exist"
export FILES="${files[*]}"
for language in "${languages[@]}"; do
    declare -F "make_$language" >/dev/null || die "no such language: $language"
    start=$SECONDS dir=$out/$language
    rm -rf "$dir"
    mkdir "$dir"
    # In the background, since errexit has no effect where a status is tested.
    "make_$language" >"$out/$language.log" 2>&1 &
    wait $! || {
        head -n 100 "$out/$language.log" >&2
        die "$language failed after $((SECONDS - start)) s: above is the beginning of $out/$language.log"
    }
    echo "clients: $language: $(cat "$dir/versions"), $((SECONDS - start)) s"
done
